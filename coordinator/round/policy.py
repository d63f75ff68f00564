"""The [policy] table: which devices are asked, how many must answer, and how long they are waited for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from protofleet.coordinator.round.pace import hours_of
from protofleet.protocol.settings.bounds import (
    LARGEST_COUNT,
    LARGEST_FACTOR,
    Devices,
    PositiveSeconds,
    Seconds,
    Share,
    Within,
)
from protofleet.protocol.settings.reader import demand_within

Quorum = Annotated[int, Within(1, LARGEST_COUNT)]
StragglerFactor = Annotated[float, Within(1, LARGEST_FACTOR, also=((0, "off"),))]
Attempts: TypeAlias = Annotated[int, Within(1, LARGEST_COUNT, also=((0, "without end"),))] | Literal["auto"]
WeightCap = Annotated[float, Within(1, LARGEST_FACTOR, also=((0, "off"),))]
Flaps = Annotated[int, Within(2, LARGEST_COUNT, also=((0, "never"),))]
EvaluateEvery = Annotated[int, Within(1, LARGEST_COUNT, also=((0, "only at the end"),))]
Patience = Annotated[int, Within(1, LARGEST_COUNT, also=((0, "off"),))]


@dataclass(frozen=True)
class Stop:
    """The [policy.stop] table: when a run ends early. Validation samples decide, never test samples."""

    accuracy: Share = 0.0  # mean validation accuracy at which the run ends; 0: off
    patience: Patience = 0  # evaluations in a row without a better one after which the run ends; 0: off

    def __post_init__(self) -> None:
        demand_within(self)
        if not (self.accuracy or self.patience):
            raise ValueError(
                "stop has neither accuracy nor patience, so it would never end a run; set one of them above 0, for "
                "example stop = { accuracy = 0.95, patience = 20 }, or leave stop out"
            )


@dataclass(frozen=True)
class Policy:
    quorum: Quorum = 1  # the k of k-of-n: with fewer answers there is no round
    cohort: Devices = 0  # the n, drawn again for each round; 0 invites all present devices
    gather: Devices = 0  # devices that the first round waits for, as long as one ask may take
    patience_seconds: PositiveSeconds = 600.0  # seconds that a cohort has for one ask
    grace_seconds: Seconds = 10.0  # seconds within which a device that has left may come back
    settle_seconds: Seconds = 2.0  # seconds that a quorum waits for more devices before a round starts
    spares: Devices = 0  # devices that are invited in addition; the first `cohort` answers make the phase
    # A quorum waits for the other devices this many times as long as the median answer takes, and at least
    # straggler_seconds; 0: it waits for the whole patience.
    straggler_factor: StragglerFactor = 2.5
    straggler_seconds: Seconds = 0.5
    # A device that loses its connection this often within flap_seconds is asked but not counted on; 0:
    # every device is counted on.
    flaps: Flaps = 5
    flap_seconds: Seconds = 300.0

    pause_seconds: Seconds = 0.0  # seconds from the end of a round to the start of the next
    hours: str = (
        ""  # hours in which rounds may begin, by the coordinator's local time, as 22:00-06:00; "": all day
    )

    # Number of times that broken answers alone may keep a round from its quorum; then the run has diverged.
    # "auto" is 1 + the size of the cohort, because the server step before is repeated without each of its
    # answers in turn.
    attempts: Attempts = "auto"

    # A device weighs at most this many times the median of its cohort, in training and in reports; 0: as
    # much as it claims.
    weight_cap: WeightCap = 3.0

    # If rounds leave present devices out, all present devices measure the model after every
    # `evaluate_every` rounds.
    evaluate_every: EvaluateEvery = 5
    stop: Stop | None = None  # None: the run has all its rounds

    def __post_init__(self) -> None:
        demand_within(self)
        hours_of(self.hours)
        if 0 < self.cohort < self.quorum:
            raise ValueError(
                f"cohort is {self.cohort}, it must be 0 (all) or at least quorum = {self.quorum}"
            )
        if self.spares and not self.cohort:
            raise ValueError(f"spares is {self.spares} with cohort = 0, it must be 0 where all are invited")
        if self.stop and self.cohort and not self.evaluate_every:
            raise ValueError(
                f"stop is set with cohort = {self.cohort} and evaluate_every = 0, so nothing would be measured that "
                "can end the run; set evaluate_every to at least 1, or leave stop out"
            )

    def attempts_of(self, cohort: int) -> int:
        """Return the number of attempts of a round with a cohort of that size; 0: without end."""
        return 1 + cohort if self.attempts == "auto" else self.attempts
