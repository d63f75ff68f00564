"""The bytes that one device transfers in a round, in closed form: the arrays of the method, and estimated messages.

The closed form does not contain arrays whose size depends on the samples of a device, such as features. With a codec
it contains no arrays, because their coded size is not known before the first round. In both cases, the bytes that a
device has transferred in earlier rounds replace the closed form (coordinator/budget.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from protofleet.methods.contract.cost import Sizes
from protofleet.methods.contract.overview import NoSamples
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.public import PublicSet
from protofleet.protocol.link.base import INLINE
from protofleet.protocol.link.meter import human_bytes
from protofleet.protocol.settings.budget import BudgetSettings
from protofleet.protocol.wire.blocks import DEFAULT_BLOCK

# Bytes of the messages of one phase without arrays: task, request for blocks, update and receipt.
MESSAGES: Final = 360 + 275 + 700 + 253
BLOCK: Final = 140  # Bytes of the message around each block.
# Bytes of the description of the arrays in a message; a FedAvg message has about 1,100 of them.
TABLE: Final = 1_100
# Bytes of the messages with which a device joins a run: states, hello and welcome.
JOIN: Final = 3_500
MONTH: Final = "budget.month_bytes_per_device"
NOTHING: Final[Mapping[str, int]] = {}


@dataclass(frozen=True, slots=True)
class RoundCost:
    training: int
    evaluation: int  # A broadcast, and an update without arrays.
    has_arrays: bool = (
        True  # False if only messages are counted, because the size of the arrays is not known.
    )

    @property
    def reserve(self) -> int:
        """Return the bytes that a device must have left to get a task: a round, and the evaluation at the end."""
        return self.training + self.evaluation


def round_bytes(plan: Plan) -> RoundCost:
    up, down, known = array_bytes(plan)
    with_arrays = MESSAGES + body_bytes(down)
    return RoundCost(with_arrays + body_bytes(up), with_arrays, known)


def array_bytes(plan: Plan) -> tuple[int, int, bool]:
    """Return the bytes of arrays that a device sends and receives in a round, and whether these bytes are known."""
    cost_of = plan.variant.cost
    if cost_of is None or plan.codec is not None:
        return 0, 0, False
    half = plan.client_half(NoSamples(), "")
    cost = cost_of(Sizes(half.model, held=plan.classes, public=PublicSet().batches))
    return sum(cost.bytes_up.values()), sum(cost.bytes_down.values()), True


def body_bytes(arrays: int) -> int:
    """Return the bytes of an object with these arrays, with its table and the messages around its blocks."""
    if not arrays:
        return 0
    size = arrays + TABLE
    return size + BLOCK * (-(-size // DEFAULT_BLOCK) if size > INLINE else 1)


def rounds_that_fit(limit: int, of_round: RoundCost) -> int:
    return max(0, limit - JOIN - of_round.evaluation) // of_round.training


def demand_one_round(budget: BudgetSettings, plan: Plan) -> None:
    """Raise ValueError if a limit does not hold one round of this plan and the evaluation at the end."""
    of_round = round_bytes(plan)
    least = JOIN + of_round.reserve
    for name, limit in limits_of(budget).items():
        if rounds_that_fit(limit, of_round) < 1:
            raise ValueError(
                f"{name} is {human_bytes(limit)}{budget.cost_words(limit)}, but to join, one round and the "
                f"evaluation at the end transfer {human_bytes(least)}{budget.cost_words(least)} for each device with "
                f"{plan.method}; raise the limit, or send less with a codec, a smaller network or another method"
            )


def limits_of(budget: BudgetSettings) -> Mapping[str, int]:
    """Return the limits in bytes by the name of the setting."""
    found = {}
    if (run := budget.run_limit) is not None:
        money = budget.money_per_device is not None and run != budget.bytes_per_device
        found["budget.money_per_device" if money else "budget.bytes_per_device"] = run
    if budget.month_bytes_per_device is not None:
        found[MONTH] = int(budget.month_bytes_per_device)
    return found


def describe_budget(
    budget: BudgetSettings, plan: Plan, rounds: int, in_other_runs: Mapping[str, int] = NOTHING
) -> str:
    """Describe in one line how many rounds fit in each limit.

    `in_other_runs` has the bytes of each device in the other runs of this month.
    """
    of_round = round_bytes(plan)
    size = f"{human_bytes(of_round.training)}{budget.cost_words(of_round.training)}"
    if not of_round.has_arrays:
        why = "with a codec" if plan.codec is not None else f"because {plan.method} states no cost"
        return (
            f"the size of a round is not known before the first round, {why}; its messages alone transfer {size} for "
            "each device"
        )
    words, most = [], max(in_other_runs.values(), default=0)
    for name, limit in limits_of(budget).items():
        used = most if name == MONTH else 0
        fit = min(rounds, rounds_that_fit(limit - used, of_round))
        why = f", because other runs of this month have used up to {human_bytes(used)} of it" if used else ""
        words.append(
            f"{name} {human_bytes(limit)}{budget.cost_words(limit)} holds {fit:,} of {rounds:,} rounds{why}"
        )
    return f"a round transfers about {size} for each device; {'; '.join(words)}"
