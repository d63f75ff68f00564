"""A coordinator's settings: the run it conducts, and where its broker, keys and folder are."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from coordinator.claims import Limits
from coordinator.events import Policy
from methods.plan import Network, Plan
from protocol.broker import BrokerAddress
from protocol.exposition import LOOPBACK, Endpoint
from protocol.seal import seals
from protocol.settings import SettingsError
from protocol.topics import valid_name


@dataclass(frozen=True)
class Rules:
    """The [policy] table; see coordinator.events.Policy for what each rule does."""

    quorum: int = 1
    cohort: int = 0
    gather: int = 0
    patience_seconds: float = 600.0
    grace_seconds: float = 10.0
    settle_seconds: float = 2.0
    spares: int = 0
    straggler_factor: float = 2.5
    straggler_seconds: float = 0.5
    flaps: int = 5
    flap_seconds: float = 300.0


@dataclass(frozen=True)
class CoordinatorSettings:
    name: str  # of the run
    rounds: int
    classes: int
    method: dict[str, Any]  # name, and the method's own settings
    federation: str = "protofleet"
    folder: str = "runs"  # results go to <folder>/<name>/
    seed: int = 0
    size: int = 32  # images are size x size
    channels: int = 3  # of an image: 3, or 1 for shades of grey
    network: Network = field(default_factory=Network)
    policy: Rules = field(default_factory=Rules)
    limits: Limits = field(default_factory=Limits)
    broker: BrokerAddress = field(default_factory=BrokerAddress)
    enrolled: str = ""  # folder that `protofleet enrol` has filled; in place of `key`
    key: str = "keys/coordinator.key"
    devices: str = "keys"  # folder of <device>.record files; without `enrolled`, of <device>.pub
    security: str = "sealed"  # or "off": signed still, but every broker can read it
    threads: int = 0  # for torch; 0 leaves it to torch
    metrics_port: int = 0  # 0: no metrics
    metrics_host: str = LOOPBACK  # where they are served; 0.0.0.0: at all addresses of this machine
    watchdog_seconds: float = (
        900.0  # without a sign of life, after which the process ends itself; 0: no watch
    )
    patience_seconds: float = 60.0  # for the broker to answer the first time
    broker_words: str = ""  # how reports describe the broker

    def __post_init__(self) -> None:
        valid_name(self.name)
        valid_name(self.federation)
        seals(self.security)
        if self.threads < 0:
            raise ValueError(f"threads is {self.threads}, it must be 0 (torch decides) or more")
        if not 0 <= self.watchdog_seconds < float("inf"):
            raise ValueError(f"watchdog_seconds is {self.watchdog_seconds}, it must be 0 (no watch) or more")
        self.endpoint()
        self.rules()
        self.plan()

    def endpoint(self) -> Endpoint:
        return Endpoint(self.metrics_host, self.metrics_port)

    def rules(self) -> Policy:
        return Policy(self.rounds, **asdict(self.policy))

    def plan(self) -> Plan:
        name, hyper = split_method(self.method)
        return Plan(name, self.classes, self.rounds, self.seed, self.size, self.network, hyper, self.channels)


def split_method(table: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The method's name and its own settings."""
    name = table.get("name")
    if not isinstance(name, str):
        raise SettingsError('method.name is missing; say for example name = "fedlsa" under [method]')
    return name, {key: value for key, value in table.items() if key != "name"}
