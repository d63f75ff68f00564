"""A fleet file: which hosts there are, what runs on them, and how a change is rolled out."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Concatenate, Final, ParamSpec, TypeVar

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.deploy.brokers.mosquitto import ListenerSettings, queue_limits, tls_settings
from protofleet.deploy.enrol.local_federation import tls_files
from protofleet.deploy.fleet.device import shipped_template
from protofleet.deploy.fleet.device.roles import BROKER, DEVICE, ROLES
from protofleet.deploy.fleet.device.shipped_plugins import files_in, with_hashes
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.catalog import find
from protofleet.edge_client.data.catalog import names as source_names
from protofleet.edge_client.data.settings import DataSettings
from protofleet.methods.plugins.paths import seen_from
from protofleet.protocol.settings.bounds import LARGEST_COUNT, Bytes, OptionalPort, Seconds, Share, Within
from protofleet.protocol.settings.reader import (
    SettingsError,
    decode,
    decode_file,
    demand_within,
    encode,
    merge,
    read_toml,
)
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.wire.names import COORDINATOR, valid_name

ADDRESS_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,252}")
USER_PATTERN: Final = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
# What needs no quotes in an ssh configuration and in a unit.
PATH_PATTERN: Final = re.compile(r"[A-Za-z0-9_./@+-]+")
OPTION_PATTERN: Final = re.compile(r"[A-Za-z0-9_./:@=,+-]+")
KEY_FOLDER: Final = DEVICE.keys
DEVICE_DEFAULTS: Final[Mapping[str, Any]] = {
    "folder": "/var/lib/protofleet/state",
    "status": "/run/protofleet/status.json",
    "tuning": "/etc/protofleet/tuning",
    "trainer": "child",
    "patience_seconds": float("inf"),  # a board that boots before its network waits for it
}
COORDINATOR_DEFAULTS: Final[Mapping[str, Any]] = {
    "folder": f"{ROLES[COORDINATOR].home}/runs",
    "devices": f"{ROLES[COORDINATOR].etc}/records",
    "metrics_port": 9100,
}
KINDS: Final = ("venv", "container")
DEPENDENCIES: Final = ("index", "shipped", "system")


P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def naming_file(fleet: Fleet) -> Iterator[None]:
    """A mistake in what the file says of a host is said with the file, once."""
    try:
        yield
    except SettingsError as error:
        if not fleet.file or str(error).startswith(f"{fleet.file}: "):
            raise
        raise SettingsError(f"{fleet.file}: {error}") from None


def names_its_file(read: Callable[Concatenate[Fleet, P], R]) -> Callable[Concatenate[Fleet, P], R]:
    @functools.wraps(read)
    def named(fleet: Fleet, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with naming_file(fleet):
            return read(fleet, *args, **kwargs)

    return named


@dataclass(frozen=True)
class Software:
    """What is shipped. A release is named by a digest of it."""

    kind: str = "venv"
    wheels: str = ""  # folder of wheels to ship beside ours
    python: str = "python3"  # on the device
    # index: pip fetches them; shipped: all are in `wheels`; system: the device has them
    dependencies: str = "index"
    image: str = ""  # of a container: name@sha256:..., where the device can pull it
    archive: str = ""  # of a container: what `docker save` wrote, where it cannot
    options: tuple[str, ...] = ()  # of a container: for docker run, such as volumes and devices

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind is {self.kind!r}, it must be one of {', '.join(KINDS)}")
        if self.dependencies not in DEPENDENCIES:
            words = f"dependencies is {self.dependencies!r}, it must be one of {', '.join(DEPENDENCIES)}"
            raise ValueError(words)
        if self.dependencies == "shipped" and not self.wheels:
            raise ValueError('dependencies is "shipped", but no folder of wheels is named; set wheels')
        if not PATH_PATTERN.fullmatch(self.python):
            raise ValueError(f"python is {self.python!r}, it must be a command or a path without spaces")
        if self.kind == "container" and bool(self.image) == bool(self.archive):
            raise ValueError(
                "a container comes as image (name@sha256:...) or as archive (a tar file), not both"
            )
        for word in self.options:
            if not OPTION_PATTERN.fullmatch(word):
                raise ValueError(
                    f"options has {word!r}; a word for docker run has no spaces, quotes or signs of a shell"
                )
        if self.image and not re.fullmatch(r"[a-z0-9./:_-]+@sha256:[0-9a-f]{64}", self.image):
            words = "pin what was tested by its digest, name@sha256:..., as tags like latest move"
            raise ValueError(f"image is {self.image!r}; {words}")


@dataclass(frozen=True)
class RolloutSettings:
    """How a change is rolled out, and when it counts as good."""

    canary: Annotated[int, Within(1, LARGEST_COUNT)] = 1  # devices of the first wave
    share: Annotated[float, Within(0, 1, above=True)] = 0.1  # of the fleet, in the second wave
    parallel: Annotated[int, Within(1, 1024)] = 8
    drain_seconds: Seconds = 900.0  # for the work in progress to end
    health_seconds: Seconds = 120.0  # for the coordinator to answer a hello
    soak_rounds: Annotated[int, Within(0, LARGEST_COUNT)] = 1  # to be served before a change counts as good
    # For them; a device that no round asks in this time passes, and that is printed.
    soak_seconds: Seconds = 1800.0
    accuracy_drop: Share = 0.0  # of any domain, after a wave, that stops the rollout; 0: not checked
    metrics: str = ""  # of the coordinator, for that: http://host:9100/metrics

    def __post_init__(self) -> None:
        demand_within(self)
        if self.accuracy_drop and not self.metrics.startswith(("http://", "https://")):
            words = "accuracy_drop needs the coordinator's metrics, such as http://host:9100/metrics"
            raise ValueError(f"metrics is {self.metrics!r}; {words}")


@dataclass(frozen=True)
class Host:
    address: str  # a name, an address, or a name of your ~/.ssh/config
    user: str = ""  # empty: as ssh has it
    port: OptionalPort = 0
    key: str = ""  # of the ssh client
    memory_bytes: Bytes = 0  # limit of the service; 0: all but 1.5 GB
    role: str = DEVICE.name  # or broker, coordinator
    device: dict[str, Any] = field(default_factory=dict)  # settings in addition to the common ones
    software: dict[str, Any] = field(default_factory=dict)  # in addition to the common one

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"role is {self.role!r}, it must be one of {', '.join(ROLES)}")
        if not ADDRESS_PATTERN.fullmatch(self.address):
            raise ValueError(f"address is {self.address!r}, it must be a host's name or address")
        if self.user and not USER_PATTERN.fullmatch(self.user):
            raise ValueError(f"user is {self.user!r}, which is no user's name")
        if self.key and not PATH_PATTERN.fullmatch(self.key):
            raise ValueError(f"key is {self.key!r}, it must be a path without spaces")


@dataclass(frozen=True)
class Mosquitto:
    """Limits of a broker that is deployed; its port is that of device.broker."""

    connections: Annotated[int, Within(1, LARGEST_COUNT)] = 2000
    memory_bytes: Bytes = 2 << 30

    def __post_init__(self) -> None:
        demand_within(self)


@dataclass(frozen=True)
class Fleet:
    root: str  # the operator's folder, from `protofleet enrol root`
    hosts: dict[str, Host]
    known_hosts: str = ""  # empty: as ssh has it
    # Its folder from `protofleet enrol broker`: it runs on this machine, or its keys are made here for its host.
    broker: str = ""
    log: str = "deploy.log"
    software: Software = field(default_factory=Software)
    care: RolloutSettings = field(default_factory=RolloutSettings)
    device: dict[str, Any] = field(default_factory=dict)  # settings of every device
    coordinator: dict[str, Any] = field(default_factory=dict)  # settings of the host that is one
    mosquitto: Mosquitto = field(default_factory=Mosquitto)  # of the host that is the broker
    file: str = field(default="", init=False)  # that says all this

    def __post_init__(self) -> None:
        if not self.hosts:
            raise ValueError("there are no hosts; add [hosts.NAME] with an address")
        known: dict[tuple[str, int, str], str] = {}
        for name, host in self.hosts.items():
            _check_name(name, host.role)
            other = known.setdefault((host.address.lower(), host.port, host.role), name)
            if other != name:
                raise ValueError(
                    f"hosts {other} and {name} have one address, {host.address}; a host runs one {host.role}, so the "
                    "second would replace the first: leave one of them out"
                )
        if len(brokers := self.of_role(BROKER)) > 1:
            raise ValueError(f"hosts {' and '.join(brokers)} are both the broker; a fleet has one")
        if brokers and not self.broker:
            words = 'name the folder for its keys on this machine, such as broker = "broker"'
            raise ValueError(f"host {brokers[0]} is the broker, but broker is empty; {words}")
        for name in self.of_role(COORDINATOR):
            if self.software_of(name).kind == "container":
                words = f'add software = {{ kind = "venv" }} to [hosts.{name}]'
                raise ValueError(f"the coordinator is deployed without a container; {words}")

    def doubts(self) -> list[str]:
        """What may be meant, and is a slip more often."""
        sought = self.device.get("broker", {}).get("host", "")
        return [
            f"devices look for the broker at {sought}, and the host with that role, {name}, is at {host.address}; if "
            "that is no other name of it, correct device.broker.host"
            for name in self.of_role(BROKER)
            if (host := self.hosts[name]).address != sought
        ] + self._too_little_memory()

    def _too_little_memory(self) -> list[str]:
        memory = self.mosquitto.memory_bytes
        needed = queue_limits(memory, len(self.of_role(DEVICE.name))).memory_needed
        if not self.of_role(BROKER) or needed <= memory:
            return []
        words = "so devices that never read could together stop the broker (docs/security.md)"
        return [f"mosquitto.memory_bytes is {memory}, {words}: set at least {needed}, if its host has that"]

    def of_role(self, role: str) -> list[str]:
        return sorted(name for name, host in self.hosts.items() if host.role == role)

    @names_its_file
    def software_of(self, name: str) -> Software:
        """What all hosts get, and what this one has in addition."""
        own = self.hosts[name].software
        return (
            decode(Software, merge(encode(self.software), own), f"hosts.{name}.software")
            if own
            else self.software
        )

    @names_its_file
    def reads_bundled_data(self, name: str) -> bool:
        """Whether its data lie in packages, which come with its release or have to be there."""
        host = self.hosts[name]
        data = merge(self.device, host.device).get("data", {})
        source = data.get("source", DataSettings.source) if isinstance(data, dict) else DataSettings.source
        if isinstance(data, dict) and data.get("file"):
            return False
        return host.role == DEVICE.name and source in source_names() and not find(source).needs_folder

    def selected(self, names: list[str]) -> dict[str, Host]:
        """The named hosts, or all, as they are deployed: broker, coordinator, then devices as in the file."""
        if unknown := [name for name in names if name not in self.hosts]:
            raise SettingsError(f"there is no host {unknown[0]!r}; there are {', '.join(self.hosts)}")
        chosen = [name for name in self.hosts if not names or name in names]
        turns = list(ROLES)
        return {
            name: self.hosts[name] for name in sorted(chosen, key=lambda n: turns.index(self.hosts[n].role))
        }


def _check_name(name: str, role: str) -> None:
    """The coordinator is enrolled under one name only, which nobody else may have."""
    if (name == COORDINATOR) != (role == COORDINATOR):
        raise ValueError(
            f"host {name} has the role {role}; the coordinator's host is [hosts.{COORDINATOR}], and no other"
        )
    valid_name(name)


def read_fleet(path: Path) -> Fleet:
    """Relative paths in it are relative to the file."""
    if not path.exists():
        raise SettingsError(
            f"there is no file {path}; name the fleet's with --fleet FILE (make: HOSTS=FILE), or begin one with "
            "`protofleet init`"
        )
    fleet, base = decode_file(Fleet, path, read_toml(path)), path.parent
    broker = str(base / fleet.broker) if fleet.broker else ""
    found = replace(
        fleet, root=str(base / fleet.root), broker=broker, log=str(base / fleet.log),
        known_hosts=str(base.absolute() / fleet.known_hosts) if fleet.known_hosts else "",
        hosts={name: _from(base, host) for name, host in fleet.hosts.items()},
        device=_device_from(base, fleet.device), coordinator=seen_from(fleet.coordinator, base),
        software=decode(Software, _with_paths(base, encode(fleet.software))),
    )  # fmt: skip
    object.__setattr__(found, "file", str(path))  # no setting, so no argument of the class
    return found


def _from(base: Path, host: Host) -> Host:
    key = str(base.absolute() / host.key) if host.key else ""
    return replace(
        host, key=key, software=_with_paths(base, host.software), device=_device_from(base, host.device)
    )


def _device_from(base: Path, table: dict[str, Any]) -> dict[str, Any]:
    return shipped_template.seen_from(seen_from(table, base), base)


def _with_paths(base: Path, software: Mapping[str, Any]) -> dict[str, Any]:
    return {k: str(base / v) if k in ("wheels", "archive") and v else v for k, v in software.items()}


@names_its_file
def plugin_files(fleet: Fleet, name: str) -> tuple[str, ...]:
    """That are shipped to this host."""
    host = fleet.hosts[name]
    if host.role == COORDINATOR:
        return files_in(fleet.coordinator)
    return files_in(merge(fleet.device, host.device)) if host.role == DEVICE.name else ()


def template_files(fleet: Fleet, name: str) -> tuple[str, ...]:
    """That are shipped to this host."""
    host = fleet.hosts[name]
    return (
        shipped_template.template_files(merge(fleet.device, host.device)) if host.role == DEVICE.name else ()
    )


@names_its_file
def device_settings(fleet: Fleet, federation: str, name: str) -> DeviceSettings:
    """The common settings, this device's own, and the paths of a deployed device."""
    fixed = {"name": name, "federation": federation, "enrolled": str(KEY_FOLDER)}
    table = merge(merge(DEVICE_DEFAULTS, fleet.device), fleet.hosts[name].device)
    for key, value in fixed.items():
        if table.setdefault(key, value) != value:
            raise SettingsError(f"device.{key} of {name} is {table[key]!r}; a deployed device has {value!r}")
    if table.get("metrics_port") and "metrics_host" not in table:
        table["metrics_host"] = metrics_address(name, fleet.hosts[name].address)
    broker = dict(table.get("broker", {}))
    if broker.get("password") is not None:
        words = "settings are shipped unencrypted and hold no secret; use certificates for the broker"
        raise SettingsError(f"device.broker.password of {name} is set, but {words}")
    broker.setdefault("tls", encode(tls_files(KEY_FOLDER)))
    return decode(DeviceSettings, with_hashes({**table, "broker": broker}), f"device ({name})")


@names_its_file
def coordinator_settings(fleet: Fleet, federation: str, name: str = COORDINATOR) -> CoordinatorSettings:
    """The file's own, the paths of a deployed coordinator, and the devices' broker where no other is named."""
    role = ROLES[COORDINATOR]
    table = merge(merge(COORDINATOR_DEFAULTS, {"broker": fleet.device.get("broker", {})}), fleet.coordinator)
    for key, value in {"federation": federation, "enrolled": str(role.keys)}.items():
        if table.setdefault(key, value) != value:
            raise SettingsError(f"coordinator.{key} is {table[key]!r}; a deployed coordinator has {value!r}")
    if not table["metrics_port"]:
        words = "a deployed coordinator is asked there how it is, so it needs a port"
        raise SettingsError(f"coordinator.metrics_port is 0; {words}")
    if "metrics_host" not in table:
        table["metrics_host"] = metrics_address(name, fleet.hosts[name].address)
    broker = dict(table["broker"])
    if broker.get("password") is not None:
        words = "settings are shipped unencrypted and hold no secret; use certificates for the broker"
        raise SettingsError(f"coordinator.broker.password is set, but {words}")
    broker["tls"] = encode(tls_files(role.keys))
    return decode(CoordinatorSettings, with_hashes({**table, "broker": broker}), "coordinator")


@names_its_file
def broker_conf(fleet: Fleet, enrolled: int = 0) -> str:
    """mosquitto.conf of the broker that is deployed, for the devices of the fleet or for all that are enrolled."""
    role = ROLES[BROKER]
    limits = fleet.mosquitto
    listener = ListenerSettings(
        broker_port(fleet), connections=limits.connections, memory=limits.memory_bytes,
        devices=max(len(fleet.of_role(DEVICE.name)), enrolled),
    )  # fmt: skip
    return tls_settings(role.keys, listener, Path(role.home))


def broker_port(fleet: Fleet) -> int:
    return broker_address(fleet).port


@names_its_file
def broker_address(fleet: Fleet) -> BrokerAddress:
    """Where devices look for it."""
    return decode(BrokerAddress, fleet.device.get("broker", {}), "device.broker")


def metrics_address(name: str, address: str) -> str:
    """Where the device serves its metrics. A host's name may resolve to another address on the host itself."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        raise SettingsError(
            f"metrics_port of {name} is set, but its address is the name {address!r}; set metrics_host to "
            'the address at which Prometheus reaches it, or to "0.0.0.0" for all of its addresses'
        ) from None
