"""What is done on the worker's thread: from a plan to what it asks for, from a question to a durable answer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from protofleet.edge_client.pictures import save_picture
from protofleet.edge_client.state import Answer
from protofleet.methods.base import Ask, ClientHalf
from protofleet.methods.bridge import to_numpy, to_torch
from protofleet.methods.plan import Plan
from protofleet.methods.weights import place_of
from protofleet.protocol.link import Received
from protofleet.protocol.messages import Task
from protofleet.protocol.seal import COORDINATOR

if TYPE_CHECKING:
    from protofleet.edge_client.agent import Agent

log = logging.getLogger("protofleet.device")


class Watcher(Protocol):
    def happened(self, agent: Agent, what: str, **figures: float) -> None: ...


def build_up(agent: Agent, plan: Plan, run: str, epoch: int) -> ClientHalf:
    """The half that a plan asks for, as far as it had come before this process began."""
    agent.memory.begin(run, plan.digest.hex(), epoch)
    half = agent.build(plan)
    if (saved := agent.memory.half()) is not None:
        half.restore(to_torch(saved))
    lost = agent.memory.book.lost  # its round may be over, and nobody would ask for it
    if lost and (not lost.base or agent.memory.store.has(bytes.fromhex(lost.base))):
        task = Task(lost.round, lost.phase, None, 0.0)
        received = Received(COORDINATOR, task, run, agent.memory.book.epoch, bytes.fromhex(lost.base))
        again = work_out(agent, half, received, lost.question, plan.variant.reports)
        if again.object != lost.object:
            log.error("round %d %s, worked out again, is another answer than before", lost.round, lost.phase)
    return half


def work_out(agent: Agent, half: ClientHalf, received: Received, question: str, view: str) -> Answer:
    task, memory = received.message, agent.memory
    assert isinstance(task, Task)
    begun = agent.clock()
    arrays = memory.store.open(received.object) if received.object else {}
    place = place_of(half.model)
    ask = Ask(task.phase, {name: value.to(place) for name, value in to_torch(arrays).items()})
    payload, metrics = agent.train(half, agent.data, ask, task.round, view)
    if agent.pictures.wanted(task.round, task.phase):
        album, most = memory.folder / "pictures", agent.pictures.samples
        save_picture(album, most, task.round, half, agent.data, ask.payload, payload)
    name = memory.store.put(to_numpy(payload), agent.link.block).object.hex()
    metrics["seconds.work"] = agent.clock() - begun
    examples = len(agent.data.train.y)
    answer = Answer(question, task.round, task.phase, received.object.hex(), name, examples, metrics)
    memory.remember(answer, to_numpy(half.state()), received.epoch)
    return answer
