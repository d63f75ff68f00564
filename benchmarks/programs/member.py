"""A device process of a benchmark: the product's Agent and transport, with random data."""

from __future__ import annotations

import json
import queue
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.programs.fleet import FEDERATION, PATIENCE
from protofleet.edge_client.agent import Agent
from protofleet.edge_client.agent_parts import AgentOptions, DeviceData, agent_parts
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.trainer.job import local_jobs
from protofleet.methods.contract.base import ClientHalf
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.security.keys import Identity, load_keys, load_public
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.transport.base import Item
from protofleet.protocol.transport.mqtt import Mqtt
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.topics import Topics
from protofleet.runtime.event_loop import ThreadWorker, serve, stop_on_signals


@dataclass(frozen=True)
class Part:
    x: Tensor
    y: Tensor


@dataclass
class MadeUp:
    """Random images, as many as requested, in the shape that the plan's network takes."""

    domain: str
    classes: int
    train: Part
    validation: Part
    test: Part
    names: tuple[str, ...] = ()


def made_up(name: str, classes: int, size: int, examples: int) -> MadeUp:
    y = torch.arange(examples) % classes
    x = torch.randn(examples, 3, size, size, generator=torch.Generator().manual_seed(len(name)))
    part, none = Part(x, y), Part(x[:0], y[:0])
    return MadeUp(name, classes, part, none, none)


def main(wish: dict[str, object]) -> None:
    torch.set_num_threads(1)
    name, folder, port = str(wish["name"]), Path(str(wish["folder"])), int(str(wish["port"]))
    shape = json.loads((folder / "shape.json").read_text())
    data = made_up(name, shape["classes"], shape["size"], int(str(wish["examples"])))
    inbox: queue.SimpleQueue[Item] = queue.SimpleQueue()
    memory = DeviceState(folder / "devices" / name)
    me = Identity(name, memory.boot(int(time.time())), load_keys(folder / "keys" / f"{name}.key"))
    topics, ring = Topics(FEDERATION), {COORDINATOR: load_public(folder / "keys" / "coordinator.pub")}
    transport = Mqtt(
        f"bench-{name}", BrokerAddress(port=port), inbox,
        subscriptions=topics.device_subscriptions(name), session_seconds=60, clean_start=False,
    )  # fmt: skip
    link = DeviceLink(me, ring, topics, transport, memory.store)
    transport.connect(link.will(topics.device_state(name)))

    def build(plan: Plan) -> ClientHalf:
        return plan.client_half(data.train, name)

    options = AgentOptions(stays=bool(wish.get("stays")))
    work = DeviceData(data, local_jobs(build, data))
    agent = Agent(*agent_parts(work, link, memory, ThreadWorker(inbox), options))
    agent.session.give_up_after(PATIENCE, time.monotonic())
    stop_on_signals(inbox.put)
    serve(agent, inbox, time.monotonic)
    (folder / "devices" / name / "meter.json").write_text(
        json.dumps({"payload": sum(link.meter.payload.values()), "wire": sum(link.meter.wire.values())})
    )
    transport.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
