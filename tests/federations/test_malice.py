"""Liars among honest devices: every false message is counted under its reason, and changes no learned bit."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.round.events import Stage
from protofleet.protocol.security.keys import Keys
from protofleet.protocol.transport.base import Arrived
from protofleet.protocol.wire.reasons import Reason
from tests.support.few_methods import few
from tests.support.lying_device import KEY, add_liar, encoded, with_table
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import assert_same, simulation

POLICY = RunPolicy(rounds=2, quorum=3, cohort=0, patience_seconds=20.0, grace_seconds=3.0, settle_seconds=1.0)
METHOD = "fedproto"  # Its answers have values, labels and counts, and each of them can be false.
D = 16  # The width of the tiny network's embedding.


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """Return the run without a liar."""
    return simulation(tmp_path_factory.mktemp("honest"), METHOD, policy=POLICY).run()


def with_liar(folder, answers=None, limits=None, **more):
    run = simulation(folder, METHOD, policy=POLICY, limits=limits or CoordinatorLimits())
    liar = add_liar(run, answers=answers, **more)
    return run, liar


def reasons(run):
    return {reason for reason, number in run.service.run.link.meter.rejected.items() if number}


def good(n=3, d=None, **change):
    """Return an honest answer of this method, except for the given changes."""
    d = d or D
    return {
        "prototypes": np.zeros((n, d), np.float32),
        "labels": np.arange(n, dtype=np.int64),
        "counts": np.full(n, 5, np.int64),
        **change,
    }


def without(name):
    return {key: value for key, value in good().items() if key != name}


NAN, INF = np.full((3, D), np.nan, np.float32), np.full((3, D), -np.inf, np.float32)
LAST = np.zeros((3, D), np.float32)
LAST[-1, -1] = np.nan
ANSWERS = {
    "NaN": (good(prototypes=NAN), {}, Reason.NOT_FINITE),
    "infinity": (good(prototypes=INF), {}, Reason.NOT_FINITE),
    "one NaN at the end": (good(prototypes=LAST), {}, Reason.NOT_FINITE),
    "another dtype": (good(prototypes=np.zeros((3, D))), {}, Reason.WRONG_DTYPE),
    "counts as floats": (good(counts=np.ones(3, np.float32)), {}, Reason.WRONG_DTYPE),
    "another width": (good(d=D + 1), {}, Reason.WRONG_SHAPE),
    "flattened": (good(prototypes=np.zeros(3 * D, np.float32)), {}, Reason.WRONG_SHAPE),
    "one label too few": (good(labels=np.arange(2)), {}, Reason.WRONG_SHAPE),
    "more rows than classes": (good(4), {}, Reason.WRONG_SHAPE),
    "nothing": ({}, {}, Reason.WRONG_ARRAYS),
    "no counts": (without("counts"), {}, Reason.WRONG_ARRAYS),
    "an additional array": (good(more=np.zeros(1, np.int8)), {}, Reason.WRONG_ARRAYS),
    "an unknown class": (good(labels=np.array([0, 1, 3])), {}, Reason.OUT_OF_BOUNDS),
    "a negative class": (good(labels=np.array([0, -1, 2])), {}, Reason.OUT_OF_BOUNDS),
    "a negative count": (good(counts=np.array([5, -5, 5])), {}, Reason.OUT_OF_BOUNDS),
    "a count that is too large": (good(counts=np.array([5, 2**31 - 1, 5])), {}, Reason.BAD_CLAIM),
    "counts that wrap around": (good(counts=np.array([2**62, 2**62, 2**62])), {}, Reason.OUT_OF_BOUNDS),
    "examples that are too many": (good(), {"examples": 2**40}, Reason.BAD_CLAIM),
    "one example more than it stated": (good(), {"examples": 49}, Reason.BAD_CLAIM),
    "accuracy of 700 percent": (good(), {"metrics": {"accuracy.test.global": 7.0}}, Reason.BAD_CLAIM),
    "a metric with an invalid name": (good(), {"metrics": {"roses are\nred": 0.5}}, Reason.BAD_CLAIM),
    "too many seconds": (good(), {"metrics": {"seconds.work": 1e300}}, Reason.BAD_CLAIM),
    "joules below zero": (good(), {"metrics": {"joules.train": -1.0}}, Reason.BAD_CLAIM),
    "a board below absolute zero": (good(), {"metrics": {"celsius.hottest": -274.0}}, Reason.BAD_CLAIM),
    "a board that is too hot": (good(), {"metrics": {"celsius.hottest": 5500.0}}, Reason.BAD_CLAIM),
    "too many joules": (good(), {"metrics": {"joules.send": 1e300}}, Reason.BAD_CLAIM),
    "a table that promises more": (with_table([["prototypes", "float32", [3, D]]]), {}, Reason.BAD_BODY),
    "bytes behind the arrays": (encoded(good()) + b"x", {}, Reason.BAD_BODY),
    "no table at all": (b"", {}, Reason.BAD_BODY),
    "an inline body of 49 KiB": (bytes(49 << 10), {}, Reason.TOO_LARGE),
    "more bytes than the task allows": ("too large", {}, Reason.TOO_LARGE),
    "a gigabyte": (
        [b"x" * 32, 1 << 30, 1 << 18, b"h" * 16 * 4096, [["features", 1 << 30]], KEY], {}, Reason.TOO_LARGE,
    ),
    "blocks that are not sealed": (
        [b"x" * 32, 8, 8, b"h" * 16, [["features", 8]]], {}, Reason.NOT_SEALED,
    ),
    "a terabyte": ([b"x" * 32, 1 << 40, 1 << 28, b"h" * 16 * 4096, [["features", 1 << 40]]], {}, Reason.MALFORMED),
    "arrays that are missing": (None, {}, Reason.MALFORMED),
    "examples below zero": (good(), {"examples": -1}, Reason.MALFORMED),
    "kinds that the body does not have": ("kinds", {}, Reason.BAD_BODY),
    "blocks of another object": ("blocks", {}, Reason.BAD_BODY),
}  # fmt: skip


def told(lie, fields):
    def answers(liar, place):
        body = lie
        if place[1] != "train":
            return
        if lie == "too large":
            body = liar.offer(encoded(good(more=np.zeros(1 << 16, np.int8))))
        elif lie == "kinds":
            parts = [["control", len(encoded(good()))]]
            body = liar.offer(encoded(good()), 100, parts)
        elif lie == "blocks":
            body = [b"?" * 32, *liar.offer(encoded(good()), 100)[1:]]
            liar.serves[b"?" * 32] = (encoded(good()), 100)
        liar.update(place, body, **fields)

    return answers


@pytest.mark.parametrize("named", few(ANSWERS, 3))
def test_a_false_answer_is_counted_and_changes_no_bit(tmp_path, honest, named):
    lie, fields, reason = ANSWERS[named]
    run, liar = with_liar(tmp_path, told(lie, fields))
    run.run(until=lambda: bool(liar.verdicts()) or run.service.finished)
    assert not run.service.run.spool.store("liar").names(), "no file of the answer is left"
    assert not list((tmp_path / "coordinator" / "updates" / "liar").glob("*"))
    run.run()
    assert reasons(run) == {reason}
    assert not [verdict for verdict, _ in liar.verdicts() if verdict == "accepted"]
    assert run.service.finished
    assert_same(honest, run)


def test_an_honest_answer_of_the_test_liar_is_accepted(tmp_path):
    run, liar = with_liar(tmp_path, told(good(), {"metrics": {"loss.test.global": float("nan")}}))
    run.run()
    assert not reasons(run) and ("accepted", "") in liar.verdicts()


HELLOS = {
    "another number of classes": ({"classes": 7}, Reason.UNFIT),
    "a later protocol": ({"protocol": [2, 3]}, Reason.UNFIT),
    "counts of other classes": ({"counts": [24, 24]}, Reason.UNFIT),
    "a domain that is too long": ({"domain": "x" * 65}, Reason.UNFIT),
    "a domain with control characters": ({"domain": "\x1b[2J"}, Reason.UNFIT),
    "too many examples": ({"examples": 10**9}, Reason.BAD_CLAIM),
    "the largest number of examples": ({"examples": 2**63 - 1}, Reason.BAD_CLAIM),
    "counts that do not add up": ({"counts": [16, 16, 17]}, Reason.BAD_CLAIM),
    "an integer that is too large": ({"examples": 2**64 - 1}, Reason.MALFORMED),
}


@pytest.mark.parametrize(("hello", "reason"), HELLOS.values(), ids=HELLOS)
def test_a_device_with_a_false_hello_does_not_take_part(tmp_path, honest, hello, reason):
    run, liar = with_liar(tmp_path, hello=hello)
    run.run()
    assert reasons(run) == {reason} and "liar" not in run.service.run.participants.members
    assert (reason is Reason.MALFORMED) != any(kind == "refusal" for kind, _ in liar.heard)
    assert_same(honest, run)


def test_an_answer_above_the_limit_is_rejected_whatever_examples_the_hello_states(tmp_path):
    limits = CoordinatorLimits(examples=1_000_000, answer_bytes=20_000)
    run = simulation(tmp_path, "fedpall", policy=replace(POLICY, rounds=1), limits=limits)

    def too_much(liar, place):
        body = bytes(20_001)
        liar.update(place, liar.offer(body, parts=[["weights", len(body)]]))

    add_liar(run, examples=1_000_000, answers=too_much)
    run.run()
    assert run.service.finished and reasons(run) == {Reason.TOO_LARGE}


def two_answers(liar, place):
    if place[1] == "train":
        liar.update(place, good())
        liar.clock.call_at(
            liar.clock.now + 2.0, lambda: liar.update(place, good(prototypes=np.ones((3, D), np.float32)))
        )


def test_a_second_answer_to_a_task_is_equivocation_and_the_first_is_used(tmp_path):
    one, _ = with_liar(tmp_path / "one", told(good(), {}))
    two, liar = with_liar(tmp_path / "two", two_answers)
    liar.clock = two.clock
    for run in (one, two):
        for agent in run.agents:  # The round is then still open when the second answer comes.
            run.workers[agent].seconds = 3.0
        run.run()
    assert reasons(two) == {Reason.EQUIVOCATION}
    assert ("accepted", "") in liar.verdicts() and any(v == "refused" for v, _ in liar.verdicts())
    assert_same(one, two)


def frames(liar, run):
    """Return false frames below the level of messages, each with its reason and topic."""
    other = Keys.new()
    up = run.topics.up("liar")
    in_name = liar.frame("hello", {}, sender="device-0")
    liar.keys, mine = other, liar.keys
    forged = liar.frame("hello", {})
    liar.keys = mine
    ring, liar.keyring = liar.keyring, {"coordinator": other.public}
    to_another = liar.frame("bye", {})
    liar.keyring = ring
    answer = {"examples": 1, "metrics": {}, "arrays": encoded(good())}
    base, say = run.service.run.machine.base, liar.frame
    too_much = say("hello", bytes((1 << 20) + 1))
    return [
        (Reason.MALFORMED, up, b"PF\x01\xff\xff" + bytes(100)),
        (Reason.MALFORMED, up, b""),
        (Reason.MALFORMED, up, say("task", {"broadcast": None, "seconds": 1})),
        (Reason.MALFORMED, up, say("bye", {"reason": "x"}, 1 << 63)),
        (Reason.MALFORMED, up, say("update", answer, 1 << 63, "train")),
        (Reason.MALFORMED, up, say("nonsense", {})),
        (Reason.VERSION, up, say("hello", {}, major=2)),
        (Reason.UNKNOWN_SENDER, run.topics.up("nobody"), say("hello", {}, sender="nobody")),
        (Reason.BAD_SIGNATURE, up, forged),
        (Reason.BAD_SIGNATURE, run.topics.up("device-0"), in_name),
        (Reason.WRONG_TOPIC, run.topics.up("device-0"), say("hello", {})),
        (Reason.WRONG_TOPIC, up, say("state", {"online": False})),
        (Reason.WRONG_FEDERATION, up, say("hello", {}, federation="elsewhere")),
        (Reason.TOO_LARGE, up, say("hello", bytes(2 << 20))),
        (Reason.TOO_LARGE, up, too_much),
        (Reason.NOT_SEALED, up, say("hello", {}, suite=0)),
        (Reason.NOT_FOR_US, up, to_another),
        (Reason.STALE_BOOT, up, say("bye", {"reason": "x"}, boot=0)),
        (Reason.UNKNOWN_OBJECT, up, b"PF\x02" + bytes(16) + bytes(4) + b"data"),
        (Reason.NOT_INVITED, up, say("update", answer, 2, "train", base)),
        (Reason.NOT_INVITED, up, say("want", {"object": base, "ranges": [0, 1]})),
        (Reason.LATE, up, say("update", answer, 7, "train")),
    ]


def test_each_false_frame_is_counted_once_under_its_reason(tmp_path, honest):
    """The liar comes after the draw of the cohort: it is enrolled, and gets no task."""
    run = simulation(tmp_path, METHOD, policy=replace(POLICY, cohort=3, rounds=2))
    run.run(until=lambda: run.service.run.machine.round == 2 and run.service.run.machine.asked == "train")
    liar = add_liar(run)
    run.run(until=lambda: liar.plan != b"")
    assert run.service.run.machine.stage is Stage.COLLECTING
    meter = run.service.run.link.meter
    for reason, topic, frame in frames(liar, run):
        before = Counter(meter.rejected)
        run.service.take(Arrived(topic, frame), run.clock.now)
        assert meter.rejected - before == Counter({reason: 1}), (reason, topic)
    run.broker.clients.pop("liar")
    run.service.run.machine.roster.discard("liar")
    run.run()
    assert run.service.finished
    assert_same(honest, run)
