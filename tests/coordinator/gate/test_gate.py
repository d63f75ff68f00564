"""The gate decides from a message that offers an answer and from the state of the run."""

from dataclasses import replace

import pytest

from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.gate.gate import Contradiction, FetchAnswer, Gate, NotAsked, RefuseAnswer
from protofleet.coordinator.round.events import Advanced, Answered, Joined
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.round.policy import Policy
from protofleet.coordinator.spool.index import FencedError
from protofleet.coordinator.spool.spool import Accepted, Spool
from protofleet.methods.contract.base import Ask, Member
from protofleet.methods.contract.wants import TensorSpec
from protofleet.protocol.storage.disk import NoRoom
from protofleet.protocol.wire.messages import Update
from protofleet.protocol.wire.reasons import Problem, Reason, Rejected

BASE, NAME, OTHER = b"b" * 32, b"n" * 32, b"o" * 32
OFFER = Update("a", 1, "train", 5, BASE)
BROKEN = Problem(Reason.NOT_FINITE, "w is not finite")


class State:
    """A run that asks two devices to train; each method is an event that can happen after that."""

    def __init__(self, folder):
        self.folder, self.unwritten = folder, []
        self.spool = Spool(folder, durable=False)
        self.spool.start_run("spring", "{}", 1)
        self.machine = RoundMachine(Policy(quorum=2, settle_seconds=0.0), rounds=1)
        members = {device: Member(device, 5, ()) for device in "ab"}
        self.gate = Gate(CoordinatorLimits(), self.machine, self.spool, members, self, self.unwritten)
        for device in members:
            self.machine.handle(Joined(device), 0.0)

    def is_silent(self, device):
        return False

    def asked(self):
        self.machine.handle(Advanced("train", BASE), 0.0)
        self.gate.open(Ask("train", wants={"w": TensorSpec((10,))}), 2)

    def answered(self):
        self.asked()
        self.machine.handle(Answered("a", 1, "train", BASE), 1.0)
        self.spool.accept(1, "train", Accepted("a", BASE, NAME, 5, {}))

    def refused(self):
        self.asked()
        self.gate.refused("a", BROKEN)

    def the_disk_is_full(self):
        self.asked()
        self.unwritten.append("a command")

    def the_limit_is_reached(self):
        self.asked()
        self.gate.limits = CoordinatorLimits(answer_bytes=1, spool_bytes=1)

    def another_coordinator_took_over(self):
        self.asked()
        later = Spool(self.folder, durable=False)
        later.start_run("spring", "{}", 2)
        later.close()


@pytest.fixture
def state(tmp_path):
    state = State(tmp_path)
    yield state
    state.spool.close()


@pytest.mark.parametrize(
    "before, offer, size, name, decision",
    [
        (State.asked, OFFER, 40, NAME, FetchAnswer()),
        (State.asked, replace(OFFER, round=2), 40, NAME, NotAsked()),
        (State.asked, replace(OFFER, phase="align"), 40, NAME, NotAsked()),
        (State.asked, replace(OFFER, base=OTHER), 40, NAME, NotAsked()),
        (State.asked, replace(OFFER, device="c"), 40, NAME, NotAsked()),
        (lambda state: None, OFFER, 40, NAME, NotAsked()),
        (State.answered, OFFER, 40, NAME, NotAsked()),
        (State.answered, OFFER, 40, OTHER, Contradiction),
        (State.answered, replace(OFFER, base=OTHER), 40, OTHER, NotAsked()),
        (State.answered, replace(OFFER, device="b"), 40, OTHER, FetchAnswer()),
        (State.refused, OFFER, 40, NAME, RefuseAnswer(BROKEN)),
        (State.asked, OFFER, 1 << 20, NAME, Reason.TOO_LARGE),
        (State.asked, replace(OFFER, examples=6), 40, NAME, Reason.BAD_CLAIM),
        (State.asked, replace(OFFER, metrics={"accuracy.test": 2.0}), 40, NAME, Reason.BAD_CLAIM),
    ],
)
def test_the_decision_depends_on_the_message_and_the_state_of_the_run(
    state, before, offer, size, name, decision
):
    before(state)
    match state.gate.decide(offer, size, name), decision:
        case RefuseAnswer(problem), Reason():
            assert problem.reason is decision
        case Contradiction(problem), type():
            assert problem.reason is Reason.EQUIVOCATION
        case found, _:
            assert found == decision


@pytest.mark.parametrize(
    "before, error",
    [
        (State.the_disk_is_full, NoRoom),
        (State.the_limit_is_reached, Rejected),
        (State.another_coordinator_took_over, FencedError),
    ],
)
def test_the_gate_raises_if_the_device_may_offer_again_or_another_coordinator_leads(state, before, error):
    before(state)
    with pytest.raises(error) as raised:
        state.gate.decide(OFFER, 40, NAME)
    assert raised.type is error
