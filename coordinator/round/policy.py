"""The [policy] table: which devices get tasks, how many updates are needed, and how long the run waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias, get_args

from protofleet.coordinator.round.pace import hours_of
from protofleet.coordinator.round.robust import Robust
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

# The coordinator keeps the name of one broadcast for each round of this number, and the broadcasts of lossless runs.
MOST_STALENESS: Final = 1000

Quorum = Annotated[int, Within(1, LARGEST_COUNT)]
StragglerFactor = Annotated[float, Within(1, LARGEST_FACTOR, also=((0, "off"),))]
Attempts: TypeAlias = Annotated[int, Within(1, LARGEST_COUNT, also=((0, "without end"),))] | Literal["auto"]
WeightCap = Annotated[float, Within(1, LARGEST_FACTOR, also=((0, "off"),))]
Flaps = Annotated[int, Within(2, LARGEST_COUNT, also=((0, "never"),))]
EvaluateEvery = Annotated[int, Within(1, LARGEST_COUNT, also=((0, "only at the end"),))]
Patience = Annotated[int, Within(1, LARGEST_COUNT, also=((0, "off"),))]
Mode: TypeAlias = Literal["synchronous", "buffered"]
Staleness = Annotated[int, Within(1, MOST_STALENESS)]
StalenessExponent = Annotated[float, Within(0, 10)]


@dataclass(frozen=True)
class Stop:
    """The [policy.stop] table: when a run ends early. Validation samples decide this, never test samples."""

    accuracy: Share = 0.0
    """Validation accuracy, from 0 to 1, at which the run ends; 0 means off."""
    patience: Patience = 0
    """Number of evaluations in a row without a better accuracy after which the run ends; 0 means off."""

    def __post_init__(self) -> None:
        demand_within(self)
        if not (self.accuracy or self.patience):
            raise ValueError(
                "stop has neither accuracy nor patience, so it would never end a run; set one of them above 0, for "
                "example stop = { accuracy = 0.95, patience = 20 }, or leave stop out"
            )


@dataclass(frozen=True)
class Policy:
    """The rules for rounds: how many devices take part, and how long the run waits for each of them."""

    quorum: Quorum = 1
    """Smallest number of updates with which a round can end."""
    cohort: Devices = 0
    """Number of devices that are drawn for each round; 0 invites all present devices."""
    gather: Devices = 0
    """Number of devices for which the first round waits, for at most `patience_seconds`; 0 means that the first
    round waits only for a quorum.
    """
    patience_seconds: PositiveSeconds = 600.0
    """Seconds that a cohort has for one task."""
    grace_seconds: Seconds = 10.0
    """Seconds within which a device that has left may come back."""
    settle_seconds: Seconds = 2.0
    """Seconds that a quorum waits for more devices before a round starts."""
    spares: Devices = 0
    """Number of devices that are invited in addition to the cohort; the first `cohort` updates end the phase."""
    straggler_factor: StragglerFactor = 2.5
    """Time that a quorum waits for the other devices, as a multiple of the median time of an update, but at least
    `straggler_seconds`; 0 means that the quorum waits for `patience_seconds`.
    """
    straggler_seconds: Seconds = 0.5
    """Shortest time, in seconds, that a quorum waits for stragglers."""
    flaps: Flaps = 5
    """Number of lost connections within `flap_seconds` after which the run no longer waits for a device, although the
    device still gets tasks; 0 means that the run waits for every device.
    """
    flap_seconds: Seconds = 300.0
    """Seconds for which lost connections are counted; after this time without a loss, a device is steady again."""

    mode: Mode = "synchronous"
    """Kind of rounds, `synchronous` (an update counts only in the round of its task) or `buffered` (the first
    `buffer` updates end the round, and a late update counts in the round that is open when it arrives).
    """
    buffer: Devices = 0
    """Number of updates that end a buffered round; 0 with `synchronous` rounds."""
    staleness: Staleness = 10
    """Largest age, in rounds, of the task of an update that still counts in a buffered round."""
    staleness_exponent: StalenessExponent = 0.5
    """Exponent a of the weight (1 + s)^-a that an update has in a buffered round if its task is s rounds old; 0
    means that all updates have the same weight.
    """

    pause_seconds: Seconds = 0.0
    """Seconds from the end of a round to the start of the next round."""
    hours: str = ""
    """Hours in which rounds may begin, in the coordinator's local time, for example
    `22:00-06:00`; empty means all day.
    """

    # "auto" is 1 + the size of the cohort. So each update of the previous server step can be left out once.
    attempts: Attempts = "auto"
    """Number of times that a round may miss its quorum because of broken updates before the run counts as diverged;
    `auto` is 1 + the size of the cohort, and 0 means no limit.
    """

    weight_cap: WeightCap = 3.0
    """Largest weight of a device, in training and in reports, as a multiple of the median weight of its cohort; 0
    means no limit.
    """

    robust: Robust | None = None
    """Rules that replace the mean over the devices, against lying devices; without this setting, there are none."""

    evaluate_every: EvaluateEvery = 5
    """Number of rounds after which all present devices measure the model, if not all of them take part in each round;
    0 means only at the end.
    """
    stop: Stop | None = None
    """Conditions under which the run ends early; without this setting, the run has all its rounds."""

    def __post_init__(self) -> None:
        demand_within(self)
        hours_of(self.hours)
        if 0 < self.cohort < self.quorum:
            raise ValueError(
                f"cohort is {self.cohort}, it must be 0 (all) or at least quorum = {self.quorum}"
            )
        if self.spares and not self.cohort:
            raise ValueError(
                f"spares is {self.spares} with cohort = 0, but must be 0, because all present devices are invited"
            )
        self._check_buffer()
        if self.stop and self.cohort and not self.evaluate_every:
            raise ValueError(
                f"stop is set with cohort = {self.cohort} and evaluate_every = 0, so no measurement "
                "could end the run; set evaluate_every to at least 1, or leave stop out"
            )

    def _check_buffer(self) -> None:
        if self.mode not in get_args(Mode):
            raise ValueError(f"mode is {self.mode!r}, it must be one of {', '.join(get_args(Mode))}")
        if not self.buffered:
            if self.buffer:
                raise ValueError(
                    f'buffer is {self.buffer} with mode = "{self.mode}", but must be 0, because a synchronous round '
                    'waits for its cohort; set mode = "buffered", or leave buffer out'
                )
            return
        if not self.quorum <= self.buffer:
            raise ValueError(
                f'buffer is {self.buffer} with mode = "buffered", but must be at least quorum = {self.quorum}'
            )
        if 0 < self.cohort < self.buffer:
            raise ValueError(
                f"cohort is {self.cohort}, it must be 0 (all) or at least buffer = {self.buffer}"
            )
        if self.spares:
            raise ValueError(
                f'spares is {self.spares} with mode = "buffered", but must be 0, because the first buffer = '
                f"{self.buffer} updates end a round; raise cohort instead"
            )
        if self.stop:
            raise ValueError(
                'stop is set with mode = "buffered", but no round of this mode is measured by all devices, so no '
                "measurement could end the run; leave stop out"
            )

    @property
    def buffered(self) -> bool:
        return self.mode == "buffered"

    def weight_of(self, staleness: int) -> float:
        """Return the factor of an update whose task is `staleness` rounds old (FedAsync, section 5.2)."""
        return float((1 + staleness) ** -self.staleness_exponent)

    def attempts_of(self, cohort: int) -> int:
        """Return how many attempts a round with a cohort of this size has; 0 means no limit."""
        return 1 + cohort if self.attempts == "auto" else self.attempts
