"""Payload and control together are all bytes of all PUBLISH packets.

The payload equals the closed form of the method, so no array is missing from either. A proxy that knows
nothing of the project parses the packets.
"""

import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from protofleet import methods
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.edge_client.trainer.job import local_jobs
from protofleet.lab.contract.halves import bytes_by_kind, ranks_of
from protofleet.lab.contract.worlds import training_rounds
from protofleet.methods.contract.catalog import names
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.contract.plan import Network
from protofleet.methods.contract.public import PublicSet
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.methods.plugins.file import from_file
from protofleet.protocol.transport.base import Arrived, packet_bytes
from protofleet.protocol.wire.names import COORDINATOR
from tests.over_broker.counting_proxy import CountingProxy
from tests.support.federation_over_broker import DEVICES, Federation
from tests.support.few_methods import with_own_arrays
from tests.support.small_federation import CLASSES, shard

VARIATES = Path(__file__).parents[1] / "methods" / "plugged" / "variates.py"
HOME = Path(methods.__file__).parent
PUBLIC = PublicSet(samples=16, batch=8)
QUICK = "variates"  # A plug-in with a new kind of array: control variates.
METHODS = [name for name in with_own_arrays(names()) if (HOME / f"{name}.py").exists()]


class Recorder:
    """A recorder of the inputs and outputs of halves: some closed forms depend on their number of rows."""

    def __init__(self):
        self.records, self.asked = [], defaultdict(dict)

    def round_ended(self, record):
        self.records.append(record)

    def entry(self, what, details):
        pass

    def watch(self, half, device):
        honest = half.run

        def run(ask):
            seen = self.asked[device, half.number]
            answer = honest(ask)
            seen.setdefault("half", half)
            seen["asked"] = {name: ask.payload[name].clone() for name in ask.payload}
            seen["head"] = seen.get("head", False) or any(name.startswith("head.") for name in answer)
            for way, payload in (("up", answer), ("down", ask.payload)):
                if "prototypes" in payload:
                    seen[way] = seen.get(way, 0) + len(payload["prototypes"])
            seen.setdefault("ranks", {}).update(ranks_of(answer, half))
            return answer

        half.run = run
        return half


class Proxied(Federation):
    """A federation whose parties reach the broker through the proxy and note what their halves send."""

    seconds = 300

    def __init__(self, folder, proxy, federation, method, plugin="", codec="off"):
        known = method if not plugin else "fedavg"
        super().__init__(folder, None, federation, known)
        quick = {key: 1 for key in ("epochs", "server_epochs") if key in self.plan.hyper}
        hyper = {**self.plan.hyper, **quick}
        plan = replace(self.plan, network=Network("cnn_bn", feature_size=8), hyper=hyper)
        if plugin:
            hyper = {"epochs": 1, "batch": 8, "lr": 0.02}
            plan = replace(plan, method=method, hyper=hyper, plugins={"method": plugin})
        if plan.load().public:
            plan = replace(plan, public=PUBLIC)
        self.plan, self.proxy, self.recorder = plan.with_codec(codec), proxy, Recorder()
        self.plugins = (plugin,) if plugin else ()

    def at(self, name):
        return self.proxy.address(name)

    def data_of(self, i):
        return shard(i)

    def coordinator(self):
        service, inbox = super().coordinator()
        self.coordinators = inbox
        keep_journal(service.run, [self.recorder])
        return service, inbox

    def device(self, name, i):
        agent, inbox = super().device(name, i)
        data = self.data_of(i)

        def build(plan):
            return self.recorder.watch(plan.client_half(data.train, name, validation=data.validation), name)

        agent.tasks.runner.start_job = local_jobs(build, data)
        agent.tasks.runner.plugins = PlugIns((str(VARIATES),) * len(self.plugins), self.plugins)
        return agent, inbox


def closed_form(run):
    """Return the bytes of all training rounds.

    They are the bytes that go up from all devices, and the bytes that come down in one broadcast a phase.
    """
    up, down = Counter(), Counter()
    cost = run.plan.variant.cost
    for number in range(1, training_rounds(run) + 1):
        for i, device in enumerate(DEVICES):
            seen = run.recorder.asked[device, number]
            sizes = Sizes(
                seen["half"].model, held=CLASSES, examples=len(shard(i).train.y), clients=len(DEVICES),
                local_prototypes=seen.get("up", 0), global_prototypes=seen.get("down", 0),
                first_round=number == 1, last_rounds=seen["head"], ranks=seen["ranks"],
                public=PUBLIC.batches, mutual=getattr(seen["half"], "mutual", None),
            )  # fmt: skip
            crosses = cost(sizes)
            up.update(crosses.bytes_up)
        down.update(crosses.bytes_down)
    return {"up": dict(up), "down": dict(down)}


@contextmanager
def proxied(tmp_path, broker, federation, method, codec="off"):
    plugin = from_file(VARIATES, allowed=None)[0].sha256 if method == QUICK else ""
    with CountingProxy(broker.address) as proxy:
        run = Proxied(tmp_path, proxy, federation, method, plugin, codec)
        try:
            yield run.run(), proxy
        finally:
            run.close()


def metered(part, direction):
    return sum(n for (way, _), n in part.meter.wire.items() if way == direction)


def unread(inbox):
    """Return the bytes of frames that came after a party had ended, because it reads no more."""
    left = [inbox.get_nowait() for _ in range(inbox.qsize())]
    return sum(packet_bytes(item.topic, len(item.frame)) for item in left if isinstance(item, Arrived))


def demand_every_sent_byte(part, direction, sent):
    """Demand that the meter of a party agrees with the proxy.

    The meter counts a packet when it is handed over, so the last ones may still be on their way to the proxy.
    """
    deadline = time.monotonic() + 20
    while metered(part, direction) != sent():
        assert time.monotonic() < deadline, (metered(part, direction), sent())
        time.sleep(0.05)


def demand_every_received_byte(part, inbox, direction, received):
    """Demand that the meter of a party, with the unread frames, agrees with the proxy.

    The last packets may still be on their way.
    """
    rest, deadline = 0, time.monotonic() + 20
    while metered(part, direction) + (rest := rest + unread(inbox)) != received():
        assert time.monotonic() < deadline, (metered(part, direction), rest, received())
        time.sleep(0.05)


def demand_all_bytes(run, proxy):
    """Demand that the meters of all parties agree with the proxy, in both directions."""
    for name, agent in run.agents.items():
        demand_every_sent_byte(agent.link, "up", partial(proxy.total, name, "sent"))
        received = partial(proxy.total, name, "received")
        demand_every_received_byte(agent.link, run.inboxes[name], "down", received)
    demand_every_sent_byte(run.service.run.link, "down", partial(proxy.total, COORDINATOR, "sent"))
    # The coordinator's messages to all come back to it, and are not counted.
    received = partial(proxy.total, COORDINATOR, "received", without=run.topics.coord_state)
    demand_every_received_byte(run.service.run.link, run.coordinators, "up", received)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedproto", "fedpall", "fedplcc"])
def test_payload_and_control_bytes_cover_all_packets_with_a_codec(method, tmp_path, broker, federation):
    with proxied(tmp_path, broker, federation, method, "small") as (run, proxy):
        demand_all_bytes(run, proxy)
        for record in run.recorder.records:
            for way, kinds in record.payload.items():
                assert all(size <= record.wire[way][kind] for kind, size in kinds.items())
        assert not run.service.run.link.meter.rejected


@pytest.mark.parametrize(
    "method",
    [name if name == QUICK else pytest.param(name, marks=pytest.mark.slow) for name in (*METHODS, QUICK)],
)
def test_all_packets_are_counted_and_the_payload_equals_the_closed_form(method, tmp_path, broker, federation):
    with proxied(tmp_path, broker, federation, method) as (run, proxy):
        demand_all_bytes(run, proxy)
        *training, last = run.recorder.records
        found = {"up": Counter(), "down": Counter()}
        for record in training:
            for way, kinds in record.payload.items():
                found[way].update(kinds)
        assert {way: dict(kinds) for way, kinds in found.items()} == closed_form(run)
        final = run.service.run.server_runner.server.payload()
        # The last phase of FedPall has the same object.
        held = run.recorder.asked[DEVICES[0], training_rounds(run)]["asked"]
        same = held.keys() == final.keys() and all(torch.equal(held[name], w) for name, w in final.items())
        assert last.payload == {"up": {}, "down": {} if same else dict(bytes_by_kind(final))}
        assert len(training) == training_rounds(run)
