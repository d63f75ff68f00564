"""What is done on the worker's thread: from a plan to what it asks for, from a question to a durable answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from protofleet.edge_client.evaluate import Splits
from protofleet.edge_client.pictures import Pictures, save_picture
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.file import Answer
from protofleet.edge_client.trainer.work import Build, Work
from protofleet.methods.contract.base import Ask, ClientHalf
from protofleet.methods.contract.bridge import to_numpy, to_torch
from protofleet.methods.contract.plan import Plan
from protofleet.methods.parts.weights import place_of
from protofleet.protocol.link.base import Received
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.wire.messages import Task
from protofleet.protocol.wire.names import COORDINATOR

log = logging.getLogger("protofleet.device")


class Workbench(Protocol):
    """What work needs. All of it is the worker's while it works."""

    @property
    def state(self) -> DeviceState: ...

    @property
    def data(self) -> Splits: ...

    @property
    def link(self) -> DeviceLink: ...

    @property
    def pictures(self) -> Pictures: ...

    @property
    def build(self) -> Build: ...

    @property
    def train(self) -> Work: ...

    @property
    def clock(self) -> Callable[[], float]: ...


def build_up(bench: Workbench, plan: Plan, run: str, epoch: int) -> ClientHalf:
    """The half that a plan asks for, as far as it had come before this process began."""
    bench.state.begin(run, plan.digest.hex(), epoch)
    half = bench.build(plan)
    if (saved := bench.state.half()) is not None:
        half.restore(to_torch(saved))
    lost = bench.state.saved.lost  # its round may be over, and nobody would ask for it
    if lost and (not lost.base or bench.state.store.has(bytes.fromhex(lost.base))):
        task = Task(lost.round, lost.phase, None, 0.0)
        received = Received(COORDINATOR, task, run, bench.state.saved.epoch, bytes.fromhex(lost.base))
        again = work_out(bench, half, received, lost.question, plan.variant.reports)
        if again.object != lost.object:
            log.error("round %d %s, worked out again, is another answer than before", lost.round, lost.phase)
    return half


def work_out(bench: Workbench, half: ClientHalf, received: Received, question: str, view: str) -> Answer:
    task, state = received.message, bench.state
    assert isinstance(task, Task)
    begun = bench.clock()
    arrays = state.store.open(received.object) if received.object else {}
    place = place_of(half.model)
    ask = Ask(task.phase, {name: value.to(place) for name, value in to_torch(arrays).items()})
    payload, metrics = bench.train(half, bench.data, ask, task.round, view)
    if bench.pictures.wanted(task.round, task.phase):
        album, most = state.folder / "pictures", bench.pictures.samples
        save_picture(album, most, task.round, half, bench.data, ask.payload, payload)
    name = state.store.put(to_numpy(payload), bench.link.block).object.hex()
    metrics["seconds.work"] = bench.clock() - begun
    examples = len(bench.data.train.y)
    answer = Answer(question, task.round, task.phase, received.object.hex(), name, examples, metrics)
    state.remember(answer, to_numpy(half.state()), received.epoch)
    return answer
