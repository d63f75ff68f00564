"""Read the state of a host from the output that `facts.sh` prints there."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from protofleet.deploy.fleet.device.fields import LATEST, Fields, read_object
from protofleet.edge_client.host.status_file import Status
from protofleet.protocol.security.records import REVOCATIONS
from protofleet.protocol.security.signed_settings import SETTINGS
from protofleet.protocol.security.statements import StatementError, from_armour
from protofleet.protocol.security.trust import ROOTS
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.printable import printable

MODEL: Final = re.compile(r"(current|champion|pinned) (v[0-9]{6,9}) ([0-9]{1,9})")
DEGREES: Final = re.compile(r"-?[0-9]{1,9}")  # A temperature in thousandths of a degree.
SHOWN: Final = 80  # If an output cannot be decoded, its last SHOWN characters are shown.


@dataclass(frozen=True, slots=True)
class KnownGood:
    """A state of this host that was recorded as good. A rollback returns to such a state."""

    release: str
    settings: str  # Digest of the settings' text.
    unit: str
    by: str
    at: int


@dataclass(frozen=True, slots=True)
class Service:
    # The state in systemd: "active", "activating", "failed" or "inactive"; "" if there is no such unit.
    active: str = ""
    sub: str = ""
    enabled: bool = False
    # The process id that the service itself reports. In a container, this id differs from the id that systemd knows.
    pid: int = 0
    restarts: int = 0
    running: str = ""  # The release that the process runs.
    unit: str = ""  # The mark of the unit that has started the process.


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """One version of the model that a device serves."""

    version: str
    round: int


@dataclass(frozen=True, slots=True)
class Installed:
    user: bool = False
    pinned: str = ""  # SHA-256 of the roots whose signatures the device accepts.
    release: str = ""  # The release to which the link `current` points.
    complete: frozenset[str] = frozenset()
    blocked: frozenset[str] = frozenset()
    # The releases that are blocked because an operator has rolled them back, and not because they failed.
    rolled_back: frozenset[str] = frozenset()
    settings: bytes = b""  # The signed statement of the settings.
    good_settings: bytes = b""
    previous_settings: bytes = b""
    # SHA-256 of the unit file. The fields from here to `revoked` are SHA-256 of files too.
    unit: str = ""
    tls: str = ""
    roots: str = ""
    coordinator: str = ""
    # SHA-256 of a broker's rules and revocations, or of the records that a coordinator knows.
    lists: str = ""
    revoked: str = ""
    # The next three fields are the host's signed revocations, its signed roots, and its revocation lists in PEM.
    # Only the broker's host has revocation lists.
    held_revoked: bytes = b""
    held_roots: bytes = b""
    held_crl: bytes = b""
    targets: str = ""  # SHA-256 of the targets for the Prometheus on the host.
    # SHA-256 of the roots in the form that ssh-keygen reads; "" if an earlier release did not store this form.
    signers: str = ""
    good: KnownGood | None = None
    previous: KnownGood | None = None  # The known good state that preceded `good`.
    service: Service = field(default_factory=Service)
    status: Status | None = None
    # The health of a service that writes no status file: "ok", or a description of the problem.
    answers: str = ""
    # The served versions of the model. Each key is the name of a link to a version: current, champion or pinned.
    models: Mapping[str, ServedVersion] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Docker:
    version: str = ""  # The engine's version; "" if the engine does not answer.
    runtimes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """The part of a host's state that only our own program on the host can find out."""

    torch: str = ""
    cuda: bool | None = None
    broker: str = ""  # "ok", or the reason why the broker cannot be used; "" if this was not checked.
    broker_tcp: bool | None = None  # True if the broker's port can be reached; None if this was not checked.
    cert_until: int = 0
    # The build of torch, such as "cpu", "cuda 13.0" or "rocm 6.4"; "" if an older release does not report the build.
    torch_build: str = ""
    torch_bytes: int = 0  # Bytes on the disk of torch and of the packages that a GPU build of torch loads.


@dataclass(frozen=True, slots=True)
class Facts:
    arch: str
    uid: int
    now: int
    os: str = ""
    model: str = ""
    l4t: str = ""  # The version of L4T, such as 36.4.3; "" if the host is not a Jetson.
    nvidia: bool = False  # True if there are device files of an NVIDIA GPU.
    tools: frozenset[str] = frozenset()
    # True if ssh-keygen can verify the signature of a file, as in OpenSSH 8.2 and later.
    verifies: bool = False
    python: str = ""
    venv: bool = False
    mosquitto: str = ""  # The version of Mosquitto.
    prometheus: bool = False
    systemd: int = 0
    systemd_state: str = ""
    clock_synced: bool | None = None  # True if the clock is synchronised; None if this is unknown.
    groups: tuple[str, ...] = ()  # The groups of the host whose members may use the GPU: video, render.
    disk_free: int = 0
    state_free: int = 0
    storage: str = ""
    ram: int = 0
    ram_free: int = 0
    swap: int = 0
    temperatures: tuple[tuple[str, float], ...] = ()
    nvpmodel: str = ""
    docker: Docker | None = None  # None if docker is not installed.
    iptables: str = ""
    iptables_works: bool | None = None
    installed: Installed = field(default_factory=Installed)
    probe: ProgramFacts | None = None


class IncompleteError(SettingsError):
    """The error for an incomplete output of `facts.sh`: the script was interrupted."""


def read_facts(text: str) -> Facts:
    """Read the output of `facts.sh`; raise SettingsError if a value has the wrong type."""
    said = Fields(text)
    if said.raw("end") != "yes" or not said.text("arch"):
        raise IncompleteError(
            f"the output of facts.sh on the host is incomplete; its end is '{printable(text[-SHOWN:])}'"
        )
    return Facts(
        said.text("arch"), said.required_number("uid"), said.required_number("now", LATEST),
        os=said.text("os"), model=said.text("model"), l4t=said.text("l4t"), nvidia="nvidia" in said,
        tools=frozenset(said.texts("tool")), verifies="verifies" in said,
        python=said.text("python"), venv="venv" in said,
        mosquitto=said.text("mosquitto"), prometheus="prometheus" in said,
        systemd=said.number("systemd"), systemd_state=said.text("systemd_state"),
        clock_synced=said.yes_or_no("clock_synced"), groups=tuple(said.text("groups").split()),
        disk_free=said.number("disk_free"), state_free=said.number("state_free"),
        storage=said.text("storage"), ram=said.number("ram"), ram_free=said.number("ram_free"),
        swap=said.number("swap"), temperatures=tuple(map(_temperature, said.texts("temperature"))),
        nvpmodel=said.text("nvpmodel"),
        docker=Docker(said.text("docker"), tuple(said.text("docker_runtimes").split())) if "docker" in said else None,
        iptables=said.text("iptables"), iptables_works=said.yes_or_no("iptables_works"),
        installed=_installed(said), probe=_probe(said),
    )  # fmt: skip


def _installed(said: Fields) -> Installed:
    service = read_service(said)
    return Installed(
        "user" in said, said.text("pinned"), said.text("release"),
        frozenset(said.texts("complete")), frozenset(said.texts("blocked")), frozenset(said.texts("rolled_back")),
        settings=_statement(said.raw("settings")), good_settings=_statement(said.raw("good_settings")),
        previous_settings=_statement(said.raw("previous_settings")),
        unit=said.text("unit"), tls=said.text("tls"), roots=said.text("roots"),
        coordinator=said.text("coordinator"), lists=said.text("lists"), revoked=said.text("revoked"),
        held_revoked=_statement(said.raw("held_revoked"), REVOCATIONS),
        held_roots=_statement(said.raw("held_roots"), ROOTS), held_crl=_bytes(said.raw("held_crl")),
        targets=said.text("targets"), signers=said.text("signers"),
        answers=said.text("answers"), good=read_object(KnownGood, said.raw("good")),
        previous=read_object(KnownGood, said.raw("previous")), service=service,
        status=read_object(Status, said.raw("status")),
        models=dict(filter(None, map(_served, said.texts("served")))),
    )  # fmt: skip


def read_service(said: Fields) -> Service:
    return Service(
        said.text("ActiveState"), said.text("SubState"), said.text("UnitFileState") == "enabled",
        said.number("agent"), said.number("NRestarts"), said.text("running"), said.text("running_unit"),
    )  # fmt: skip


def _served(text: str) -> tuple[str, ServedVersion] | None:
    """Read a served version from the text "LINK VERSION ROUND"; return None for any other text.

    `facts.sh` makes this text from links and files that the device's own user can change, so any text is possible.
    """
    found = MODEL.fullmatch(text)
    return (found[1], ServedVersion(found[2], int(found[3]))) if found else None


def _probe(said: Fields) -> ProgramFacts | None:
    if not any(key in said for key in ("torch", "cuda", "broker", "broker_tcp", "cert_until")):
        return None
    return ProgramFacts(
        said.text("torch"), said.yes_or_no("cuda"), said.text("broker"), said.yes_or_no("broker_tcp"),
        said.number("cert_until", LATEST), said.text("torch_build"), said.number("torch_bytes"),
    )  # fmt: skip


def _statement(text: str, kind: str = SETTINGS) -> bytes:
    try:
        return from_armour(kind, text.encode())
    except StatementError:
        return b""


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text)  # The line breaks in the text do no harm: b64decode ignores them.
    except ValueError:
        return b""


def _temperature(text: str) -> tuple[str, float]:
    value, _, zone = text.partition(" ")
    return zone, int(value) / 1000 if DEGREES.fullmatch(value) else 0.0
