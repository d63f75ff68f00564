"""Define the services and paths of a stack; <folder>/ on this machine is /protofleet in each container."""

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

from protofleet.federation.enrol.local_federation import LocalFederation
from protofleet.lab.local.experiment import Experiment
from protofleet.protocol.wire.names import COORDINATOR

CONTAINER_ROOT: Final = Path("/protofleet")
METRICS_PORT: Final = 9100
# Metrics are served at all addresses, because a container's address in the stack's network is not known in advance.
ALL_INTERFACES: Final = "0.0.0.0"
FLEET_SERVICE: Final = "fleet"  # The service whose single container has all devices.
MAX_DEVICE_CONTAINERS: Final = 12  # If there are more devices than this, they all share one container.
CONTAINER_UID: Final = 10001  # The user in the containers if root starts the stack.
RABBITMQ_NODES: Final = ("rabbit-1", "rabbit-2", "rabbit-3")
HEALTHCHECK_CLIENT: Final = "probe"  # The name in the certificate of the broker's health check.
# A device cannot have one of these names, because other parts of the stack have folders with these names.
RESERVED_NAMES: Final = (HEALTHCHECK_CLIENT, "prometheus", "grafana", *RABBITMQ_NODES)
HOST_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

# Settings of compose.env that the operator may change, with their defaults. An image is given by its name, or as
# name@sha256:...
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
    settings: dict[str, str] = field(default_factory=dict)  # Values that override DEFAULT_SETTINGS.
    cluster: bool = False  # True if the broker is a cluster of three RabbitMQ nodes.
    one_container: bool = False  # True if all devices share one container, even if there are few devices.
    queue: bool = (
        False  # True if the coordinator names no run, and conducts the runs that are submitted to it.
    )

    @property
    def devices(self) -> list[str]:
        return list(self.experiment.shards)

    @cached_property
    def services(self) -> Mapping[str, str]:
        """Return the compose service of each device, for a stack in which each device has a container."""
        return service_names(self.devices)

    @property
    def container_per_device(self) -> bool:
        return not self.one_container and len(self.devices) <= MAX_DEVICE_CONTAINERS

    @property
    def federation(self) -> LocalFederation:
        return LocalFederation(self.folder / "enrolled")

    @cached_property
    def federation_name(self) -> str:
        """Return the name of the federation, which is the name of the first run in this folder.

        Keys and metrics belong to the federation, and later runs use the same keys and metrics.
        """
        there = self.federation
        return there.authority().federation if there.root.exists() else self.experiment.name

    @property
    def run_folder(self) -> Path:
        """Return the folder into which the coordinator writes the run's results."""
        return self.state_folder(COORDINATOR) / self.experiment.name

    @property
    def first_run(self) -> Path:
        """Return the file with the run of the experiment, which can be submitted to a coordinator with a queue."""
        return self.folder / "run.toml"

    def state_folder(self, name: str) -> Path:
        return self.folder / "state" / name

    def settings_file(self, name: str) -> Path:
        return self.folder / "settings" / f"{name}.toml"

    def metrics_port(self, device: str) -> int:
        """Return a device's metrics port.

        If each device has its own container, all devices have the same port. In a shared container the ports differ.
        """
        return METRICS_PORT if self.container_per_device else METRICS_PORT + 1 + self.devices.index(device)

    def scrape_target(self, device: str) -> str:
        host = self.services[device] if self.container_per_device else FLEET_SERVICE
        return f"{host}:{self.metrics_port(device)}"

    @property
    def images(self) -> list[str]:
        """Return the images of all containers of this stack."""
        environment = self.environment()
        unused = {"BROKER_IMAGE" if self.cluster else "RABBITMQ_IMAGE"}
        if "grafana" not in environment["COMPOSE_PROFILES"]:
            unused.add("GRAFANA_IMAGE")
        return [value for key, value in environment.items() if key.endswith("_IMAGE") and key not in unused]

    def with_image_ids(self, ids: Mapping[str, str]) -> Stack:
        """Return a copy of the stack that starts the images in `ids` by their ids; `ids` maps names to ids."""
        names = {key: value for key, value in self.environment().items() if key.endswith("_IMAGE")}
        by_id = {key: ids[name] for key, name in names.items() if name in ids}
        return replace(self, settings=self.settings | by_id)

    def environment(self) -> dict[str, str]:
        """Return the variables of the compose file, for compose.env. No variable is secret."""
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
    """Return the compose service of each device.

    A service's name is also a host name, so it has no capitals, dots or underscores, and at most 63 characters. If
    two devices would get the same service name, or if a service name would not be a valid host name, digits of the
    device's hash are added to the service name.
    """
    plain = {name: "device-" + name.lower().replace("_", "-").replace(".", "-") for name in devices}
    counts = Counter(plain.values())
    unique = {label for label in plain.values() if counts[label] == 1 and HOST_LABEL.fullmatch(label)}
    return {
        device: label if label in unique else _with_hash(device, label, unique)
        for device, label in plain.items()
    }


def _with_hash(device: str, plain: str, taken: AbstractSet[str]) -> str:
    """Return a service name that ends with 8 digits of the device's hash, or with more if the name is taken."""
    digest = hashlib.sha256(device.encode()).hexdigest()
    names = (f"{plain[: 62 - n].rstrip('-')}-{digest[:n]}" for n in range(8, 41))
    return next(name for name in names if name not in taken)


def container_user() -> tuple[int, int]:
    """Return the user and the group of the containers and of the mounted files.

    The result is the user and the group of this process. If root runs this process, the result is a user and a group
    without privileges.
    """
    return (CONTAINER_UID, CONTAINER_UID) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
