"""The parts and paths of a stack: <folder>/ on this machine, /protofleet in each container."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from protofleet.deploy.enrol.local_federation import LocalFederation
from protofleet.deploy.local.experiment import Experiment
from protofleet.protocol.wire.names import COORDINATOR

CONTAINER_ROOT: Final = Path("/protofleet")
METRICS_PORT: Final = 9100
ALL_INTERFACES: Final = "0.0.0.0"  # a container's address in the stack's network is not known in advance
FLEET_SERVICE: Final = "fleet"  # one container with all devices
MAX_DEVICE_CONTAINERS: Final = 12  # with more devices than this, all share one container
CONTAINER_UID: Final = 10001  # the user in the containers where root starts the stack
RABBITMQ_NODES: Final = ("rabbit-1", "rabbit-2", "rabbit-3")
HEALTHCHECK_CLIENT: Final = "probe"  # whose certificate the broker's health check connects with
# Their keys or state are where those of a device of that name would be.
RESERVED_NAMES: Final = (HEALTHCHECK_CLIENT, "prometheus", "grafana", *RABBITMQ_NODES)
HOST_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

# Settings of compose.env that the operator may change, with their defaults. Images: a name, or name@sha256:...
DEFAULT_SETTINGS: Final = {
    "BROKER_IMAGE": "eclipse-mosquitto:2.0.22",
    "COORDINATOR_IMAGE": "protofleet/coordinator",
    "DEVICE_IMAGE": "protofleet/demo",
    "PROMETHEUS_IMAGE": "prom/prometheus:v3.5.0",
    "GRAFANA_IMAGE": "grafana/grafana:12.1.0",
    "BROKER_PORT": "127.0.0.1:8883",
    "PROMETHEUS_PORT": "127.0.0.1:9090",
    "GRAFANA_PORT": "127.0.0.1:3000",
    "RABBITMQ_IMAGE": "rabbitmq:4.1",
    "COMPOSE_PROFILES": "grafana",
}
OPTIONAL_SETTINGS: Final = (
    "PARTY_MEMORY", "PARTY_CPUS", "BROKER_MEMORY", "PROMETHEUS_MEMORY", "GRAFANA_MEMORY", "METRICS_KEPT",
    "METRICS_SIZE",
)  # fmt: skip


@dataclass(frozen=True)
class Stack:
    folder: Path
    experiment: Experiment
    name: str = "protofleet"
    settings: dict[str, str] = field(default_factory=dict)  # override DEFAULT_SETTINGS
    cluster: bool = False  # three nodes of RabbitMQ as the broker
    one_container: bool = False  # for all devices, even for few

    @property
    def devices(self) -> list[str]:
        return list(self.experiment.shards)

    @cached_property
    def services(self) -> Mapping[str, str]:
        """Device -> compose service, where each device has a container."""
        return service_names(self.devices)

    @property
    def container_per_device(self) -> bool:
        return not self.one_container and len(self.devices) <= MAX_DEVICE_CONTAINERS

    @property
    def federation(self) -> LocalFederation:
        return LocalFederation(self.folder / "enrolled")

    @cached_property
    def federation_name(self) -> str:
        """Of the first run in this folder: keys and metrics are the federation's, and go on with other runs."""
        there = self.federation
        return there.authority().federation if there.root.exists() else self.experiment.name

    @property
    def run_folder(self) -> Path:
        """Where the coordinator writes the run's results."""
        return self.state_folder(COORDINATOR) / self.experiment.name

    def state_folder(self, name: str) -> Path:
        return self.folder / "state" / name

    def settings_file(self, name: str) -> Path:
        return self.folder / "settings" / f"{name}.toml"

    def metrics_port(self, device: str) -> int:
        """One for all devices where each has a container; different ones inside a shared container."""
        return METRICS_PORT if self.container_per_device else METRICS_PORT + 1 + self.devices.index(device)

    def scrape_target(self, device: str) -> str:
        host = self.services[device] if self.container_per_device else FLEET_SERVICE
        return f"{host}:{self.metrics_port(device)}"

    @property
    def images(self) -> list[str]:
        """The images of all containers of this stack."""
        environment = self.environment()
        unused = {"BROKER_IMAGE" if self.cluster else "RABBITMQ_IMAGE"}
        if "grafana" not in environment["COMPOSE_PROFILES"]:
            unused.add("GRAFANA_IMAGE")
        return [value for key, value in environment.items() if key.endswith("_IMAGE") and key not in unused]

    def with_image_ids(self, ids: Mapping[str, str]) -> Stack:
        """The stack with the images of these names started by their ids."""
        names = {key: value for key, value in self.environment().items() if key.endswith("_IMAGE")}
        by_id = {key: ids[name] for key, name in names.items() if name in ids}
        return replace(self, settings=self.settings | by_id)

    def environment(self) -> dict[str, str]:
        """The variables of the compose file, for compose.env. None is secret."""
        own = {
            "STACK_NAME": self.name,
            "STACK_FOLDER": str(self.folder.absolute()),
            "STACK_USER": "{}:{}".format(*container_user()),
            "FEDERATION": self.federation_name,
        }
        chosen = {key: self.settings.get(key, value) for key, value in DEFAULT_SETTINGS.items()}
        chosen["COMPOSE_PROFILES"] = ("cluster," if self.cluster else "single,") + chosen["COMPOSE_PROFILES"]
        return own | chosen | {key: self.settings[key] for key in OPTIONAL_SETTINGS if key in self.settings}


def service_names(devices: Iterable[str]) -> dict[str, str]:
    """Device -> compose service, which is a host name too: no capitals, dots or underscores, at most 63 characters.
    Where two devices would get the same one, or it is no host name, it ends with digits of the device's hash."""
    plain = {name: "device-" + name.lower().replace("_", "-").replace(".", "-") for name in devices}
    counts = Counter(plain.values())
    unique = {label for label in plain.values() if counts[label] == 1 and HOST_LABEL.fullmatch(label)}
    return {
        device: label if label in unique else _with_hash(device, label, unique)
        for device, label in plain.items()
    }


def _with_hash(device: str, plain: str, taken: AbstractSet[str]) -> str:
    """With 8 digits of the hash, and more where another device has that name already."""
    digest = hashlib.sha256(device.encode()).hexdigest()
    names = (f"{plain[: 62 - n].rstrip('-')}-{digest[:n]}" for n in range(8, 41))
    return next(name for name in names if name not in taken)


def container_user() -> tuple[int, int]:
    """User and group of the containers and of the mounted files: our own, or for root an unprivileged one."""
    return (CONTAINER_UID, CONTAINER_UID) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
