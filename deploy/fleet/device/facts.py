"""The state of a device as a value, read from what `facts.sh` prints there."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from protofleet.edge_client.host.status_file import Status
from protofleet.protocol.security.statements import StatementError, from_armour
from protofleet.protocol.settings.reader import SettingsError

MODEL: Final = re.compile(r"(current|champion|pinned) (v\d{6,9}) (\d{1,9})")


@dataclass(frozen=True, slots=True)
class KnownGood:
    """A state in which this device has answered a round: a rollback goes to it."""

    release: str
    settings: str  # digest of their text
    unit: str
    by: str
    at: int


@dataclass(frozen=True, slots=True)
class Service:
    active: str = ""  # active, activating, failed, inactive; empty: there is no such unit
    sub: str = ""
    enabled: bool = False
    pid: int = 0  # as the agent sees it: in a container another than systemd's
    restarts: int = 0
    running: str = ""  # release of the process
    unit: str = ""  # mark of the unit that has started it


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """Of the model that a device serves."""

    version: str
    round: int


@dataclass(frozen=True, slots=True)
class Installed:
    user: bool = False
    pinned: str = ""  # SHA-256 of the roots whose signatures the device accepts
    release: str = ""  # that `current` links to
    complete: frozenset[str] = frozenset()
    blocked: frozenset[str] = frozenset()
    settings: bytes = b""  # the signed statement
    good_settings: bytes = b""
    previous_settings: bytes = b""
    unit: str = ""  # SHA-256 of the unit file, and so on
    tls: str = ""
    roots: str = ""
    coordinator: str = ""
    lists: str = ""  # SHA-256 of a broker's rules and revocations, or of the records that a coordinator knows
    revoked: str = ""
    targets: str = ""  # of the Prometheus there
    good: KnownGood | None = None
    previous: KnownGood | None = None  # the one before
    service: Service = field(default_factory=Service)
    status: Status | None = None
    answers: str = ""  # of a service that writes no status: ok, or what is wrong
    models: Mapping[str, ServedVersion] = field(default_factory=dict)  # by link: current, champion, pinned


@dataclass(frozen=True, slots=True)
class Docker:
    version: str = ""  # of the engine; empty: it does not answer
    runtimes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    """What only our own program on the device can find out."""

    torch: str = ""
    cuda: bool | None = None
    broker: str = ""  # ok, or why not; empty: not checked
    broker_tcp: bool | None = None  # whether its port can be reached
    cert_until: int = 0
    torch_build: str = ""  # "cpu", "cuda 13.0", "rocm 6.4"; "": an older release does not say it
    torch_bytes: int = 0  # on the disk, with what its build for a GPU loads


@dataclass(frozen=True, slots=True)
class Facts:
    arch: str
    uid: int
    now: int
    os: str = ""
    model: str = ""
    l4t: str = ""  # 36.4.3; empty: no Jetson
    nvidia: bool = False  # there are device files of an NVIDIA GPU
    tools: frozenset[str] = frozenset()
    python: str = ""
    venv: bool = False
    mosquitto: str = ""  # its version
    prometheus: bool = False
    systemd: int = 0
    systemd_state: str = ""
    clock_synced: bool | None = None  # None: unknown
    groups: tuple[str, ...] = ()  # that may use the GPU: video, render
    disk_free: int = 0
    state_free: int = 0
    storage: str = ""
    ram: int = 0
    ram_free: int = 0
    swap: int = 0
    temperatures: tuple[tuple[str, float], ...] = ()
    nvpmodel: str = ""
    docker: Docker | None = None  # None: it is not installed
    iptables: str = ""
    iptables_works: bool | None = None
    installed: Installed = field(default_factory=Installed)
    probe: Probe | None = None


def read_facts(text: str) -> Facts:
    """What `facts.sh` has printed. SettingsError where it did not come to its end."""
    values: dict[str, list[str]] = defaultdict(list)
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            values[key].append(value.strip())
    one = {key: found[-1] for key, found in values.items()}
    if "end" not in one or not one.get("arch"):
        raise SettingsError(f"the facts of the device are incomplete; they end with {text[-80:]!r}")
    return Facts(
        one["arch"], int(one["uid"]), int(one["now"]),
        os=one.get("os", ""), model=one.get("model", ""), l4t=one.get("l4t", ""), nvidia="nvidia" in one,
        tools=frozenset(values["tool"]), python=one.get("python", ""), venv="venv" in one,
        mosquitto=one.get("mosquitto", ""), prometheus="prometheus" in one,
        systemd=int(one.get("systemd") or 0), systemd_state=one.get("systemd_state", ""),
        clock_synced=_yes_or_no(one.get("clock_synced")), groups=tuple(one.get("groups", "").split()),
        disk_free=int(one.get("disk_free") or 0), state_free=int(one.get("state_free") or 0),
        storage=one.get("storage", ""), ram=int(one.get("ram", 0)), ram_free=int(one.get("ram_free", 0)),
        swap=int(one.get("swap", 0)), temperatures=tuple(map(_temperature, values["temperature"])),
        nvpmodel=one.get("nvpmodel", ""),
        docker=Docker(one["docker"], tuple(one.get("docker_runtimes", "").split())) if "docker" in one else None,
        iptables=one.get("iptables", ""), iptables_works=_yes_or_no(one.get("iptables_works")),
        installed=_installed(values, one), probe=_probe(one),
    )  # fmt: skip


def _installed(values: Mapping[str, list[str]], one: Mapping[str, str]) -> Installed:
    service = Service(
        one.get("ActiveState", ""), one.get("SubState", ""), one.get("UnitFileState") == "enabled",
        int(one.get("agent") or 0), int(one.get("NRestarts") or 0), one.get("running", ""),
        one.get("running_unit", ""),
    )  # fmt: skip
    return Installed(
        "user" in one, one.get("pinned", ""), one.get("release", ""),
        frozenset(values["complete"]), frozenset(values["blocked"]),
        settings=_statement(one.get("settings", "")), good_settings=_statement(one.get("good_settings", "")),
        previous_settings=_statement(one.get("previous_settings", "")),
        unit=one.get("unit", ""), tls=one.get("tls", ""), roots=one.get("roots", ""),
        coordinator=one.get("coordinator", ""), lists=one.get("lists", ""), revoked=one.get("revoked", ""),
        targets=one.get("targets", ""), answers=one.get("answers", ""), good=_good(one.get("good", "")),
        previous=_good(one.get("previous", "")), service=service, status=_status(one.get("status", "")),
        models=dict(filter(None, map(_served, values["model"]))),
    )  # fmt: skip


def _served(text: str) -> tuple[str, ServedVersion] | None:
    """The device's own user may have written anything there."""
    found = MODEL.fullmatch(text)
    return (found[1], ServedVersion(found[2], int(found[3]))) if found else None


def _probe(one: Mapping[str, str]) -> Probe | None:
    if not {"torch", "cuda", "broker", "broker_tcp", "cert_until"} & one.keys():
        return None
    cuda, reached = _yes_or_no(one.get("cuda")), _yes_or_no(one.get("broker_tcp"))
    return Probe(
        one.get("torch", ""), cuda, one.get("broker", ""), reached, int(one.get("cert_until", 0)),
        one.get("torch_build", ""), int(one.get("torch_bytes") or 0),
    )  # fmt: skip


def _good(text: str) -> KnownGood | None:
    try:
        return KnownGood(**json.loads(text))
    except (ValueError, TypeError):
        return None


def _status(text: str) -> Status | None:
    try:
        return Status(**json.loads(text))
    except (ValueError, TypeError):
        return None


def _statement(text: str) -> bytes:
    try:
        return from_armour("settings", text.encode())
    except StatementError:
        return b""


def _temperature(text: str) -> tuple[str, float]:
    value, _, zone = text.partition(" ")
    return zone, int(value) / 1000 if value.lstrip("-").isdigit() else 0.0


def _yes_or_no(text: str | None) -> bool | None:
    return {"yes": True, "no": False}.get(text or "")
