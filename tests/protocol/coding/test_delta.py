"""Tests of deltas: both sides decode the same bits for any number of steps, and rounding errors are sent later."""

import numpy as np
import pytest

from protofleet.protocol.coding.delta import (
    MAX_STEPS,
    apply_delta,
    body_of,
    bytes_of,
    encode_broadcast,
    join_steps,
)
from protofleet.protocol.coding.update import chance_of
from protofleet.protocol.settings.codec import CodecStage
from protofleet.protocol.wire.reasons import Reason, Rejected

TERNARY = CodecStage("ternary", "broadcast", keep=4)
STAGES = {
    "ternary": {"weights": TERNARY},
    "rice": {"weights": CodecStage("rice", "broadcast")},
    "stochastic": {"weights": CodecStage("int4", "broadcast", rounding="stochastic")},
    "no stage of weights": {"prototypes": CodecStage("uint4", pack=True)},
    "both": {"weights": TERNARY, "prototypes": CodecStage("int4")},
    "exact": {"weights": CodecStage(against="broadcast")},
}


def arrays(number):
    """Return a broadcast: a large and a small array, a count, prototypes, and an array that no stage codes."""
    dice = np.random.default_rng(number)
    return {
        "weights.net.weight": dice.normal(size=(40, 60)).astype(np.float32),
        "weights.net.bias": dice.normal(size=40).astype(np.float32),
        "weights.seen": np.array(number, np.int64),
        "prototypes": np.abs(dice.normal(size=(5, 8))).astype(np.float32),
        "labels": np.arange(5),
    }


def run(stages, count):
    """Return the exact arrays, the steps and the decoded bodies of a run's broadcasts."""
    exact, steps, bodies = [], [], []
    for number in range(count):
        made = arrays(number)
        reference = body_of(bodies[-1]) if bodies else None
        coded = encode_broadcast(made, stages, reference, chance_of(1, number))
        exact.append(made)
        steps.append(body_of(bytes_of(coded.step)))
        bodies.append(coded.decoded)
    return exact, steps, bodies


@pytest.mark.parametrize("stages", STAGES.values(), ids=list(STAGES))
@pytest.mark.parametrize("length", [1, 2, 3, MAX_STEPS])
def test_a_device_that_missed_rounds_decodes_the_same_bits(stages, length):
    _, steps, bodies = run(stages, length + 1)
    joined = body_of(bytes_of(join_steps(steps[1:])))
    assert apply_delta(joined, stages, body_of(bodies[0]), len(bodies[-1])) == bodies[-1]


@pytest.mark.parametrize("stages", STAGES.values(), ids=list(STAGES))
def test_a_device_without_a_broadcast_decodes_all_steps_from_the_first(stages):
    _, steps, bodies = run(stages, 4)
    joined = body_of(bytes_of(join_steps(steps)))
    assert apply_delta(joined, stages, None, len(bodies[-1])) == bodies[-1]


def test_exact_stages_decode_every_bit():
    exact, _, bodies = run(STAGES["exact"], 3)
    for made, body in zip(exact, bodies, strict=True):
        assert body == bytes_of(made)


def test_later_broadcasts_correct_the_rounding_errors_of_a_broadcast():
    """If the method's arrays do not change any more, the decoded arrays approach them."""
    stages, made = {"weights": TERNARY}, arrays(1)
    held, errors = body_of(bytes_of(arrays(0))), []
    for number in range(12):
        coded = encode_broadcast(made, stages, held, chance_of(number))
        held = body_of(coded.decoded)
        errors.append(float(np.abs(held["weights.net.weight"] - made["weights.net.weight"]).mean()))
    assert errors[-1] < 0.05 * errors[0]


BROKEN = {
    "a step is missing": (lambda made: {n: v for n, v in made.items() if n != "weights.~1"}, "with the steps [0, 2]"),
    "no step": (lambda made: {"labels": made["labels"]}, "with the steps []"),
    "a step beyond the last": (lambda made: {**made, "weights.~16": made["weights.~1"]}, "called 'weights.~16'"),
    "a step with another number": (lambda made: {**made, "weights.~01": made["weights.~1"]}, "called 'weights.~01'"),
    "a step that is cut short": (lambda made: {**made, "weights.~1": made["weights.~1"][:-1]}, ""),
    "steps in another order": (
        lambda made: {**made, "weights.~1": made["weights.~2"], "weights.~2": made["weights.~1"][:9]}, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_delta_is_rejected_with_its_reason(broken):
    change, words = BROKEN[broken]
    stages = STAGES["ternary"]
    _, steps, bodies = run(stages, 4)
    made = change(join_steps(steps[1:]))
    with pytest.raises(Rejected) as caught:
        apply_delta(body_of(bytes_of(made)), stages, body_of(bodies[0]), len(bodies[-1]))
    assert caught.value.reason is Reason.BAD_BODY and words in str(caught.value)


def test_a_delta_that_claims_too_many_bytes_is_rejected_before_they_are_unpacked():
    stages = {"weights": CodecStage("int8", "broadcast", pack=True)}
    zeros = {"weights.a": np.zeros((4096, 4096), np.int8)}
    coded = encode_broadcast(zeros, stages, None, chance_of(1))
    delta = body_of(bytes_of(coded.step))
    assert len(bytes_of(coded.step)) < 1 << 17
    with pytest.raises(Rejected) as caught:
        apply_delta(delta, stages, None, 1000)
    assert caught.value.reason is Reason.TOO_LARGE
