"""The bytes that one device transfers in a round, in closed form: the arrays of the method, and estimated messages.

The closed form does not contain arrays whose size depends on the samples of a device, such as features. With a codec
it has the expected size of the coded arrays, or their largest size if the size depends on the numbers. The bytes that
a device has transferred in earlier rounds replace the closed form (coordinator/budget.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from protofleet.coordinator.coded_cost import coded_cost
from protofleet.methods.contract.base import Member
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.contract.overview import NoSamples
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.public import PublicSet
from protofleet.methods.contract.round_arrays import UnknownArraysError
from protofleet.protocol.link.base import INLINE
from protofleet.protocol.link.meter import human_bytes
from protofleet.protocol.settings.budget import BudgetSettings
from protofleet.protocol.wire.blocks import DEFAULT_BLOCK

# Bytes of the messages of one phase without arrays: task, request for blocks, update and receipt.
MESSAGES: Final = 360 + 275 + 700 + 253
BLOCK: Final = 140  # Bytes of the message around each block.
# Bytes of the description of the arrays in a message; a FedAvg message has about 1,100 of them. Coded arrays have
# their description in the coded bytes, so little is left.
TABLE: Final = 1_100
CODED_TABLE: Final = 150
# Bytes of the messages with which a device joins a run: states, hello and welcome.
JOIN: Final = 3_500
MONTH: Final = "budget.month_bytes_per_device"
NOTHING: Final[Mapping[str, int]] = {}


class Arrays(Enum):
    """The kinds of knowledge about the array bytes of a round before the first round."""

    COUNTED = "counted"
    AT_MOST = "at most"  # With a codec whose size depends on the numbers: no round is larger.
    UNKNOWN = "unknown"  # Only messages are counted.


@dataclass(frozen=True, slots=True)
class RoundCost:
    training: int
    evaluation: int  # The broadcast of the last evaluation, and an update without arrays.
    arrays: Arrays = Arrays.COUNTED

    @property
    def reserve(self) -> int:
        """Return the bytes that a device must have left to get a task: a round, and the evaluation at the end."""
        return self.training + self.evaluation

    def one_more(self, largest: int) -> int:
        """Return the bytes of one more round of a device; `largest` is its largest round so far, or 0."""
        return largest if largest and self.arrays is Arrays.AT_MOST else max(self.training, largest)

    def least(self) -> RoundCost:
        """Return the part that every round transfers."""
        return RoundCost(MESSAGES, MESSAGES, Arrays.UNKNOWN) if self.arrays is Arrays.AT_MOST else self


def round_bytes(plan: Plan) -> RoundCost:
    up, down, known = array_bytes(plan)
    table = TABLE if plan.codec is None else CODED_TABLE
    last = last_bytes(plan)
    evaluation = MESSAGES + body_bytes(down if last is None else last, table)
    return RoundCost(MESSAGES + body_bytes(down, table) + body_bytes(up, table), evaluation, known)


def last_bytes(plan: Plan) -> int | None:
    """Return the bytes of arrays that a device receives in the last evaluation, without the effect of a codec.

    Return None if they are the bytes that it receives in a round.
    """
    if (cost_of := plan.variant.cost) is None:
        return None
    cost = cost_of(sizes_of(plan))
    return None if cost.last is None else sum(cost.bytes_last.values())


def sizes_of(plan: Plan) -> Sizes:
    half = plan.client_half(NoSamples(), "")
    return Sizes(half.model, held=plan.classes, public=PublicSet().batches)


def array_bytes(plan: Plan) -> tuple[int, int, Arrays]:
    """Return the bytes of arrays that a device sends and receives in a round, and how well they are known."""
    if (cost_of := plan.variant.cost) is None:
        return 0, 0, Arrays.UNKNOWN
    sizes = sizes_of(plan)
    if plan.codec is not None:
        return coded_bytes(plan, sizes)
    cost = cost_of(sizes)
    return sum(cost.bytes_up.values()), sum(cost.bytes_down.values()), Arrays.COUNTED


def coded_bytes(plan: Plan, sizes: Sizes) -> tuple[int, int, Arrays]:
    """Return the same as `array_bytes` for a run with a codec, with one sample on the device."""
    members = [Member(f"device-{place}", 1, (1,) * plan.classes) for place in range(2)]
    sizes = replace(sizes, examples=1, clients=len(members))
    try:
        cost = coded_cost(replace(plan, rounds=max(2, plan.rounds)), members, sizes)
    except UnknownArraysError:
        return 0, 0, Arrays.UNKNOWN
    if cost.up.expected is None or cost.down.expected is None:
        return cost.up.most, cost.down.most, Arrays.AT_MOST
    return cost.up.expected, cost.down.expected, Arrays.COUNTED


def body_bytes(arrays: int, table: int) -> int:
    """Return the bytes of an object with these arrays, with its table and the messages around its blocks."""
    if not arrays:
        return 0
    size = arrays + table
    return size + BLOCK * (-(-size // DEFAULT_BLOCK) if size > INLINE else 1)


def rounds_that_fit(limit: int, of_round: RoundCost) -> int:
    return max(0, limit - JOIN - of_round.evaluation) // of_round.training


def demand_one_round(budget: BudgetSettings, plan: Plan, quorum: int = 1) -> None:
    """Raise ValueError if a limit does not hold one round of this plan.

    A limit of a device must also hold the evaluation at the end. The limit `bytes` of the whole run must hold one
    round of `quorum` devices. Without it, the run would begin a round for certain, and exceed the limit.
    """
    of_round = round_bytes(plan).least()
    if budget.bytes is not None and budget.bytes < (most := quorum * (JOIN + of_round.training)):
        count = f"policy.quorum = {quorum} {'device' if quorum == 1 else 'devices'}"
        raise ValueError(
            f"budget.bytes is {human_bytes(budget.bytes)}{budget.cost_words(budget.bytes)}, but to join and one "
            f"round transfer {human_bytes(most)}{budget.cost_words(most)} for {count} with {plan.method}; raise the "
            "limit, lower policy.quorum, or send less with a codec, a smaller network or another method"
        )
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
    budget: BudgetSettings, plan: Plan, of_round: RoundCost, in_other_runs: Mapping[str, int] = NOTHING,
    rounds: int = 0, devices: int = 1,
) -> str:  # fmt: skip
    """Describe in one line how many rounds of the run fit in each limit.

    `of_round` is the result of `round_bytes`, and `in_other_runs` has the bytes of each device in the other runs of
    this month. `rounds` is the number of rounds, if it is not that of the plan. `devices` is the number of devices in
    a round, or the least number that is known.
    """
    rounds = (
        1 if plan.load().Server.keeps_answers else rounds or plan.rounds
    )  # No device is asked in two rounds.
    size = f"{human_bytes(of_round.training)}{budget.cost_words(of_round.training)}"
    if of_round.arrays is Arrays.UNKNOWN:
        return (
            f"the size of a round is not known before the first round, because it does not follow from the cost of "
            f"{plan.method}; its messages alone transfer {size} for each device"
        )
    about, least = ("at most ", "at least ") if of_round.arrays is Arrays.AT_MOST else ("about ", "")
    words, most = list[str](), max(in_other_runs.values(), default=0)
    for name, limit in limits_of(budget).items():
        used = most if name == MONTH else 0
        fit = min(rounds, rounds_that_fit(limit - used, of_round))
        why = f", because other runs of this month have used up to {human_bytes(used)} of it" if used else ""
        words.append(
            f"{name} {human_bytes(limit)}{budget.cost_words(limit)} holds {least}{fit:,} of {rounds:,} rounds{why}"
        )
    if budget.bytes is not None:
        fit = min(rounds, max(0, budget.bytes - devices * JOIN) // (devices * of_round.training))
        words.append(
            f"budget.bytes {human_bytes(budget.bytes)}{budget.cost_words(budget.bytes)} holds {least}{fit:,} of "
            f"{rounds:,} rounds of {devices:,} {'device' if devices == 1 else 'devices'}"
        )
    if budget.device_hours is not None:
        words.append(f"budget.device_hours {budget.device_hours:g} is for the work of all devices")
    return "; ".join([f"a round transfers {about}{size} for each device", *words])
