"""The settings of a coordinator: its run, its broker, its keys and its folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protofleet.coordinator.devices.limits import Limits
from protofleet.coordinator.round.policy import Policy
from protofleet.methods.contract.catalog import names
from protofleet.methods.contract.first_weights import FirstWeights, Freeze
from protofleet.methods.contract.own_metrics import OwnMetrics
from protofleet.methods.contract.plan import Network, Plan, agreed_public_set
from protofleet.methods.contract.public import PublicSet
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.protocol.security.envelope import seals
from protofleet.protocol.settings.bounds import (
    Channels,
    Classes,
    OptionalPort,
    Pixels,
    PositiveSeconds,
    Rounds,
    Seed,
    Threads,
    Watchdog,
)
from protofleet.protocol.settings.input_shape import (
    TASK,
    USUAL_CHANNELS,
    USUAL_SIDE,
    Axes,
    demand_classification,
)
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.wire.class_names import normalized, problem_with
from protofleet.protocol.wire.names import valid_name
from protofleet.runtime.metrics_page import LOOPBACK, Endpoint


@dataclass(frozen=True)
class CoordinatorSettings:
    name: str  # of the run
    rounds: Rounds
    classes: Classes
    method: dict[str, Any]  # name, and the settings of the method itself
    federation: str = "protofleet"
    task: str = TASK  # the only task that exists
    class_names: tuple[str, ...] = ()  # in the order of their labels; (): the names that most devices send
    folder: str = "runs"  # results go to <folder>/<name>/
    seed: Seed = 0
    size: Pixels = USUAL_SIDE  # images are size x size
    channels: Channels = USUAL_CHANNELS  # channels of an image: 3, or 1 for shades of grey
    shape: Axes = ()  # replaces both: [F] of a vector, [C, T] of a series, [C, H, W] of an image
    network: Network = field(default_factory=Network)
    # For methods whose devices train a shared network in addition to their own; None: the same as
    # `network`.
    mutual: Network | None = None
    # For methods whose devices compare their outputs on images that all devices have; None: the drawn
    # images.
    public: PublicSet | None = None
    init: FirstWeights | None = None  # first weights of the network of every party; None: they are drawn
    freeze: Freeze | None = None  # "backbone": the backbone stays as it is
    metrics: OwnMetrics | None = None  # metrics that are measured in addition to accuracy and loss
    plugins: PlugIns = field(default_factory=PlugIns)  # the Python files that it may run, by their hashes
    policy: Policy = field(default_factory=Policy)
    limits: Limits = field(default_factory=Limits)
    broker: BrokerAddress = field(default_factory=BrokerAddress)
    enrolled: str = ""  # folder that `protofleet enrol` has filled; replaces `key`
    key: str = "keys/coordinator.key"
    devices: str = "keys"  # folder of <device>.record files; if `enrolled` is empty, of <device>.pub files
    security: str = "sealed"  # or "off": messages are still signed, but every broker can read them
    threads: Threads = 0  # for torch; 0 leaves it to torch
    metrics_port: OptionalPort = 0  # 0: no metrics
    metrics_host: str = LOOPBACK  # address where metrics are served; 0.0.0.0: all addresses of this machine
    # Seconds without a sign of life after which the process ends itself; 0: no watchdog.
    watchdog_seconds: Watchdog = 900.0
    patience_seconds: PositiveSeconds = 60.0  # seconds that the broker has for its first reply
    broker_words: str = ""  # how reports describe the broker
    experiment: str = ""  # digest of the experiment that this run belongs to, for reports

    def __post_init__(self) -> None:
        valid_name(self.name)
        valid_name(self.federation)
        seals(self.security)
        demand_classification(self.task)
        if self.class_names and len(self.class_names) != self.classes:
            raise ValueError(f"class_names has {len(self.class_names)} names, but classes is {self.classes}")
        if problem := problem_with(normalized(self.class_names)):
            raise ValueError(f"class_names cannot be used: {problem}")
        self.endpoint()
        self.plan()

    def endpoint(self) -> Endpoint:
        return Endpoint(self.metrics_host, self.metrics_port)

    def plan(self) -> Plan:
        """Load the plug-ins and return the plan; raise PlugInError if a plug-in is not allowed."""
        name, hyper = split_method(self.method)
        method = self.plugins.hash_of("method", name, file_of_method(self.method), name in names())
        hashes = {"method": method} if method else {}
        if self.metrics is not None:
            hashes["metrics"] = self.metrics.hash_in(self.plugins)
        plan = Plan(
            name, self.classes, self.rounds, self.seed, self.size, self.network.taken(self.plugins), hyper,
            self.channels, self.mutual and self.mutual.taken(self.plugins),
            agreed_public_set(name, self.public, method), self.init, self.freeze, hashes, self.shape,
        )  # fmt: skip
        plan.demand_fit()
        return plan


def split_method(table: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of the method and the settings of the method itself."""
    name = table.get("name", Path(file_of_method(table)).stem or None)
    if not isinstance(name, str):
        raise SettingsError('method.name is missing; say for example name = "fedlsa" under [method]')
    return name, {key: value for key, value in table.items() if key not in ("name", "file")}


def file_of_method(table: dict[str, Any]) -> str:
    """Return the file of a method that is a plug-in; "" if the method is built in or comes from a package."""
    file = table.get("file", "")
    if not isinstance(file, str):
        raise SettingsError(f"method.file is {file!r}, it must be the path of a file of Python")
    return file
