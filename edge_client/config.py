"""A device's settings: who it is, where its broker and data are. What to learn the coordinator says."""

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

SessionSeconds = Annotated[int, Within(0, 0xFFFF_FFFF)]  # as MQTT can say it
Celsius = Annotated[float, Within(0, 1000)]
Patience = Annotated[float, Within(0, LONG_SECONDS, above=True, also=((math.inf, "works offline"),))]


@dataclass(frozen=True)
class DeviceSettings:
    name: str
    federation: str = "protofleet"
    folder: str = "state"  # what survives a reboot
    # Its files reach the disk before they count; false: a power cut may cost them, the end of any process does not.
    durable: bool = True
    enrolled: str = ""  # folder that `protofleet enrol` has filled; in place of the next two
    key: str = "keys/device.key"
    coordinator_key: str = "keys/coordinator.pub"
    security: str = "sealed"  # or "off", as the coordinator's
    broker: BrokerAddress = field(default_factory=BrokerAddress)
    data: DataSettings = field(default_factory=DataSettings)
    network: Network | None = None  # a network of its own, where the run's method allows it
    plugins: PlugIns = field(default_factory=PlugIns)  # which files of Python it may run, by their hashes
    keep_models: bool = (
        True  # its own, in its folder, for `protofleet export`: the last and the best by validation
    )
    pictures: Snapshots = field(default_factory=Snapshots)
    models: ModelSettings | None = None  # what it serves to programs of its machine; None: nothing
    limits: Limits = field(default_factory=Limits)  # of what a run's plan can make this device do
    compute: str = "auto"  # auto (the GPU where it pays), cpu or cuda
    threads: Threads = 0  # for torch; 0 leaves it to torch
    slots: Slots = field(default_factory=Slots)  # for devices of one machine that compute on its cores
    trainer: str = "inside"  # or "child": a process of its own, whose death for want of memory is reported
    trainer_memory_bytes: Bytes = 0  # most that it may take of its own; 0: as much as there is
    # Longest piece of work of a child; then it is ended and begun again.
    trainer_seconds: PositiveSeconds = 10_800.0
    board: BoardSettings = field(default_factory=BoardSettings)  # whose sensors are read
    # Takes no new work while a zone of the board is hotter; 0: whatever its heat.
    hottest_celsius: Celsius = 0.0
    metrics_port: OptionalPort = 0  # 0: no metrics
    metrics_host: str = LOOPBACK  # where they are served; 0.0.0.0: at all addresses of this machine
    # Without a sign of life, after which the process ends itself; 0: no watch.
    watchdog_seconds: Watchdog = 900.0
    status: str = ""  # file, best in memory, that says how it goes; empty: none
    tuning: str = ""  # file with settings for some time, signed by the root; empty: none are looked for
    stays: bool = True  # wait for the next run when one is over
    patience_seconds: Patience = 60.0  # for the broker to answer the first time
    session_seconds: SessionSeconds = 600  # how long the broker keeps messages for a device that is away

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
