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
DEGREES: Final = re.compile(r"-?[0-9]{1,9}")  # thousandths of a degree
SHOWN: Final = 80  # characters that are shown of an output that cannot be read


@dataclass(frozen=True, slots=True)
class KnownGood:
    """A state of this host that was recorded as good; a rollback goes to it."""

    release: str
    settings: str  # digest of the settings' text
    unit: str
    by: str
    at: int


@dataclass(frozen=True, slots=True)
class Service:
    active: str = ""  # active, activating, failed or inactive; "": there is no such unit
    sub: str = ""
    enabled: bool = False
    pid: int = 0  # the process id as the agent sees it: in a container it differs from systemd's
    restarts: int = 0
    running: str = ""  # the release that the process runs
    unit: str = ""  # the mark of the unit that has started the process


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """One version of the model that a device serves."""

    version: str
    round: int


@dataclass(frozen=True, slots=True)
class Installed:
    user: bool = False
    pinned: str = ""  # SHA-256 of the roots whose signatures the device accepts
    release: str = ""  # the release that `current` links to
    complete: frozenset[str] = frozenset()
    blocked: frozenset[str] = frozenset()
    # blocked releases that have not failed, but were rolled back by hand
    rolled_back: frozenset[str] = frozenset()
    settings: bytes = b""  # the signed statement of the settings
    good_settings: bytes = b""
    previous_settings: bytes = b""
    unit: str = ""  # SHA-256 of the unit file; the next fields are SHA-256 of files too
    tls: str = ""
    roots: str = ""
    coordinator: str = ""
    # SHA-256 of a broker's rules and revocations, or of the records that a coordinator knows.
    lists: str = ""
    revoked: str = ""
    # the signed revocations and roots that the host holds, and a broker's revocation lists in PEM
    held_revoked: bytes = b""
    held_roots: bytes = b""
    held_crl: bytes = b""
    targets: str = ""  # SHA-256 of the targets for the Prometheus on the host
    signers: str = (
        ""  # SHA-256 of the roots in the form that ssh-keygen reads; "": an earlier release stored none
    )
    good: KnownGood | None = None
    previous: KnownGood | None = None  # the known good state before `good`
    service: Service = field(default_factory=Service)
    status: Status | None = None
    answers: str = ""  # health of a service that writes no status file: ok, or the problem
    # the versions by link: current, champion, pinned
    models: Mapping[str, ServedVersion] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Docker:
    version: str = ""  # the engine's version; "": the engine does not answer
    runtimes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    """The facts that only our own program on the host can find out."""

    torch: str = ""
    cuda: bool | None = None
    broker: str = ""  # ok, or the reason why the broker cannot be used; "": not checked
    broker_tcp: bool | None = None  # whether the broker's port can be reached
    cert_until: int = 0
    torch_build: str = ""  # "cpu", "cuda 13.0", "rocm 6.4"; "": an older release does not report it
    torch_bytes: int = 0  # bytes on the disk, with the packages that a build for a GPU loads


@dataclass(frozen=True, slots=True)
class Facts:
    arch: str
    uid: int
    now: int
    os: str = ""
    model: str = ""
    l4t: str = ""  # the version of L4T, such as 36.4.3; "": the host is no Jetson
    nvidia: bool = False  # there are device files of an NVIDIA GPU
    tools: frozenset[str] = frozenset()
    # whether ssh-keygen verifies the signature of a file, which it does from OpenSSH 8.2 on
    verifies: bool = False
    python: str = ""
    venv: bool = False
    mosquitto: str = ""  # the version of Mosquitto
    prometheus: bool = False
    systemd: int = 0
    systemd_state: str = ""
    clock_synced: bool | None = None  # None: unknown
    groups: tuple[str, ...] = ()  # the groups that may use the GPU: video, render
    disk_free: int = 0
    state_free: int = 0
    storage: str = ""
    ram: int = 0
    ram_free: int = 0
    swap: int = 0
    temperatures: tuple[tuple[str, float], ...] = ()
    nvpmodel: str = ""
    docker: Docker | None = None  # None: docker is not installed
    iptables: str = ""
    iptables_works: bool | None = None
    installed: Installed = field(default_factory=Installed)
    probe: Probe | None = None


class IncompleteError(SettingsError):
    """The error for an output of `facts.sh` that is not complete, because the script was interrupted."""


def read_facts(text: str) -> Facts:
    """Read the output of `facts.sh`; raise SettingsError if a value is not of its type."""
    said = Fields(text)
    if said.raw("end") != "yes" or not said.text("arch"):
        raise IncompleteError(
            f"the facts of the device are incomplete; they end with '{printable(text[-SHOWN:])}'"
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
    """Read a served version; return None for any other text.

    The device's own user may have written any text there.
    """
    found = MODEL.fullmatch(text)
    return (found[1], ServedVersion(found[2], int(found[3]))) if found else None


def _probe(said: Fields) -> Probe | None:
    if not any(key in said for key in ("torch", "cuda", "broker", "broker_tcp", "cert_until")):
        return None
    return Probe(
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
        return base64.b64decode(text)  # b64decode ignores spaces.
    except ValueError:
        return b""


def _temperature(text: str) -> tuple[str, float]:
    value, _, zone = text.partition(" ")
    return zone, int(value) / 1000 if DEGREES.fullmatch(value) else 0.0
