"""Facts in, a list of steps out. Nothing here touches a device: what shall be done is a value, to be shown or done.

A step that was broken off leaves facts from which the same plan comes out again, less what was finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from protofleet.deploy.fleet.checks import Check, failures
from protofleet.deploy.fleet.device.facts import Facts, KnownGood
from protofleet.deploy.fleet.settings import Care

DAY: Final = 86_400


@dataclass(frozen=True, slots=True)
class Desired:
    """What a device shall be."""

    name: str
    release: str
    release_words: str
    settings: str  # digest of their text
    unit: str  # SHA-256 of the unit file
    unit_mark: str  # by which a process says that this unit has started it
    tls: frozenset[str]  # SHA-256 of certificates of this name that hold; empty: it is not enrolled yet
    roots: str
    coordinator: str
    care: Care

    @property
    def pair(self) -> str:
        """What is blocked when it has failed: this software with these settings."""
        return f"{self.release}-{self.settings}"


@dataclass(frozen=True, slots=True)
class Refuse:
    """It cannot be, and why."""

    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prepare:
    """Users of its own, its folders, and the roots whose signature counts there."""


@dataclass(frozen=True, slots=True)
class Ship:
    release: str
    words: str


@dataclass(frozen=True, slots=True)
class Build:
    """An environment of what was shipped; it counts when it has imported everything and multiplied a matrix."""

    release: str


@dataclass(frozen=True, slots=True)
class Enrol:
    reason: str


@dataclass(frozen=True, slots=True)
class Configure:
    """Settings, signed, and the unit: put beside those in use."""

    reason: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Wait until the process in charge has nothing in hand, and end it there."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Switch:
    """From now on this release with these settings, whoever starts it."""

    release: str


@dataclass(frozen=True, slots=True)
class Start:
    """The new process, in place of the one before."""


@dataclass(frozen=True, slots=True)
class Health:
    """The coordinator has answered this very process."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Soak:
    rounds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Record:
    """This is what is gone back to, when a later change fails."""

    release: str
    settings: str


Step: TypeAlias = (
    Refuse | Prepare | Ship | Build | Enrol | Configure | Drain | Switch | Start | Health | Soak | Record
)


@dataclass(frozen=True, slots=True)
class InstalledSettings:
    """The settings that are installed, where our root has signed them."""

    settings: str = ""  # digest of their text
    version: int = 0


def plan(
    facts: Facts, desired: Desired, checks: list[Check], present: InstalledSettings, force: bool = False
) -> list[Step]:
    """What is still missing."""
    here = facts.installed
    if reasons := [f"{check.name}: {check.reason}; {check.fix}" for check in failures(checks)]:
        return [Refuse(tuple(reasons))]
    if desired.pair in here.blocked and not force:
        words = f"release {desired.release} with these settings has failed on this device before"
        return [Refuse((f"{words}; change one of them, or say --force",))]
    return list(_steps(facts, desired, present))


def _steps(facts: Facts, desired: Desired, present: InstalledSettings) -> Iterator[Step]:
    here, service, care = facts.installed, facts.installed.service, desired.care
    if not here.user or here.pinned != desired.roots:
        yield Prepare()
    if desired.release not in here.complete:
        yield Ship(desired.release, desired.release_words)
        yield Build(desired.release)
    if reason := enrolment_reason(facts, desired):
        yield Enrol(reason)
    other_settings, other_unit = present.settings != desired.settings, here.unit != desired.unit
    moved = other_settings or other_unit or here.release != desired.release
    if other_settings or other_unit:
        yield Configure(
            " and ".join(w for w, other in (("settings", other_settings), ("unit", other_unit)) if other)
        )
    if moved:
        yield Switch(desired.release)
    stale = moved or not is_running(facts, desired, present)
    if stale:
        if service.active == "active":
            yield Drain(care.drain_seconds)
        yield Start()
    if stale or not is_good(here.good, desired) or not is_well(facts):
        yield Health(care.health_seconds)
        if not is_good(here.good, desired):
            yield Soak(care.soak_rounds, care.soak_seconds)
            yield Record(desired.release, desired.settings)


def is_running(facts: Facts, desired: Desired, present: InstalledSettings) -> bool:
    """The process that runs was started from what is desired."""
    service, status = facts.installed.service, facts.installed.status
    if service.active not in ("active", "activating") or not service.enabled:
        return False
    if (service.running, service.unit) != (desired.release, desired.unit_mark):
        return False
    return status is None or status.pid != service.pid or status.settings == present.version


def is_well(facts: Facts) -> bool:
    status = facts.installed.status
    return status is not None and status.pid == facts.installed.service.pid and status.connected


def is_good(good: KnownGood | None, desired: Desired) -> bool:
    return good is not None and (good.release, good.settings, good.unit) == (
        desired.release,
        desired.settings,
        desired.unit,
    )


def enrolment_reason(facts: Facts, desired: Desired) -> str:
    here = facts.installed
    if not here.tls:
        return "it has no keys yet"
    if here.tls not in desired.tls:
        return "its certificate ends soon, has been revoked or is not of this federation"
    if here.roots != desired.roots:
        return "the federation has other roots by now"
    if here.coordinator != desired.coordinator:
        return "the coordinator has another record by now"
    return ""


def describe(step: Step) -> str:
    match step:
        case Refuse(reasons):
            return "cannot be deployed: " + "; ".join(reasons)
        case Prepare():
            return "prepare: users and folders of its own, and the roots of the federation"
        case Ship(release, words):
            return f"ship: release {release}, {words}"
        case Build(release):
            return f"build: release {release}"
        case Enrol(reason):
            return f"enrol: {reason}"
        case Configure(reason):
            return f"configure: {reason}"
        case Drain(seconds):
            return f"drain: at most {seconds:g} s for the work in hand"
        case Switch(release):
            return f"switch: to release {release}"
        case Start():
            return "start"
        case Health(seconds):
            return f"health: at most {seconds:g} s for the coordinator to answer"
        case Soak(rounds, seconds):
            return f"soak: {rounds} round{'s' * (rounds != 1)}, at most {seconds:g} s"
        case Record():
            return "record: this is good"


def name_of(step: Step) -> str:
    return type(step).__name__.lower()
