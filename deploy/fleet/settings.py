"""Read a fleet's file: the hosts, their software and settings, and the rules of a rollout."""

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
from protofleet.coordinator.service_settings import ServiceSettings, is_service
from protofleet.deploy.fleet.device import shipped_template
from protofleet.deploy.fleet.device.roles import BROKER, DEVICE, ROLES
from protofleet.deploy.fleet.device.shipped_plugins import files_in, with_hashes
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.catalog import find
from protofleet.edge_client.data.catalog import names as source_names
from protofleet.edge_client.data.settings import DataSettings
from protofleet.federation.brokers.mosquitto import ListenerSettings, queue_limits, tls_settings
from protofleet.federation.enrol.local_federation import tls_files
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
# Paths that need no quotes in an ssh configuration or in a systemd unit.
PATH_PATTERN: Final = re.compile(r"[A-Za-z0-9_./@+-]+")
OPTION_PATTERN: Final = re.compile(r"[A-Za-z0-9_./:@=,+-]+")
KEY_FOLDER: Final = DEVICE.keys
DEVICE_DEFAULTS: Final[Mapping[str, Any]] = {
    "folder": "/var/lib/protofleet/state",
    "status": "/run/protofleet/status.json",
    "tuning": "/etc/protofleet/tuning",
    "trainer": "child",
    # A board may boot before its network is up, so a device waits for the network without a limit.
    "patience_seconds": float("inf"),
}
COORDINATOR_DEFAULTS: Final[Mapping[str, Any]] = {
    "folder": f"{ROLES[COORDINATOR].home}/runs",
    "devices": f"{ROLES[COORDINATOR].etc}/records",
    "metrics_port": 9100,
}
ONE_PLACE: Final = frozenset({"host", "port"})  # The keys of [broker] that `hosts` replaces.
KINDS: Final = ("venv", "container")
DEPENDENCIES: Final = ("index", "shipped", "system")


P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def naming_file(fleet: Fleet) -> Iterator[None]:
    """Put the path of the fleet's file in front of a SettingsError's message if the message lacks this path."""
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
    """The software that is shipped to a host. The name of a release is a digest of this software."""

    kind: str = "venv"
    """Kind of the installation, `venv` (wheels in a virtual environment) or `container` (an image)."""
    wheels: str = ""
    """Folder with wheels that are shipped together with our own wheel; empty means none."""
    python: str = "python3"
    """Command or path of the Python interpreter on the host."""
    dependencies: str = "index"
    """Origin of the other packages, `index` (pip fetches them), `shipped` (all are in `wheels`) or `system`
    (the host has them already).
    """
    image: str = ""
    """Image of a container that the host pulls, pinned by its digest in the form
    `name@sha256:...`.
    """
    archive: str = ""
    """Path of a file that `docker save` wrote, if the host cannot pull the image."""
    options: tuple[str, ...] = ()
    """Options of `docker run` for a container, such as volumes and devices."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind is {self.kind!r}, it must be one of {', '.join(KINDS)}")
        if self.dependencies not in DEPENDENCIES:
            words = f"dependencies is {self.dependencies!r}, it must be one of {', '.join(DEPENDENCIES)}"
            raise ValueError(words)
        if self.dependencies == "shipped" and not self.wheels:
            raise ValueError(
                'dependencies is "shipped", but wheels is empty; set wheels to a folder of wheels'
            )
        if not PATH_PATTERN.fullmatch(self.python):
            raise ValueError(f"python is {self.python!r}, it must be a command or a path without spaces")
        if self.kind == "container" and bool(self.image) == bool(self.archive):
            raise ValueError(
                "a container needs either image (name@sha256:...) or archive (a tar file); set one of them"
            )
        for word in self.options:
            if not OPTION_PATTERN.fullmatch(word):
                raise ValueError(
                    f"options has {word!r}; an option must not have spaces, quotes or special characters of a shell"
                )
        if self.image and not re.fullmatch(r"[a-z0-9./:_-]+@sha256:[0-9a-f]{64}", self.image):
            words = "name the tested image by its digest, name@sha256:..., because a tag such as latest can change"
            raise ValueError(f"image is {self.image!r}; {words}")


@dataclass(frozen=True)
class RolloutSettings:
    """The waves of a rollout, and the conditions under which a change is accepted as good."""

    canary: Annotated[int, Within(1, LARGEST_COUNT)] = 1
    """Number of devices in the first wave."""
    share: Annotated[float, Within(0, 1, above=True)] = 0.1
    """Part of the fleet in the second wave, from 0 to 1."""
    parallel: Annotated[int, Within(1, 1024)] = 8
    """Number of hosts that are changed at once."""
    drain_seconds: Seconds = 900.0
    """Seconds for a device to finish its work in progress before its process is stopped."""
    health_seconds: Seconds = 120.0
    """Seconds within which the coordinator must answer a hello of the new process."""
    soak_rounds: Annotated[int, Within(0, LARGEST_COUNT)] = 1
    """Number of rounds that a device must complete before a change is accepted as good."""
    soak_seconds: Seconds = 1800.0
    """Seconds for a device to complete these rounds; a device that gets no task in this time is accepted as good,
    with a message.
    """
    accuracy_drop: Share = 0.0
    """Largest drop of any domain's accuracy after a wave, from 0 to 1, with which the rollout continues; 0 means no
    check.
    """
    metrics: str = ""
    """URL of the coordinator's metrics, which `care.accuracy_drop` needs, for example
    `http://host:9100/metrics`; empty means none.
    """

    def __post_init__(self) -> None:
        demand_within(self)
        if self.accuracy_drop and not self.metrics.startswith(("http://", "https://")):
            words = "accuracy_drop needs the coordinator's metrics, such as http://host:9100/metrics"
            raise ValueError(f"metrics is {self.metrics!r}; {words}")


@dataclass(frozen=True)
class Host:
    """A host of a fleet."""

    address: str
    """Host name, IP address, or name of a host in `~/.ssh/config`."""
    user: str = ""
    """User on the host; empty means the user of the ssh configuration."""
    port: OptionalPort = 0
    """Port of ssh on the host; 0 means the port of the ssh configuration."""
    key: str = ""
    """Path of the ssh client's private key; empty means the key of the ssh configuration."""
    memory_bytes: Bytes = 0
    """Memory limit of the service in bytes; 0 means all memory but 1.5 GB."""
    role: str = DEVICE.name
    """Role of the host, `device`, `broker` or `coordinator`."""
    device: dict[str, Any] = field(default_factory=dict)
    """Settings of this device in addition to the settings of all devices."""
    software: dict[str, Any] = field(default_factory=dict)
    """Changes to the common software for this host."""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"role is {self.role!r}, it must be one of {', '.join(ROLES)}")
        if not ADDRESS_PATTERN.fullmatch(self.address):
            raise ValueError(f"address is {self.address!r}, it must be a host's name or address")
        if self.user and not USER_PATTERN.fullmatch(self.user):
            raise ValueError(f"user is {self.user!r}, which is not a valid user name")
        if self.key and not PATH_PATTERN.fullmatch(self.key):
            raise ValueError(f"key is {self.key!r}, it must be a path without spaces")


@dataclass(frozen=True)
class Mosquitto:
    """The limits of a deployed broker. The port of the broker is the port in device.broker."""

    connections: Annotated[int, Within(1, LARGEST_COUNT)] = 2000
    """Largest number of connections."""
    memory_bytes: Bytes = 2 << 30
    """Largest memory in bytes."""

    def __post_init__(self) -> None:
        demand_within(self)


@dataclass(frozen=True)
class Fleet:
    """The settings of a fleet, whose hosts are reached by SSH."""

    root: str
    """The operator's folder, which `protofleet enrol root` makes."""
    hosts: dict[str, Host]
    """Hosts of the fleet by name."""
    known_hosts: str = ""
    """Path of the file with the hosts' keys; empty means the file of ssh."""
    broker: str = ""
    """Folder of the broker's keys on this machine, which `protofleet enrol broker` makes; empty means no deployed
    broker.
    """
    log: str = "deploy.log"
    """Path of the log of deployments."""
    software: Software = field(default_factory=Software)
    """Software that is shipped to all hosts."""
    care: RolloutSettings = field(default_factory=RolloutSettings)
    """Rules by which a change is rolled out."""
    device: dict[str, Any] = field(default_factory=dict)
    """Settings that all devices have, as in the file of a device."""
    coordinator: dict[str, Any] = field(default_factory=dict)
    """Settings of the coordinator, as in its own file."""
    mosquitto: Mosquitto = field(default_factory=Mosquitto)
    """Limits of the deployed broker."""
    file: str = field(default="", init=False)
    """Path of the fleet's file, which the program sets."""

    def __post_init__(self) -> None:
        if not self.hosts:
            raise ValueError("there are no hosts; add [hosts.NAME] with an address")
        known: dict[tuple[str, int, str], str] = {}
        for name, host in self.hosts.items():
            _check_name(name, host.role)
            other = known.setdefault((host.address.lower(), host.port, host.role), name)
            if other != name:
                raise ValueError(
                    f"hosts {other} and {name} have the same address, {host.address}; a machine can run only one "
                    f"{host.role}, so the second host would replace the first: leave out one of the two hosts"
                )
        if len(brokers := self.of_role(BROKER)) > 1:
            raise ValueError(
                f"hosts {' and '.join(brokers)} have the role broker; a fleet has only one broker"
            )
        if brokers and not self.broker:
            words = 'name the folder for its keys on this machine, such as broker = "broker"'
            raise ValueError(f"host {brokers[0]} is the broker, but broker is empty; {words}")
        if brokers and "hosts" in self.device.get("broker", {}):
            raise ValueError(
                f"device.broker.hosts names the nodes of a cluster, but the broker of host {brokers[0]} is a single "
                f"Mosquitto; set device.broker.host and port, or leave out [hosts.{brokers[0]}]"
            )
        for name in self.of_role(COORDINATOR):
            if self.software_of(name).kind == "container":
                words = f'add software = {{ kind = "venv" }} to [hosts.{name}]'
                raise ValueError(f"the coordinator is deployed without a container; {words}")

    def doubts(self) -> list[str]:
        """Return notes about settings that are allowed but are often mistakes."""
        sought = self.device.get("broker", {}).get("host", "")
        return [
            f"devices look for the broker at {sought}, but the broker's host, {name}, is at {host.address}; if "
            "these are not two names of one host, correct device.broker.host"
            for name in self.of_role(BROKER)
            if (host := self.hosts[name]).address != sought
        ] + self._too_little_memory()

    def _too_little_memory(self) -> list[str]:
        memory = self.mosquitto.memory_bytes
        needed = queue_limits(memory, len(self.of_role(DEVICE.name))).memory_needed
        if not self.of_role(BROKER) or needed <= memory:
            return []
        words = "so the queues of devices that never read could stop the broker (docs/security.md)"
        return [
            f"mosquitto.memory_bytes is {memory}, {words}: set at least {needed}, if the host has the memory"
        ]

    def of_role(self, role: str) -> list[str]:
        return sorted(name for name, host in self.hosts.items() if host.role == role)

    @names_its_file
    def software_of(self, name: str) -> Software:
        """Return the software of a host: the common software with the changes for this host."""
        own = self.hosts[name].software
        return (
            decode(Software, merge(encode(self.software), own), f"hosts.{name}.software")
            if own
            else self.software
        )

    @names_its_file
    def reads_bundled_data(self, name: str) -> bool:
        """Return whether a device reads data that Python packages contain.

        The packages are part of the device's release, or they must be on the device already.
        """
        host = self.hosts[name]
        data = merge(self.device, host.device).get("data", {})
        source = data.get("source", DataSettings.source) if isinstance(data, dict) else DataSettings.source
        if isinstance(data, dict) and data.get("file"):
            return False
        return host.role == DEVICE.name and source in source_names() and not find(source).needs_folder

    def selected(self, names: list[str]) -> dict[str, Host]:
        """Return the named hosts, or all hosts if no name is given, in the order of a deployment.

        The broker comes first, then the coordinator, then the devices in the order of the file.
        """
        if unknown := [name for name in names if name not in self.hosts]:
            raise SettingsError(f"there is no host {unknown[0]!r}; the hosts are {', '.join(self.hosts)}")
        chosen = [name for name in self.hosts if not names or name in names]
        turns = list(ROLES)
        return {
            name: self.hosts[name] for name in sorted(chosen, key=lambda n: turns.index(self.hosts[n].role))
        }


def _check_name(name: str, role: str) -> None:
    """Raise ValueError if the name is not allowed for this role.

    The coordinator has a fixed name, and no other host may have this name.
    """
    if (name == COORDINATOR) != (role == COORDINATOR):
        raise ValueError(
            f"host {name} has the role {role}; the coordinator's host must be [hosts.{COORDINATOR}], and no other "
            "host can have this name"
        )
    valid_name(name)


def read_fleet(path: Path) -> Fleet:
    """Read a fleet's file. Relative paths in it are relative to the folder of the file."""
    if not path.exists():
        raise SettingsError(
            f"there is no file {path}; name the fleet's file with --fleet FILE (for make: HOSTS=FILE), or write a "
            "new fleet's file with `protofleet init`"
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
    object.__setattr__(found, "file", str(path))  # `file` is not a setting, so `replace` cannot set it.
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
    """Return the plug-in files that are shipped to this host."""
    host = fleet.hosts[name]
    if host.role == COORDINATOR:
        return files_in(fleet.coordinator)
    return files_in(merge(fleet.device, host.device)) if host.role == DEVICE.name else ()


def template_files(fleet: Fleet, name: str) -> tuple[str, ...]:
    """Return the files of the ONNX template that are shipped to this host."""
    host = fleet.hosts[name]
    return (
        shipped_template.template_files(merge(fleet.device, host.device)) if host.role == DEVICE.name else ()
    )


@names_its_file
def device_settings(fleet: Fleet, federation: str, name: str) -> DeviceSettings:
    """Return the settings of a device: the common settings, its own settings, and the paths of a deployed device."""
    fixed = {"name": name, "federation": federation, "enrolled": str(KEY_FOLDER)}
    table = _merged(merge(DEVICE_DEFAULTS, fleet.device), fleet.hosts[name].device)
    for key, value in fixed.items():
        if table.setdefault(key, value) != value:
            raise SettingsError(
                f"device.{key} of {name} is {table[key]!r}; for a deployed device, it must be {value!r}"
            )
    if table.get("metrics_port") and "metrics_host" not in table:
        table["metrics_host"] = metrics_address(name, fleet.hosts[name].address)
    broker = dict(table.get("broker", {}))
    if broker.get("password") is not None:
        words = "settings are shipped unencrypted and hold no secret; use certificates for the broker"
        raise SettingsError(f"device.broker.password of {name} is set, but {words}")
    broker.setdefault("tls", encode(tls_files(KEY_FOLDER)))
    return decode(DeviceSettings, with_hashes({**table, "broker": broker}), f"device ({name})")


def _merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return both tables merged; an own `hosts` of the broker replaces a common `host`, and the reverse."""
    table, broker = merge(common, own), own.get("broker", {})
    if isinstance(broker, dict) and broker:
        replaced = ONE_PLACE if "hosts" in broker else {"hosts"} if ONE_PLACE & broker.keys() else set()
        table["broker"] = {k: v for k, v in table["broker"].items() if k not in replaced - broker.keys()}
    return table


@names_its_file
def coordinator_settings(fleet: Fleet, federation: str) -> CoordinatorSettings:
    """Return the coordinator's settings; if they name no run, the keys of a run have values that are never used."""
    if (service := queue_settings(fleet, federation)) is not None:
        return service.own
    return decode(CoordinatorSettings, _coordinator_table(fleet, federation), "coordinator")


@names_its_file
def queue_settings(fleet: Fleet, federation: str) -> ServiceSettings | None:
    """Return the settings of a coordinator that conducts submitted runs; None if the settings name a run."""
    if not is_service(fleet.coordinator):
        return None
    try:
        return ServiceSettings.of(_coordinator_table(fleet, federation))
    except SettingsError as error:
        raise SettingsError(f"coordinator: {error}") from None


def _coordinator_table(fleet: Fleet, federation: str) -> dict[str, Any]:
    """Return the settings in the file and the paths of a deployed coordinator.

    If the file does not name a broker for the coordinator, the coordinator uses the broker of the devices.
    """
    role = ROLES[COORDINATOR]
    table = _merged(
        merge(COORDINATOR_DEFAULTS, {"broker": fleet.device.get("broker", {})}), fleet.coordinator
    )
    for key, value in {"federation": federation, "enrolled": str(role.keys)}.items():
        if table.setdefault(key, value) != value:
            raise SettingsError(
                f"coordinator.{key} is {table[key]!r}; for a deployed coordinator, it must be {value!r}"
            )
    if not table["metrics_port"]:
        words = "`protofleet deploy` reads the coordinator's health at this port; set a port from 1 to 65535"
        raise SettingsError(f"coordinator.metrics_port is 0; {words}")
    if "metrics_host" not in table:
        table["metrics_host"] = metrics_address(COORDINATOR, fleet.hosts[COORDINATOR].address)
    broker = dict(table["broker"])
    if broker.get("password") is not None:
        words = "settings are shipped unencrypted and hold no secret; use certificates for the broker"
        raise SettingsError(f"coordinator.broker.password is set, but {words}")
    broker["tls"] = encode(tls_files(role.keys))
    return with_hashes({**table, "broker": broker})


@names_its_file
def broker_conf(fleet: Fleet, enrolled: int = 0) -> str:
    """Return mosquitto.conf of a deployed broker.

    The limits are computed for the number of devices in the fleet or for the number of enrolled devices,
    whichever is larger.
    """
    role = ROLES[BROKER]
    limits = fleet.mosquitto
    listener = ListenerSettings(
        broker_port(fleet), connections=limits.connections, memory=limits.memory_bytes,
        devices=max(len(fleet.of_role(DEVICE.name)), enrolled),
    )  # fmt: skip
    return tls_settings(role.keys, listener, Path(role.home))


def broker_port(fleet: Fleet) -> int:
    return broker_address(fleet).nodes[0].port


@names_its_file
def broker_address(fleet: Fleet) -> BrokerAddress:
    """Return the address at which devices look for the broker."""
    return decode(BrokerAddress, fleet.device.get("broker", {}), "device.broker")


def metrics_address(name: str, address: str) -> str:
    """Return the IP address at which a host serves its metrics; raise SettingsError if `address` is a name.

    On the host itself, the host's name may resolve to another address.
    """
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        raise SettingsError(
            f"metrics_port of {name} is set, but the address of this host is a name, {address!r}; set metrics_host "
            'to the address at which Prometheus reaches the host, or to "0.0.0.0" for all addresses of the host'
        ) from None
