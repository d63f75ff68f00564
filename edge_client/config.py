"""The settings of a device, for example its name, its broker and its data.

The settings do not name the method of a run: the method is in the plan that the coordinator sends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.feature_snapshots import Snapshots
from protofleet.edge_client.host.board_settings import BoardSettings
from protofleet.edge_client.limits import DeviceLimits
from protofleet.edge_client.privacy import PrivacySettings
from protofleet.edge_client.serving.settings import ModelSettings
from protofleet.edge_client.trainer.slots import Slots
from protofleet.methods.contract.plan import Network
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.protocol.security.envelope import seals
from protofleet.protocol.settings.bounds import (
    LONG_SECONDS,
    Bytes,
    OptionalPort,
    PositiveSeconds,
    Threads,
    Watchdog,
    Within,
)
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.wire.messages import MOST_RUNS
from protofleet.protocol.wire.names import valid_device, valid_name
from protofleet.runtime.metrics_page import LOOPBACK, Endpoint

PLACES = ("auto", "cpu", "cuda")
TRAINERS = ("inside", "child")

Runs = Annotated[int, Within(1, MOST_RUNS)]
SessionSeconds = Annotated[int, Within(0, 0xFFFF_FFFF)]  # The range of a session's expiry in MQTT.
Celsius = Annotated[float, Within(0, 1000)]
Patience = Annotated[float, Within(0, LONG_SECONDS, above=True, also=((math.inf, "works offline"),))]


@dataclass(frozen=True)
class DeviceSettings:
    """The settings of a device."""

    name: str
    """Name of the device, as it is enrolled."""
    federation: str = "protofleet"
    """Name of the federation, which is part of every topic."""
    folder: str = "state"
    """Folder of the files that survive a reboot."""
    features: str = ""
    """Folder of the features that frozen backbones have computed, which devices of one user may share; empty means
    `features` in `folder`.
    """
    durable: bool = True
    """If true, files are synced to the disk before they count; if false, a power cut may lose files, but a killed
    process loses none.
    """
    enrolled: str = ""
    """Folder that `protofleet enrol` has filled, in place of `key` and `coordinator_key`; empty means no enrolment.
    """
    key: str = "keys/device.key"
    """Path of the device's private key, if `enrolled` is empty."""
    coordinator_key: str = "keys/coordinator.pub"
    """Path of the coordinator's public key, if `enrolled` is empty."""
    security: str = "sealed"
    """Protection of messages, `sealed` or `off`, which must be the same at the coordinator."""
    broker: BrokerAddress = field(default_factory=BrokerAddress)
    """Address of the broker."""
    data: DataSettings = field(default_factory=DataSettings)
    """Data of the device."""
    network: Network | None = None
    """Network of this device, if the method allows different networks; if left out, the network of the run is used.
    """
    plugins: PlugIns = field(default_factory=PlugIns)
    """Python files that the device may run, by their hashes."""
    keep_models: bool = True
    """If true, the folder keeps the device's last model and its best one by validation, for `protofleet export`."""
    pictures: Snapshots = field(default_factory=Snapshots)
    """Snapshots of embeddings for the pictures of a report."""
    models: ModelSettings | None = None
    """Models that the device serves to programs of its machine; if left out, no model is served."""
    limits: DeviceLimits = field(default_factory=DeviceLimits)
    """Limits on the work and memory that a run's plan can ask of this device."""
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    """Demands of this device on the plan of a run."""
    compute: str = "auto"
    """Processor for training, `auto` (the GPU if it is faster), `cpu` or `cuda`."""
    threads: Threads = 0
    """Number of threads of torch; 0 means that torch chooses the number."""
    slots: Slots = field(default_factory=Slots)
    """Places for work that the devices of one machine share."""
    trainer: str = "inside"
    """Place of the training, `inside` (the process of the device) or `child` (a separate process; the device reports
    if this process dies from lack of memory).
    """
    trainer_memory_bytes: Bytes = 0
    """Largest private memory, in bytes, that the child may take; 0 means no limit."""
    trainer_seconds: PositiveSeconds = 10_800.0
    """Longest time, in seconds, of one piece of work of a child, after which the child is ended and started again."""
    board: BoardSettings = field(default_factory=BoardSettings)
    """Board whose sensors are read."""
    hottest_celsius: Celsius = 0.0
    """Temperature of the board's hottest zone, in degrees Celsius, above which the device takes no new work; 0 means
    no limit.
    """
    metrics_port: OptionalPort = 0
    """Port of the page of metrics and health; 0 means none."""
    metrics_host: str = LOOPBACK
    """Address of the metrics page on this machine; `0.0.0.0` means all addresses."""
    watchdog_seconds: Watchdog = 900.0
    """Seconds without a sign of life after which the process ends itself; 0 means no watchdog."""
    status: str = ""
    """Path of the status file, best on a file system in memory; empty means none."""
    tuning: str = ""
    """Path of a file with temporary settings that the root has signed; empty means none."""
    runs: Runs = 2
    """Largest number of runs in which the device takes part at the same time; a device that serves a model or has an
    inbox takes part in one.
    """
    stays: bool = True
    """If true, the device waits for the next run when a run is over; if false, the device ends."""
    patience_seconds: Patience = 60.0
    """Seconds to wait for the broker's first answer; `inf` lets the device work offline."""
    session_seconds: SessionSeconds = 600
    """Seconds for which the broker keeps messages for an absent device."""

    def __post_init__(self) -> None:
        valid_name(self.federation)
        valid_device(self.name)
        seals(self.security)
        if self.compute not in PLACES:
            raise ValueError(f"compute is {self.compute!r}, it must be one of {', '.join(PLACES)}")
        if self.trainer not in TRAINERS:
            raise ValueError(f"trainer is {self.trainer!r}, it must be one of {', '.join(TRAINERS)}")
        if self.tuning and not self.enrolled:
            raise ValueError(
                "tuning is set, but without enrolled there is no root to verify the tuning file; set enrolled"
            )
        try:
            self.data.check_shape()
        except ValueError as error:
            raise ValueError(f"data: {error}") from None
        self.endpoint()

    def endpoint(self) -> Endpoint:
        return Endpoint(self.metrics_host, self.metrics_port)
