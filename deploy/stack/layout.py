"""What a stack is made of, and where it lies: <folder>/ on this machine, /protofleet in each container."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from protofleet.deploy.enrol.local_federation import BROKER, LocalFederation
from protofleet.deploy.local.experiment import Experiment
from protofleet.protocol.wire.names import COORDINATOR

INSIDE: Final = Path("/protofleet")
METRICS_PORT: Final = 9100
EVERYWHERE: Final = "0.0.0.0"  # of a container: its address in the stack's network is not known before
FLEET: Final = "fleet"  # the one container of many devices
APART: Final = 12  # so many devices have a container each; more share one
CONTAINER_USER: Final = 10001  # who runs in the containers where root starts the stack
NODES: Final = ("rabbit-1", "rabbit-2", "rabbit-3")
PROBE: Final = "probe"  # by whose certificate the broker is asked whether it is well

# Settings of compose.env that a person may change, with what holds otherwise. Images: a name, or name@sha256:...
DEFAULTS: Final = {
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
OPTIONAL: Final = (
    "PARTY_MEMORY", "PARTY_CPUS", "BROKER_MEMORY", "PROMETHEUS_MEMORY", "GRAFANA_MEMORY", "METRICS_KEPT",
    "METRICS_SIZE",
)  # fmt: skip


@dataclass(frozen=True)
class Stack:
    folder: Path
    experiment: Experiment
    name: str = "protofleet"
    settings: dict[str, str] = field(default_factory=dict)  # in place of DEFAULTS
    cluster: bool = False  # three nodes of RabbitMQ for a broker
    together: bool = False  # one container for all devices, however few

    @property
    def devices(self) -> list[str]:
        return list(self.experiment.shards)

    @property
    def apart(self) -> bool:
        return not self.together and len(self.devices) <= APART

    @property
    def fleet(self) -> LocalFederation:
        return LocalFederation(self.folder / "enrolled")

    @property
    def run(self) -> Path:
        """Where the coordinator leaves the run's results."""
        return self.state(COORDINATOR) / self.experiment.name

    def state(self, name: str) -> Path:
        return self.folder / "state" / name

    def toml(self, name: str) -> Path:
        return self.folder / "settings" / f"{name}.toml"

    def port(self, device: str) -> int:
        """Of a device's metrics and health: all alike, or one after the other in the one container."""
        return METRICS_PORT if self.apart else METRICS_PORT + 1 + self.devices.index(device)

    def target(self, device: str) -> str:
        return f"{service(device) if self.apart else FLEET}:{self.port(device)}"

    @property
    def images(self) -> list[str]:
        """All that this stack starts."""
        told = self.environment()
        unused = {"BROKER_IMAGE" if self.cluster else "RABBITMQ_IMAGE"}
        if "grafana" not in told["COMPOSE_PROFILES"]:
            unused.add("GRAFANA_IMAGE")
        return [value for key, value in told.items() if key.endswith("_IMAGE") and key not in unused]

    def starting(self, ids: Mapping[str, str]) -> Stack:
        """By these ids what is named by them."""
        told = {key: value for key, value in self.environment().items() if key.endswith("_IMAGE")}
        return replace(
            self, settings=self.settings | {key: ids[name] for key, name in told.items() if name in ids}
        )

    def environment(self) -> dict[str, str]:
        """compose.env: what the compose file is told. No secret is among it."""
        own = {
            "STACK_NAME": self.name,
            "STACK_FOLDER": str(self.folder.absolute()),
            "STACK_USER": f"{owner()[0]}:{owner()[1]}",
            "FEDERATION": self.experiment.name,
        }
        given = {key: self.settings.get(key, value) for key, value in DEFAULTS.items()}
        given["COMPOSE_PROFILES"] = ("cluster," if self.cluster else "single,") + given["COMPOSE_PROFILES"]
        return own | given | {key: self.settings[key] for key in OPTIONAL if key in self.settings}


def service(device: str) -> str:
    """A compose service is a host name too, and those know no dots and underscores."""
    return "device-" + device.lower().replace("_", "-").replace(".", "-")


def owner() -> tuple[int, int]:
    """Whose the files are, and who runs in the containers: us; for root somebody who may do nothing else."""
    return (CONTAINER_USER, CONTAINER_USER) if os.geteuid() == 0 else (os.geteuid(), os.getegid())


def parties(stack: Stack) -> list[str]:
    return [BROKER, COORDINATOR, *stack.devices]
