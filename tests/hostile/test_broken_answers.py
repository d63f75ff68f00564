"""A signed answer to the open task counts as an answer, even if it is unreadable.

The coordinator refuses it, counts it once and does not wait for another one.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from protofleet.coordinator.round.policy import Policy
from tests.hostile import wire
from tests.hostile.device import Answer, honest
from tests.hostile.federation import Federation

PATIENCE_SECONDS = 300.0


def offered(entry, value, body=wire.EMPTY):
    """Return work whose answer is a manifest with one changed entry."""

    def work(task):
        offer = wire.manifest(body)
        offer[entry] = value(offer[entry]) if callable(value) else value
        return Answer(offer)

    return work


def without_a_key(task):
    return Answer(wire.manifest(wire.EMPTY)[:5])


def huge(task):
    size, block = 2 << 30, 1 << 20
    return Answer([bytes(32), size, block, bytes(16 * (size // block)), [["weights", size]], bytes(32)])


def inline(data):
    return lambda task: Answer(data)


BROKEN = {
    "garbage": (inline(b"\xff" * 64), "bad_body"),
    "no-table": (inline(b""), "bad_body"),
    "no-arrays": (inline(None), "malformed"),
    "a-number": (inline(7), "malformed"),
    "metrics": (lambda task: Answer(fields={"metrics": [1]}), "malformed"),
    "examples": (lambda task: Answer(examples=-1), "malformed"),
    "numbers": (lambda task: Answer(fields={"metrics": {"loss": "low"}}), "malformed"),
    "parts": (offered(4, [["weights", 1]]), "malformed"),
    "kinds": (offered(4, [["gold", len(wire.EMPTY)]]), "malformed"),
    "hashes": (offered(3, bytes(32)), "malformed"),
    "blocks": (offered(2, 0), "malformed"),
    "long": (inline(bytes(60_000)), "too_large"),
    "huge": (huge, "too_large"),
    "no-key": (without_a_key, "not_sealed"),
    "open": (lambda task: Answer(task.body, header={"suite": 0}), "not_sealed"),
}


@dataclass
class Story:
    code: int
    seconds: float
    rounds: list
    verdicts: dict
    log: str


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """Run all broken answers at once together with one honest device, without a deadline for stragglers."""
    names = list(BROKEN)
    policy = Policy(
        quorum=1, gather=len(names) + 1, patience_seconds=PATIENCE_SECONDS, straggler_factor=0.0,
        settle_seconds=120.0, grace_seconds=0.2,
    )  # fmt: skip
    with Federation(tmp_path_factory.mktemp("broken"), "honest", *names, rounds=1, policy=policy) as f:
        coordinator, began = f.coordinator(), time.monotonic()
        f.raw("honest")
        # With 15 s between repeats, each answer is sent and counted once, also on a busy machine.
        devices = {name: f.raw(name, BROKEN[name][0], again=15.0) for name in names}
        code, seconds = f.wait_for_end(coordinator, 120), time.monotonic() - began
        verdicts = {name: device.verdicts() for name, device in devices.items()}
        return Story(code, seconds, f.rounds(), verdicts, f.log_of(coordinator))


def test_no_phase_waits_for_a_device_with_an_unreadable_answer(finished_run):
    assert finished_run.code == 0 and "Traceback" not in finished_run.log, finished_run.log[-2000:]
    assert [line["round"] for line in finished_run.rounds] == [
        1,
        2,
    ] and finished_run.seconds < PATIENCE_SECONDS / 2


@pytest.mark.parametrize("name", BROKEN)
def test_an_unreadable_answer_is_refused_with_its_reason(finished_run, name):
    assert {verdict for verdict, _ in finished_run.verdicts[name]} == {"refused"}
    assert all(words.startswith(f"{BROKEN[name][1]}: ") for _, words in finished_run.verdicts[name])


def test_each_unreadable_answer_is_counted_once_under_its_reason(finished_run):
    expected = Counter(reason for _, reason in BROKEN.values())
    assert [line["rejected"] for line in finished_run.rounds] == [expected, expected], (
        "there is one task in each round"
    )


def with_manifest_object(box, size):
    """Return an answer that names this object as the place of its manifest."""
    return Answer(fields={"arrays": None, "manifest": [bytes([7]) * 32, size, bytes([1]) * 32, box]})


def test_an_answer_whose_manifest_object_contains_no_manifest_is_refused(tmp_path):
    policy = Policy(
        quorum=1, gather=3, patience_seconds=PATIENCE_SECONDS, straggler_factor=0.0, settle_seconds=120.0
    )
    with Federation(tmp_path, "one", "earlier", "new", rounds=2, policy=policy) as f:
        coordinator, bodies = f.coordinator(), []

        def names_a_stored_object(task):
            bodies.append(task.body)
            return (
                honest(task)
                if task.place[:2] != (2, "train")
                else with_manifest_object(wire.manifest(bodies[0]), 1000)
            )

        def names_a_new_object(task):
            if task.place[:2] != (2, "train"):
                return honest(task)
            return with_manifest_object(new.offer(wire.body({"manifest": np.zeros(9, np.uint8)})), 1000)

        one, earlier = f.raw("one"), f.raw("earlier", names_a_stored_object, again=0.5)
        new = f.raw("new", names_a_new_object, again=0.5)
        assert f.wait_for_end(coordinator, PATIENCE_SECONDS / 2) == 0, f.last_words()
        assert {v for v, _ in one.verdicts()} == {"accepted"}
        for device in (earlier, new):
            assert ("refused", 2) in {
                (h.fields["verdict"], h.header["round"]) for h in device.heard if h.kind == "receipt"
            }
        assert [line["participants"] for line in f.rounds()[:2]] == [["earlier", "new", "one"], ["one"]]
        assert f.rounds()[1]["rejected"] == {"malformed": 2}
