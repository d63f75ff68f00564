"""Estimate the bytes that one board sends, receives and writes in a day of a run.

The estimate uses the method's formula for the bytes of a round, and the pace of the rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.round.pace import hours_of
from protofleet.coordinator.round.policy import Policy
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.contract.overview import NoSamples
from protofleet.methods.contract.public import PublicSet

WIRE: Final = 1.1  # Bytes of all packets, divided by the bytes of the arrays in them.
TALK: Final = 1_500.0  # Bytes per round, in each direction, of the messages without arrays.
# Bytes written to a board's disk, divided by the bytes of the files. In a round with the network
# cnn23 (0.25 MB), a device writes 1.04 MB with FedAvg and 0.83 MB with FedProto, according to /proc/PID/io.
FLASH: Final = 1.05
NOTES: Final = 50_000.0  # Bytes that a device writes in a round for model cards and for its own records.
DAY_SECONDS: Final = 86_400.0
MB: Final = 1e6


@dataclass(frozen=True, slots=True)
class RoundBytes:
    """The bytes that one board sends, receives and writes to its disk in a round with a task for this board."""

    up: float
    down: float
    flash: float


def bytes_of_round(settings: CoordinatorSettings) -> RoundBytes | None:
    """Return the bytes of one round, or None if the method has no formula for its cost.

    Bytes that depend on a board's samples, such as features, are not counted.
    """
    plan = settings.plan()
    cost_of = plan.variant.cost
    if cost_of is None:
        return None
    half = plan.client_half(NoSamples(), "")
    cost = cost_of(Sizes(half.model, held=plan.classes, public=PublicSet().batches))
    up, down = (sum(way.values()) for way in (cost.bytes_up, cost.bytes_down))
    kept, model = bytes_in(half.state()), bytes_in(half.model.state_dict())
    # A device writes the broadcast, the update, the state of its half of the method, its own model, and the
    # served version of the model.
    written = up + down + kept + 2 * model
    return RoundBytes(WIRE * up + TALK, WIRE * down + TALK, FLASH * written + NOTES)


def bytes_in(tensors: Mapping[str, Tensor]) -> int:
    return sum(value.nbytes for value in tensors.values())


def most_rounds_a_day(policy: Policy) -> float:
    """Return the largest possible number of rounds in a day; infinity if the policy has no pause."""
    if not policy.pause_seconds:
        return math.inf
    hours = hours_of(policy.hours)
    seconds = DAY_SECONDS if hours is None else 60.0 * ((hours.end - hours.start) % (24 * 60))
    return float(math.ceil(seconds / policy.pause_seconds))


def pause_for(flash_a_day: float, a_round: RoundBytes) -> float:
    """Return the shortest pause with which a board writes at most `flash_a_day` bytes in a day.

    The result is in seconds, and a multiple of 60.
    """
    rounds = max(1, math.floor(flash_a_day / a_round.flash))
    return 60.0 * math.ceil(DAY_SECONDS / rounds / 60.0)


def describe_bytes(settings: CoordinatorSettings, has_queue: bool = False) -> str:
    """Describe the bytes of a board in one line, for `deploy plan` and `deploy doctor`."""
    if has_queue:
        return (
            "bytes of a board: unknown, because they depend on the runs that are submitted to the coordinator"
        )
    a_round = bytes_of_round(settings)
    if a_round is None:
        return (
            f"bytes of a board: unknown, because the method {settings.method.get('name', '')} states no cost"
        )
    rounds = most_rounds_a_day(settings.policy)
    if rounds == math.inf:
        words = f"not paced: {_parts(a_round, 1)} a round, no limit per day"
        return f"bytes of a board: {words}; set policy.pause_seconds"
    rounds = min(rounds, settings.rounds)
    plural = "s" if rounds > 1 else ""
    return f"bytes of a board: at most {_parts(a_round, rounds)} a day, in {rounds:.0f} round{plural}"


def _parts(a_round: RoundBytes, times: float) -> str:
    up, down, flash = (_megabytes(times * n) for n in (a_round.up, a_round.down, a_round.flash))
    return f"{up} sent, {down} received, {flash} written to its disk"


def _megabytes(number: float) -> str:
    return f"{number / MB:,.1f} MB" if number < 100 * MB else f"{number / MB:,.0f} MB"
