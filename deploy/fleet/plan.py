"""Compare the present state of a host with its desired state, and list the steps that lead to the desired state.

This module connects to no host: a plan is a value that can be printed or executed. If a step is
interrupted, the next plan for the host has only the steps that are not finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from protofleet.deploy.fleet.checks import Check, failures
from protofleet.deploy.fleet.device.facts import Facts, KnownGood
from protofleet.deploy.fleet.device.roles import BROKER, DEVICE, Role
from protofleet.deploy.fleet.settings import RolloutSettings
from protofleet.protocol.wire.names import COORDINATOR

DAY: Final = 86_400
# If a restarted process has run for fewer seconds than this, the plan assumes that the service ends again and again.
YOUNG_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Desired:
    """The desired state of a host."""

    name: str
    release: str
    release_description: str
    settings: str  # Digest of the settings' text.
    unit: str  # SHA-256 of the unit file.
    unit_mark: str  # The id that this unit puts into the environment of its processes.
    # SHA-256 of each valid certificate of the host. The set is empty if the host needs a new certificate.
    tls: frozenset[str]
    roots: str
    coordinator: str
    care: RolloutSettings
    role: Role = DEVICE
    # Digest of a broker's rules and revocations, or of the records that a coordinator knows.
    lists: str = ""
    revoked: str = ""
    targets: str = ""  # Digest of the targets for a Prometheus on the coordinator's host.
    signers: str = ""  # SHA-256 of the file of allowed signers.

    @property
    def blocked_key(self) -> str:
        """Return the name of this release with these settings; a host blocks this name after a failure."""
        return f"{self.release}-{self.settings}"


@dataclass(frozen=True, slots=True)
class RefuseHost:
    """The reasons why a host cannot be deployed."""

    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prepare:
    """The step that makes users and folders, and stores the roots whose signatures the host accepts."""


@dataclass(frozen=True, slots=True)
class Ship:
    release: str
    description: str


@dataclass(frozen=True, slots=True)
class BuildRelease:
    """The step that builds an environment from the shipped files.

    The environment is complete after a test in it has imported all modules and multiplied a matrix.
    """

    release: str


@dataclass(frozen=True, slots=True)
class Enrol:
    reason: str


@dataclass(frozen=True, slots=True)
class Admit:
    """The step that sends the coordinator the records of all enrolled names."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The step that gives the host's Prometheus the addresses of all hosts that serve metrics."""


@dataclass(frozen=True, slots=True)
class Configure:
    """The step that uploads the signed settings and the unit, and does not change the files in use."""

    reason: str


@dataclass(frozen=True, slots=True)
class Drain:
    """The step that waits until the running process has finished its work, and stops it."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Switch:
    """The step that switches the host to a release and the new settings; they are used from the next start on."""

    release: str


@dataclass(frozen=True, slots=True)
class StartRelease:
    """The step that replaces the running process by a new one."""


@dataclass(frozen=True, slots=True)
class Health:
    """The step that waits until the coordinator has answered the new process."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Soak:
    rounds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RecordGood:
    """The step that records the new state as known good. If a later change fails, the host returns to this state."""

    release: str
    settings: str


Step: TypeAlias = (
    RefuseHost
    | Prepare
    | Ship
    | BuildRelease
    | Enrol
    | Admit
    | Targets
    | Configure
    | Drain
    | Switch
    | StartRelease
    | Health
    | Soak
    | RecordGood
)


@dataclass(frozen=True, slots=True)
class InstalledSettings:
    """The installed settings; the fields are empty if our root has not signed the settings."""

    settings: str = ""  # Digest of the settings' text.
    version: int = 0


def plan(
    facts: Facts, desired: Desired, checks: list[Check], present: InstalledSettings, force: bool = False
) -> list[Step]:
    """Return the steps from the host's present state to its desired state."""
    installed = facts.installed
    if reasons := [f"{check.name}: {check.reason}; {check.fix}" for check in failures(checks)]:
        return [RefuseHost(tuple(reasons))]
    if desired.blocked_key in installed.blocked and not force:
        return [RefuseHost((_blocked_reason(desired, installed.rolled_back),))]
    return list(_steps(facts, desired, present))


def _blocked_reason(desired: Desired, rolled_back: frozenset[str]) -> str:
    what, role = f"release {desired.release} with these settings", desired.role.name
    if desired.blocked_key in rolled_back:
        return (
            f"{what} was rolled back by hand on this {role}; --force deploys it again, or change the release or "
            "the settings"
        )
    return f"{what} has failed on this {role} before; change the release or the settings, or use --force"


def _steps(facts: Facts, desired: Desired, present: InstalledSettings) -> Iterator[Step]:
    installed, service, care = facts.installed, facts.installed.service, desired.care
    if not installed.user or (installed.pinned, installed.signers) != (desired.roots, desired.signers):
        yield Prepare()
    if desired.role.runs_our_release and desired.release not in installed.complete:
        yield Ship(desired.release, desired.release_description)
        yield BuildRelease(desired.release)
    if reason := enrolment_reason(facts, desired):
        yield Enrol(reason)
    yield from _known_to_a_coordinator(facts, desired)
    new_settings, new_unit = present.settings != desired.settings, installed.unit != desired.unit
    changed = new_settings or new_unit or installed.release != desired.release
    if new_settings or new_unit:
        yield Configure(
            " and ".join(what for what, is_new in (("settings", new_settings), ("unit", new_unit)) if is_new)
        )
    if changed:
        yield Switch(desired.release)
    restart = changed or not is_running(facts, desired, present)
    if restart:
        if service.active == "active" and desired.role == DEVICE:
            yield Drain(care.drain_seconds)
        yield StartRelease()
    if restart or not is_known_good(installed.good, desired) or not is_healthy(facts):
        yield Health(care.health_seconds)
        if not is_known_good(installed.good, desired):
            # Only a device gets the step Soak, which watches some rounds. A broker or a coordinator may have no
            # devices yet, and so no rounds.
            if desired.role == DEVICE:
                yield Soak(care.soak_rounds, care.soak_seconds)
            yield RecordGood(desired.release, desired.settings)


def _known_to_a_coordinator(facts: Facts, desired: Desired) -> Iterator[Step]:
    if desired.role.name != COORDINATOR:
        return
    if facts.installed.lists != desired.lists:
        yield Admit()
    if facts.prometheus and facts.installed.targets != desired.targets:
        yield Targets()


def is_running(facts: Facts, desired: Desired, present: InstalledSettings) -> bool:
    """Return whether the running process was started from the desired state."""
    service, status = facts.installed.service, facts.installed.status
    if service.active not in ("active", "activating") or not service.enabled:
        return False
    if has_ended(facts):
        return is_known_good(facts.installed.good, desired)
    if (service.running, service.unit) != (desired.release, desired.unit_mark):
        return False
    return status is None or status.pid != service.pid or status.settings == present.version


def has_ended(facts: Facts) -> bool:
    """Return whether the run of a coordinator is over."""
    service = facts.installed.service
    return (service.active, service.sub) == ("active", "exited")


def is_healthy(facts: Facts) -> bool:
    if facts.installed.answers or has_ended(facts):
        return facts.installed.answers in ("ok", "")
    status = facts.installed.status
    if status is None or status.pid != facts.installed.service.pid or keeps_ending(facts):
        return False
    return status.connected and not status.over


def keeps_ending(facts: Facts) -> bool:
    """Return whether systemd starts the service again and again.

    The result is true if the service waits for a restart, or if its process is young and earlier processes
    have ended.
    """
    service, status = facts.installed.service, facts.installed.status
    if service.sub == "auto-restart":
        return True
    return bool(service.restarts and status and facts.now - status.started < YOUNG_SECONDS)


def is_known_good(good: KnownGood | None, desired: Desired) -> bool:
    return good is not None and (good.release, good.settings, good.unit) == (
        desired.release,
        desired.settings,
        desired.unit,
    )


def enrolment_reason(facts: Facts, desired: Desired) -> str:
    installed, role = facts.installed, desired.role.name
    if not installed.tls:
        return "the host has no keys yet"
    if installed.tls not in desired.tls:
        return "its certificate ends soon, was revoked, is of another federation, or is for another address"
    if installed.roots != desired.roots:
        return "the federation has other roots now"
    if role == BROKER and installed.lists != desired.lists:
        return "the broker's rules, or the list of revoked names, have changed"
    if role == COORDINATOR and installed.revoked != desired.revoked:
        return "the list of revoked names has changed"
    if role == DEVICE.name and installed.coordinator != desired.coordinator:
        return "the coordinator has a new record"
    return ""


def describe(step: Step) -> str:
    match step:
        case RefuseHost(reasons):
            return "cannot be deployed: " + "; ".join(reasons)
        case Prepare():
            return "prepare: make users and folders, and store the roots of the federation"
        case Ship(release, description):
            return f"ship: release {release}, {description}"
        case BuildRelease(release):
            return f"build: release {release}"
        case Enrol(reason):
            return f"enrol: {reason}"
        case Admit():
            return "admit: send the records of all enrolled names"
        case Targets():
            return "targets: send the addresses of all metrics to the Prometheus on this host"
        case Configure(reason):
            return f"configure: {reason}"
        case Drain(seconds):
            return f"drain: at most {seconds:g} s for the work in progress"
        case Switch(release):
            return f"switch: to release {release}"
        case StartRelease():
            return "start"
        case Health(seconds):
            return f"health: wait at most {seconds:g} s until the service is healthy"
        case Soak(rounds, seconds):
            return f"soak: {rounds} round{'s' * (rounds != 1)}, at most {seconds:g} s"
        case RecordGood():
            return "record: this state is good"


def name_of(step: Step) -> str:
    """Return the name of a step for errors and for the deploy log: the first word of its description."""
    return describe(step).partition(":")[0]
