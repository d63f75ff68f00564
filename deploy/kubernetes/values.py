"""Define the values of the chart, which an operator changes with --with, or with Helm's --set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from protofleet.deploy.kubernetes.forms import (
    Cpu,
    Image,
    MemorySize,
    Namespace,
    OptionalLabel,
    OptionalName,
    demand_forms,
)
from protofleet.deploy.stack.layout import DEFAULT_SETTINGS
from protofleet.protocol.settings.bounds import Within
from protofleet.protocol.settings.reader import SettingsError, decode, override

Retries = Annotated[int, Within(1, 1000)]
Grace = Annotated[int, Within(20, 3600)]  # `fleet` stops its processes within 15 s.


@dataclass(frozen=True)
class ImageValues:
    """The images of the containers."""

    coordinator: Image = DEFAULT_SETTINGS["COORDINATOR_IMAGE"]
    """Image of the coordinator, which the nodes must be able to pull."""
    device: Image = DEFAULT_SETTINGS["DEVICE_IMAGE"]
    """Image of the devices, which the nodes must be able to pull."""
    broker: Image = DEFAULT_SETTINGS["BROKER_IMAGE"]
    """Image of Mosquitto."""
    pull: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """Time at which a node pulls an image, `IfNotPresent`, `Always` or `Never`."""
    secret: OptionalName = ""
    """Name of the Secret with the password of the registry; empty means none."""

    def __post_init__(self) -> None:
        demand_forms(self)


@dataclass(frozen=True)
class CoordinatorValues:
    """The resources of the coordinator."""

    cpu: Cpu = "1"
    """Cores that are reserved for the coordinator; there is no limit."""
    memory: MemorySize = "1Gi"
    """Memory that is reserved for the coordinator, and its limit."""
    storage: MemorySize = "10Gi"
    """Size of the claim with the results."""
    storage_class: OptionalName = ""
    """Storage class of this claim; empty means the default class of the cluster."""
    grace_seconds: Grace = 60
    """Seconds from SIGTERM to SIGKILL."""
    retries: Retries = 100
    """Number of failed pods after which the run fails; a pod of a drained or lost node does not count."""

    def __post_init__(self) -> None:
        demand_forms(self)


@dataclass(frozen=True)
class DeviceValues:
    """The resources of each pod of devices."""

    cpu: Cpu = "1"
    """Cores that are reserved for each pod; there is no limit."""
    memory: MemorySize = "1Gi"
    """Memory that is reserved for each pod, and its limit."""
    storage: MemorySize = "10Gi"
    """Size of the claim with the state of all devices, or of the claim of each pod with `--claims`."""
    storage_class: OptionalName = ""
    """Storage class of this claim; empty means the default class of the cluster."""
    grace_seconds: Grace = 60
    """Seconds from SIGTERM to SIGKILL."""
    retries: Retries = 100
    """Number of failed pods after which a group is given up; a pod of a drained or lost node does not count."""

    def __post_init__(self) -> None:
        demand_forms(self)


@dataclass(frozen=True)
class BrokerValues:
    """The resources of Mosquitto."""

    cpu: Cpu = "250m"
    """Cores that are reserved for Mosquitto; there is no limit."""
    memory: MemorySize = "2304Mi"
    """Memory that is reserved for Mosquitto, and its limit, which must be above the 2 GiB of mosquitto.conf."""
    storage: MemorySize = "1Gi"
    """Size of the claim with the messages that Mosquitto keeps."""
    storage_class: OptionalName = ""
    """Storage class of this claim; empty means the default class of the cluster."""
    grace_seconds: Grace = 30
    """Seconds from SIGTERM to SIGKILL."""

    def __post_init__(self) -> None:
        demand_forms(self)


@dataclass(frozen=True)
class MetricsValues:
    """The metrics of the parties."""

    monitor: bool = False
    """If true, the chart has a PodMonitor, for which the cluster must have the Prometheus operator."""
    namespace: Namespace = "monitoring"
    """Namespace whose pods may read metrics."""
    release: OptionalLabel = ""
    """Label `release` of the PodMonitor, which many installations of the operator ask for; empty means none."""
    seconds: Annotated[int, Within(1, 3600)] = 15
    """Seconds between two readings."""

    def __post_init__(self) -> None:
        demand_forms(self)


@dataclass(frozen=True)
class NetworkValues:
    """The network policies."""

    policies: bool = True
    """If true, the chart has network policies."""
    dns_namespace: Namespace = "kube-system"
    """Namespace of the cluster's DNS service."""

    def __post_init__(self) -> None:
        demand_forms(self)


@dataclass(frozen=True)
class DataValues:
    """The data of the devices."""

    claim: OptionalName = ""
    """Name of a claim that you have filled with data, which is mounted at `/data`; empty means none."""

    def __post_init__(self) -> None:
        demand_forms(self)


@dataclass(frozen=True)
class ChartValues:
    """The values that may be changed after the chart is written."""

    image: ImageValues = field(default_factory=ImageValues)
    """Images of the containers."""
    coordinator: CoordinatorValues = field(default_factory=CoordinatorValues)
    """Resources of the coordinator."""
    devices: DeviceValues = field(default_factory=DeviceValues)
    """Resources of each pod of devices."""
    broker: BrokerValues = field(default_factory=BrokerValues)
    """Resources of Mosquitto."""
    metrics: MetricsValues = field(default_factory=MetricsValues)
    """Metrics of the parties."""
    network: NetworkValues = field(default_factory=NetworkValues)
    """Network policies."""
    data: DataValues = field(default_factory=DataValues)
    """Data of the devices."""
    results: bool = False
    """If true, the chart has a pod from which `kubectl cp` takes the results."""


def read_values(assignments: Sequence[str]) -> ChartValues:
    """Return the values after the assignments of --with."""
    for text in assignments:
        if "=" not in text:
            raise SettingsError(f"--with is {text!r}, it must be TABLE.KEY=VALUE, such as devices.cpu=2")
    table = override({}, assignments)
    for part in table.values():
        if isinstance(part, dict) and isinstance(part.get("cpu"), int | float):
            part["cpu"] = str(part["cpu"])  # TOML reads cpu=2 as a number.
    try:
        return decode(ChartValues, table)
    except SettingsError as error:
        raise SettingsError(f"--with: {error}") from None
