"""Tests that no server half raises an error or works for ever on answers that pass the wants of an ask."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace

import pytest
from torch import Tensor

from protofleet.methods.contract.base import Reply, ServerHalf
from protofleet.methods.contract.catalog import load, names
from protofleet.methods.contract.plan import Network
from protofleet.methods.parts.state import snapshot
from tests.methods.extremes import any_answer, any_member, any_settings
from tests.methods.tiny import same
from tests.support.few_methods import of_each_shape
from tests.support.small_federation import CLASSES, plan

METHODS = of_each_shape(names())
MOST = 40  # Most examples of a device.
SECONDS = 20.0  # Most seconds of a round on a shared machine; a round usually takes some hundredths.
KNOWN = {"init_steps": 5, "server_epochs": 3, "server_steps": 3}
DRAWS = 12
DEFAULT_NORM = 1e6  # The default norm of protofleet.coordinator.devices.limits.CoordinatorLimits.


def plan_for(method, dice):
    made = load(method).Hyper.__dataclass_fields__
    known = {name: value for name, value in KNOWN.items() if name in made}
    network = dice.choice((Network("mlp"), Network("cnn_bn", feature_size=8)))
    return replace(plan(method, **any_settings(load(method), dice, known)), network=network)


def replies_to(ask, members, dice, norm):
    """Return answers of the members, all from the same draws or each from its own, that the wants accept."""
    state, alike = dice.getstate(), dice.random() < 0.3
    found = []
    for member in members:
        if alike:
            dice.setstate(state)
        payload = any_answer(ask, member, dice, norm)
        if ask.problem_with(payload, member.examples, norm) is None:
            found.append(Reply(member.device, dice.choice((0, member.examples)), payload))
    return found


def play_a_round(server: ServerHalf, number: int, dice: random.Random, norm: float) -> int:
    """Play a round with random answers and return how many answers the wants accepted."""
    members = [any_member(name, CLASSES, dice, MOST) for name in ("a", "b", "c")[: dice.randint(1, 3)]]
    server.begin(number, members)
    story, good = server.round(), 0
    ask = next(story)
    while replies := replies_to(ask, members, dice, norm):
        good += len(replies)
        try:
            ask = story.send(replies)
        except StopIteration:
            break
    return good


@pytest.mark.parametrize("norm", [DEFAULT_NORM, math.inf], ids=["the default norm", "no norm"])
@pytest.mark.parametrize("method", METHODS)
def test_no_accepted_answer_makes_a_server_half_raise_or_hang(method, norm):
    good = 0
    for seed in range(DRAWS):
        dice = random.Random(f"{method}/{seed}")
        made = plan_for(method, dice)
        server = made.server_half()
        for number in (1, 2, 3):
            begun = time.monotonic()
            good += play_a_round(server, number, dice, norm)
            assert all(isinstance(value, float) for value in server.monitor().values())
            assert time.monotonic() - begun < SECONDS, f"seed {seed}"
            again = made.server_half()
            again.restore(snapshot(server.state()))
            assert same_bits(again.state(), server.state()), f"seed {seed}"
            server = again
    assert good > 2 * DRAWS, "most answers must be accepted, or the test shows nothing"


@pytest.mark.parametrize("method", METHODS)
def test_extreme_answers_within_the_default_norm_leave_a_finite_state(method):
    for seed in range(DRAWS):
        dice = random.Random(f"{method}/finite/{seed}")
        server = plan_for(method, dice).server_half()
        play_a_round(server, 1, dice, DEFAULT_NORM)
        bad = [name for name, value in server.state().items() if not value.isfinite().all()]
        assert not bad, f"seed {seed}"


def same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Return whether two states are equal; NaN counts as equal to NaN."""
    return same(
        *({name: value.nan_to_num(12345.0) for name, value in state.items()} for state in (one, other))
    )
