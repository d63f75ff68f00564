"""Read the file of `--profiles`: the boards and lines of a fleet, and the times in which it is available."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from protofleet.coordinator.round.pace import hours_of
from protofleet.lab.virtual.trace import Trace, read_trace
from protofleet.lab.virtual.worked import MeasuredWork, seconds_of_page
from protofleet.protocol.settings.bounds import LARGEST_FACTOR, PositiveSeconds, Seconds, Within
from protofleet.protocol.settings.budget import LARGEST_AMOUNT
from protofleet.protocol.settings.reader import SettingsError, decode, encode, read_toml, write_toml
from protofleet.protocol.wire.names import valid_name

Share = Annotated[float, Within(0, 1, above=True)]
Rate = Annotated[float, Within(1e-6, LARGEST_FACTOR)]
Loss = Annotated[float, Within(0, 0.5)]
Watts = Annotated[float, Within(0, 10_000)]
LinePrice = Annotated[float, Within(0, LARGEST_AMOUNT)]
# Largest difference between a sum of shares and 1, such as that of 0.333333 + 0.333333 + 0.333333.
ROUNDING: Final = 1e-5
FROM: Final = (
    "from"  # The key of `seconds_from` in a file, because `from` cannot be the name of a Python field.
)


@dataclass(frozen=True)
class BoardProfile:
    """A kind of board: the seconds of its work, and its power."""

    share: Share
    """Share of the devices that have this board; the shares of all boards sum to 1."""
    step_seconds: PositiveSeconds | None = None
    """Seconds of one training step, which is one batch of `method.batch` samples."""
    seconds_from: Literal["metrics"] | None = None
    """Source of the seconds of a piece of work, written as `from`; `metrics` means that real devices have measured
    them.
    """
    metrics: str = ""
    """File with the metrics page of a device, for `from`, relative to this file; empty means the updates of the
    run of `--validate`.
    """
    watts: Watts = 0.0
    """Power of the board while it works, in addition to its power while it is idle."""

    def __post_init__(self) -> None:
        if (self.step_seconds is None) is (self.seconds_from is None):
            given = "neither is given" if self.step_seconds is None else "both are given"
            raise ValueError(f'a board needs one of step_seconds and from = "metrics"; {given}')
        if self.metrics and self.seconds_from is None:
            raise ValueError('metrics names a file, but from is not "metrics"; set from = "metrics"')


@dataclass(frozen=True)
class LineProfile:
    """A kind of line between a device and the broker."""

    share: Share
    """Share of the devices that have this line; the shares of all lines sum to 1."""
    up: Rate
    """Mbit/s from the device to the broker."""
    down: Rate
    """Mbit/s from the broker to the device."""
    delay: Seconds = 0.0
    """Seconds that a packet takes in one direction."""
    loss: Loss = 0.0
    """Share of packets that are lost and sent again."""
    watts: Watts = 0.0
    """Power of the radio while it sends or receives."""
    price: LinePrice | None = None
    """Price of 1 GB (10^9 bytes); if left out, `budget.price_per_gb` of the experiment is used."""


@dataclass(frozen=True)
class AvailabilityProfile:
    """The times in which devices are available: hours of each day, or the times of a trace file."""

    days: str = ""
    """Hours of each day, in the form of `policy.hours`; empty means all day."""
    trace: str = ""
    """CSV file with the columns device, from and until (seconds since the run began), relative to this file."""

    def __post_init__(self) -> None:
        if self.days and self.trace:
            raise ValueError("days and trace are both given; leave one of them out")
        try:
            hours_of(self.days)
        except ValueError as error:
            words = str(error).replace("hours", "days", 1)
            raise ValueError(
                f"{words} (this fleet would never be available)" if "differ" in words else words
            ) from None


@dataclass(frozen=True)
class Profiles:
    """The file of `--profiles`. The names of boards and lines are free."""

    boards: dict[str, BoardProfile]
    """Boards of the fleet, by name."""
    lines: dict[str, LineProfile]
    """Lines of the fleet, by name."""
    availability: AvailabilityProfile = field(default_factory=AvailabilityProfile)
    """Times in which devices are available; if left out, they always are."""
    begins: str = "00:00"
    """Local time of day at which the run begins."""

    def __post_init__(self) -> None:
        for table, found in (("boards", self.boards), ("lines", self.lines)):
            shares = {valid_name(name): one.share for name, one in found.items()}
            if abs(sum(shares.values()) - 1) > ROUNDING:
                listed = ", ".join(f"{name} {share:g}" for name, share in shares.items()) or "there is none"
                raise ValueError(
                    f"{table}.*.share: the shares sum to {sum(shares.values()):g} ({listed}), they must sum to 1"
                )
        try:
            hours_of(f"{self.begins}-{'00:00' if self.begins != '00:00' else '00:01'}")
        except ValueError:
            raise ValueError(
                f'begins is {self.begins[:40]!r}, it must be a time HH:MM, such as "22:00"'
            ) from None

    @property
    def begins_after(self) -> float:
        """Return the seconds from midnight to the beginning of the run."""
        hours, minutes = self.begins.split(":")
        return 3600.0 * int(hours) + 60.0 * int(minutes)

    @property
    def measures_energy(self) -> bool:
        return any(one.watts for table in (self.boards, self.lines) for one in table.values())


@dataclass(frozen=True)
class ReadProfiles:
    """The profiles with the contents of the files that they name."""

    profiles: Profiles
    trace: Trace | None
    # The seconds of a piece of work, by the name of each board whose seconds real devices have measured.
    work: Mapping[str, MeasuredWork]

    @property
    def text(self) -> str:
        """Return the profiles as TOML, with the digests of the files that they name."""
        found = encode(self.profiles)
        if self.trace is not None:
            found["availability"]["trace"] = f"sha256:{self.trace.digest}"
        for name, work in self.work.items():
            found["boards"][name]["metrics"] = f"{work.training:.6f} s, {work.evaluation:.6f} s"
        return write_toml(found)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


def read_profiles(path: Path, measured: MeasuredWork | None = None) -> ReadProfiles:
    """Read and check a profiles file.

    `measured` has the seconds of work in a real run, for boards that name no file with metrics.
    """
    try:
        profiles = decode(Profiles, renamed(read_toml(path)))
        trace = profiles.availability.trace
        work = {
            name: measured_work(f"boards.{name}", board, path.parent, measured)
            for name, board in profiles.boards.items()
            if board.seconds_from is not None
        }
        return ReadProfiles(profiles, read_trace(path.parent / trace) if trace else None, work)
    except SettingsError as error:
        words = str(error).replace("seconds_from", FROM)
        raise SettingsError(words if words.startswith(str(path)) else f"{path}: {words}") from None


def renamed(table: dict[str, Any]) -> dict[str, Any]:
    """Return the table of a file with the names of the fields."""
    boards = table.get("boards")
    if not isinstance(boards, dict):
        return table
    changed = {
        name: {"seconds_from" if key == FROM else key: value for key, value in board.items()}
        if isinstance(board, dict)
        else board
        for name, board in boards.items()
    }
    return {**table, "boards": changed}


def measured_work(key: str, board: BoardProfile, folder: Path, measured: MeasuredWork | None) -> MeasuredWork:
    if board.metrics:
        return seconds_of_page(folder / board.metrics, f"{key}.metrics")
    if measured is None:
        raise SettingsError(
            f'{key}.from is "metrics", but there is no file of metrics; set {key}.metrics to a saved metrics page of '
            "a device, or give --validate RUN"
        )
    return measured
