"""Each mistake of a device is refused, counted and logged; the run continues during it, and after a restart."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest

from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.round.policy import Policy
from protofleet.protocol.wire.reasons import Reason
from tests.hostile.device import Answer, Device, honest
from tests.hostile.federation import Federation
from tests.hostile.lies import LIES, Lie, leave

SCARCE = {Reason.NO_ROOM}  # Tested alone: if there is no room, other reasons are not found.
TOGETHER = {reason: lie for reason, lie in LIES.items() if reason not in SCARCE}
ASKED = {reason: lie for reason, lie in TOGETHER.items() if lie.asked}
COUNTED = {reason for reason, lie in TOGETHER.items() if lie.counted}
REFUSED = {  # A device repeats such an answer to the next coordinator.
    Reason.BAD_BODY, Reason.TOO_LARGE, Reason.BAD_CLAIM, Reason.WRONG_ARRAYS, Reason.WRONG_DTYPE, Reason.WRONG_SHAPE,
    Reason.NOT_FINITE, Reason.OUT_OF_BOUNDS,
}  # fmt: skip


@dataclass
class Story:
    rounds: list[dict[str, Any]]
    code: int
    first: dict[Reason, float]  # The counts of the first coordinator, by reason.
    second: dict[Reason, float]
    log: str
    dropped: set[str]  # The devices that the events call dropped.
    verdicts: dict[Reason, list[tuple[str, str]]]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """Run all lies in round 1 with two coordinators; an honest device keeps this round open.

    The first coordinator is killed, and the next one gets the lies too. All tests share this run, because
    the processes take most of the time.
    """
    policy = Policy(quorum=1, gather=len(ASKED) + 1, grace_seconds=0.5, patience_seconds=40.0)
    names = ["honest", *(reason.value for reason in TOGETHER)]
    with Federation(tmp_path_factory.mktemp("lies"), *names, rounds=2, policy=policy) as f:
        first, lied = f.coordinator(), threading.Event()
        neighbour = f.raw("honest", lambda task: honest(task) if lied.is_set() else None)
        liars = {reason: liar(f, reason, lie, lied) for reason, lie in ASKED.items()}
        outsiders(f, neighbour)
        before = counted(f, COUNTED)
        first.kill()
        second = f.coordinator()
        after = counted(f, REFUSED)
        lied.set()
        for device in liars.values():
            if device.answered:  # It would repeat the same answer to the same task without end.
                leave(device)
        code = f.wait_for_end(second)
        dropped = {event["device"] for event in f.events("dropped")}
        log = f.log_of(first) + f.log_of(second)
        return Story(
            f.rounds(), code, before, after, log, dropped, {r: d.verdicts() for r, d in liars.items()}
        )


def liar(f: Federation, reason: Reason, lie: Lie, lied: threading.Event) -> Device:
    made = f.raw(reason.value, lambda task: None, hello=lie.hello)
    made.work = lambda task: honest(task) if lied.is_set() else lie.work(made, task)
    return made


def outsiders(f: Federation, neighbour: Device) -> None:
    """Start the devices that have no task.

    One does not fit, and one sends an answer that the coordinator did not ask for.
    """
    unfit = LIES[Reason.UNFIT]
    f.raw(Reason.UNFIT.value, hello=unfit.hello)
    uninvited = f.raw(Reason.NOT_INVITED.value, says_hello=False)
    heard = neighbour.wait("task")
    place = heard.header["round"], heard.header["phase"], heard.fields["broadcast"][0]
    uninvited.wait("state")
    uninvited.answer(place, Answer())


def counted(f: Federation, reasons: set[Reason]) -> dict[Reason, float]:
    """Return the counts of a coordinator as soon as it has counted all of these reasons."""
    found: dict[Reason, float] = {}

    def look() -> bool:
        metrics = f.metrics()
        found.update({r: metrics[f'protofleet_rejected_total{{reason="{r.value}"}}'] for r in Reason})
        return all(found[reason] for reason in reasons)

    try:
        f.wait_until(lambda: f.answers() and look(), "every lie to be counted")
    except AssertionError as error:
        raise AssertionError(f"never counted: {[r.value for r in reasons if not found.get(r)]}") from error

    return found


def test_there_is_a_lie_for_each_reason():
    assert set(LIES) == set(Reason)


@pytest.mark.parametrize("reason", sorted(COUNTED))
def test_each_wrong_behaviour_is_counted_under_its_reason(finished_run, reason):
    assert finished_run.first[reason] > 0


@pytest.mark.parametrize("reason", sorted(REFUSED))
def test_a_refused_answer_is_refused_again_by_the_next_coordinator(finished_run, reason):
    assert finished_run.second[reason] > 0 and reason.value in finished_run.dropped
    assert {verdict for verdict, _ in finished_run.verdicts[reason]} == {"refused"}
    assert finished_run.rounds[0]["dropped"][reason.value] in {
        words for _, words in finished_run.verdicts[reason]
    }


@dataclass
class Scarce:
    code: int
    first: float
    second: float
    rounds: list[dict[str, Any]]
    verdicts: list[tuple[str, str]]
    log: str


@pytest.fixture(scope="module")
def scarce(tmp_path_factory):
    """Run three devices with room for two answers; the liar offers first and sends nothing."""
    size = 28_000  # A little more than the bytes of an answer.
    limits = CoordinatorLimits(answer_bytes=size, spool_bytes=2 * size)
    policy = Policy(quorum=2, gather=3, patience_seconds=120.0, straggler_factor=0.0)
    reason, lie = Reason.NO_ROOM, LIES[Reason.NO_ROOM]
    names = (reason.value, "b", "c")
    with Federation(tmp_path_factory.mktemp("scarce"), *names, rounds=1, policy=policy, limits=limits) as f:
        first, lied, last = f.coordinator(), threading.Event(), threading.Event()
        liar = f.raw(reason.value, lambda task: lie.work(liar, task))
        b = f.raw("b", lambda task: honest(task) if lied.is_set() else None)
        c = f.raw("c", lambda task: honest(task) if last.is_set() else None)
        liar.wait("want")
        lied.set()
        b.wait("receipt")
        last.set()
        c.wait("receipt")
        before = counted(f, {reason})[reason]
        first.kill()
        second = f.coordinator()
        after = counted(f, {reason})[reason]
        leave(liar)
        code, log = f.wait_for_end(second), f.log_of(first) + f.log_of(second)
        return Scarce(code, before, after, f.rounds(), liar.verdicts(), log)


def test_an_offer_without_room_is_counted_with_its_reason_by_both_coordinators(scarce):
    assert scarce.first > 0 and scarce.second > 0 and SCARCE | set(TOGETHER) == set(Reason)
    assert not [verdict for verdict, _ in scarce.verdicts if verdict == "refused"], (
        "the device may send the offer again"
    )


def test_a_run_without_room_for_one_answer_finishes(scarce):
    assert scarce.code == 0 and "Traceback" not in scarce.log, scarce.log[-2000:]
    assert [line["participants"] for line in scarce.rounds] == [["b", "c"], ["b", "c"]]


def test_a_run_with_all_lies_finishes(finished_run):
    assert finished_run.code == 0, finished_run.log[-2000:]
    assert "Traceback" not in finished_run.log
    assert [line["round"] for line in finished_run.rounds] == [1, 2, 3]
    refused = {reason.value for reason in REFUSED}
    # A round ends half a second after its first answer, so some devices may be missing in it.
    for line in finished_run.rounds:
        assert line["participants"] and not refused & set(line["participants"])
