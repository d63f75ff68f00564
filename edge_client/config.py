"""A device's settings: its name, its broker and its data. The coordinator's plan says what to learn."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.feature_snapshots import Snapshots
from protofleet.edge_client.host.board_settings import BoardSettings
from protofleet.edge_client.limits import Limits
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
from protofleet.protocol.wire.names import valid_device, valid_name
from protofleet.runtime.metrics_page import LOOPBACK, Endpoint

PLACES = ("auto", "cpu", "cuda")
TRAINERS = ("inside", "child")

SessionSeconds = Annotated[int, Within(0, 0xFFFF_FFFF)]  # the range that MQTT can express
Celsius = Annotated[float, Within(0, 1000)]
Patience = Annotated[float, Within(0, LONG_SECONDS, above=True, also=((math.inf, "works offline"),))]


@dataclass(frozen=True)
class DeviceSettings:
    name: str
    federation: str = "protofleet"
    folder: str = "state"  # the files that survive a reboot
    # Whether files reach the disk before they count. If false, a power cut may lose them; the end of a
    # process does not.
    durable: bool = True
    enrolled: str = ""  # folder that `protofleet enrol` has filled; it replaces the next two settings
    key: str = "keys/device.key"
    coordinator_key: str = "keys/coordinator.pub"
    security: str = "sealed"  # "sealed" or "off", the same as the coordinator's
    broker: BrokerAddress = field(default_factory=BrokerAddress)
    data: DataSettings = field(default_factory=DataSettings)
    network: Network | None = None  # the device's own network, if the run's method allows one
    plugins: PlugIns = field(default_factory=PlugIns)  # Python files that the device may run, by their hashes
    keep_models: bool = (
        True  # whether its folder keeps its last model and its best by validation, for `protofleet export`
    )
    pictures: Snapshots = field(default_factory=Snapshots)
    models: ModelSettings | None = None  # those it serves to programs of its machine; None: it serves none
    limits: Limits = field(default_factory=Limits)  # limits on what a run's plan can make this device do
    compute: str = "auto"  # auto (the GPU if it is faster), cpu or cuda
    threads: Threads = 0  # number of torch's threads; 0: torch decides
    slots: Slots = field(default_factory=Slots)  # shared by devices of one machine that compute on its cores
    # Or "child": a separate process; the device reports its death from lack of memory.
    trainer: str = "inside"
    trainer_memory_bytes: Bytes = 0  # bytes of its own memory that the child may take at most; 0: no limit
    # Seconds of the longest piece of work of a child; after that the child is ended and begun again.
    trainer_seconds: PositiveSeconds = 10_800.0
    board: BoardSettings = field(default_factory=BoardSettings)  # the board whose sensors are read
    # The device takes no new work while a zone of the board is hotter, in degrees Celsius; 0: no limit.
    hottest_celsius: Celsius = 0.0
    metrics_port: OptionalPort = 0  # port of the metrics page; 0: no metrics
    metrics_host: str = LOOPBACK  # address that serves the metrics; 0.0.0.0: all addresses of this machine
    # Seconds without a sign of life after which the process ends itself; 0: no watchdog.
    watchdog_seconds: Watchdog = 900.0
    status: str = ""  # status file, best in memory; empty: none
    tuning: str = ""  # file with temporary settings, signed by the root; empty: the device looks for none
    stays: bool = True  # whether the device waits for the next run when one is over
    patience_seconds: Patience = 60.0  # seconds to wait for the broker's first answer
    session_seconds: SessionSeconds = 600  # seconds for which the broker keeps messages for an absent device

    def __post_init__(self) -> None:
        valid_name(self.federation)
        valid_device(self.name)
        seals(self.security)
        if self.compute not in PLACES:
            raise ValueError(f"compute is {self.compute!r}, it must be one of {', '.join(PLACES)}")
        if self.trainer not in TRAINERS:
            raise ValueError(f"trainer is {self.trainer!r}, it must be one of {', '.join(TRAINERS)}")
        if self.tuning and not self.enrolled:
            raise ValueError("tuning is set, but nobody's root is known that could sign it; set enrolled")
        try:
            self.data.check_shape()
        except ValueError as error:
            raise ValueError(f"data: {error}") from None
        self.endpoint()

    def endpoint(self) -> Endpoint:
        return Endpoint(self.metrics_host, self.metrics_port)
