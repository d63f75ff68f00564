"""The limits on the numbers that a device may claim.

Each number that a device sends has a limit, either here or in the specifications of the arrays that the method
requests. No one can check how many samples a device has. So the claims must also agree with each other. The
hello of a device states its number of examples. The examples of an update, and the sum of its counts, may be at
most this number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from protofleet.methods.contract.base import Member
from protofleet.methods.contract.confusion import MOST_CLASSES, ConfusionClasses
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.settings.bounds import LARGEST_FACTOR, LONGEST_NORM, PositiveBytes, Within
from protofleet.protocol.settings.reader import demand_within
from protofleet.protocol.wire.messages import Hello, Update
from protofleet.protocol.wire.reasons import Problem, Reason

# Largest number of letters of a domain. Domains appear in reports and in labels of metrics, so they are short.
MAX_DOMAIN: Final = 64
METRIC: Final = re.compile(r"[a-z][A-Za-z0-9_.-]{0,63}")
HOTTEST: Final = "celsius.hottest"  # Metric with the temperature of a board's hottest thermal zone.
CELSIUS: Final = (-273.15, 1000.0)  # Lowest and highest temperature in this metric.
MAX_MEASURED: Final = 1e12  # Largest loss, duration or number of samples in a metric.


Examples = Annotated[int, Within(1, 1 << 40)]
AnswerBytes = Annotated[int, Within(1, 1 << 30)]
Norm = Annotated[float, Within(0, LONGEST_NORM, above=True, also=((math.inf, "no bound"),))]
Outlier = Annotated[float, Within(2, LARGEST_FACTOR, also=((0, "off"),))]


@dataclass(frozen=True)
class CoordinatorLimits:
    """The [limits] table: what one device may claim, and how much disk space the updates may use."""

    examples: Examples = 1_000_000
    """Largest number of examples that a device may state; this number is the device's weight in FedAvg, and limits
    its uploads in FedPall and FedPLCC.
    """
    answer_bytes: AnswerBytes = 1 << 30
    """Largest update in bytes, even if the method would accept more."""
    spool_bytes: PositiveBytes = 16 << 30
    """Bytes of disk space for all updates, including the space that is reserved for incomplete updates."""
    kept_bytes: PositiveBytes = 8 << 30
    """Bytes of disk space for the answers that are kept after their rounds (`keep.answers`)."""
    domains: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Names or patterns of the devices that may share a domain, by the domain's name."""
    norm: Norm = 1e6
    """Largest Euclidean norm of each array of an update, so that one device cannot outweigh all others; `inf`
    means no limit.
    """
    outlier: Outlier = 100.0
    """Norm from which an update is put aside, as a multiple of the median norm of its cohort; 0 means off."""
    confusion: ConfusionClasses = MOST_CLASSES
    """Largest number of classes with which a run asks the devices at the end which classes they confuse; 0 means
    never.
    """

    def __post_init__(self) -> None:
        demand_within(self)
        for domain in self.domains:
            if not is_domain(domain):
                raise ValueError(
                    f"domains contains {domain[:99]!r}, but the name of a domain must have 1 to {MAX_DOMAIN} "
                    "printable letters"
                )
        if self.answer_bytes > self.spool_bytes:
            raise ValueError(
                f"answer_bytes is {self.answer_bytes}, but must be at most spool_bytes = {self.spool_bytes}"
            )


def is_domain(name: str) -> bool:
    return 0 < len(name) <= MAX_DOMAIN and name.isprintable()


def hello_problem(
    hello: Hello, plan: Plan, limits: CoordinatorLimits, uses: Mapping[str, str] = {}
) -> Problem | None:
    """Return why a device cannot take part, or None if the device can take part.

    `uses` maps each message form that a device must know to the reason why this run needs the form.
    """
    low, high = hello.protocol
    words = None
    if not low <= 1 <= high:
        words = f"it speaks protocol {low} to {high}, this coordinator speaks 1"
    elif lacks := [form for form in uses if form not in hello.can]:
        words = f"it does not know {', '.join(lacks)}, without which it cannot take part: {uses[lacks[0]]}"
    elif hello.classes != plan.classes:
        words = f"it has {hello.classes} classes, this run has {plan.classes}"
    elif hello.counts and len(hello.counts) != plan.classes:
        words = f"it states counts of {len(hello.counts)} classes, this run has {plan.classes}"
    elif hello.domain and not is_domain(hello.domain):
        words = f"its domain has {len(hello.domain)} letters; {MAX_DOMAIN} at most, all of them printable"
    elif hello.examples > limits.examples:
        return Problem(
            Reason.BAD_CLAIM, f"it states {hello.examples} examples, over limits.examples = {limits.examples}"
        )
    elif hello.counts and sum(hello.counts) != hello.examples:
        return Problem(
            Reason.BAD_CLAIM, f"its counts add up to {sum(hello.counts)}, its examples are {hello.examples}"
        )
    return Problem(Reason.UNFIT, words) if words else None


def update_problem(update: Update, member: Member) -> Problem | None:
    """Return what is wrong with the scalars of an update, or None if nothing is wrong."""
    if update.examples > member.examples:
        return Problem(
            Reason.BAD_CLAIM,
            f"its answer states {update.examples} examples, its device has stated {member.examples}",
        )
    return _metrics_problem(update.metrics)


def _metrics_problem(metrics: Mapping[str, float]) -> Problem | None:
    """Return what is wrong with the metrics of an update, or None if nothing is wrong.

    A device whose model has diverged sends NaN or a huge loss. These values are allowed here, because the device is
    honest. They are left out of every mean (see `measured`).
    """
    for name, value in metrics.items():
        least, most = _bounds(name)
        if not METRIC.fullmatch(name):
            return Problem(Reason.BAD_CLAIM, f"a metric is called {name[:64]!r}")
        if math.isfinite(value) and not name.startswith("loss.") and not least <= value <= most:
            return Problem(Reason.BAD_CLAIM, f"{name} is {value:g}, not {least:g} to {most:g}")
    return None


def _bounds(metric: str) -> tuple[float, float]:
    if metric == HOTTEST:
        return CELSIUS
    if metric.startswith("accuracy."):
        return 0.0, 1.0
    return 0.0 if metric.startswith(("samples.", "seconds.", "joules.")) else -MAX_MEASURED, MAX_MEASURED
