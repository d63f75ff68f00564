"""An experiment: a whole federation on one machine, as one TOML file says it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coordinator.config import CoordinatorSettings, Rules, split_method
from edge_client.config import DeviceSettings
from edge_client.data import DataSettings, domains
from methods.plan import Network
from protocol.broker import BrokerAddress
from protocol.settings import SettingsError, decode, override, read_toml
from protocol.topics import valid_name


@dataclass(frozen=True)
class Fleet:
    """Which devices there are. One of three ways to say it; the first that is set holds."""

    clients: dict[str, int] = field(default_factory=dict)  # domain -> how many devices share it
    count: int = 0  # so many devices share the data, as data.split says
    per_domain: int = 1  # so many for every domain of the source

    def __post_init__(self) -> None:
        for domain, number in self.clients.items():
            if number < 1:
                raise ValueError(f"clients.{domain} is {number}, it must be at least 1")
        if self.count < 0 or self.per_domain < 1:
            raise ValueError(
                f"count is {self.count} and per_domain {self.per_domain}; they must be at least 0 and 1"
            )


@dataclass(frozen=True)
class BrokerChoice:
    """`auto` takes the system's Mosquitto where there is one, else the embedded broker."""

    kind: str = "auto"  # auto, mosquitto, embedded, external
    address: BrokerAddress = field(default_factory=BrokerAddress)  # for external

    def __post_init__(self) -> None:
        kinds = ("auto", "mosquitto", "embedded", "external")
        if self.kind not in kinds:
            raise ValueError(f"kind is {self.kind!r}, it must be one of {', '.join(kinds)}")


@dataclass(frozen=True)
class Experiment:
    name: str
    rounds: int
    method: dict[str, Any]
    seed: int = 0
    classes: int = 10
    network: Network = field(default_factory=Network)
    data: DataSettings = field(default_factory=DataSettings)
    devices: Fleet = field(default_factory=Fleet)
    policy: Rules | None = None  # by default everybody is waited for
    broker: BrokerChoice = field(default_factory=BrokerChoice)
    compute: str = "auto"
    metrics_port: int = 0

    def __post_init__(self) -> None:
        valid_name(self.name)
        split_method(self.method)
        # Every file that a run writes is checked before anything starts.
        coordinator_settings(self, BrokerAddress(), Path("runs"), "")
        for name, data in self.shards().items():
            DeviceSettings(name, data=data, compute=self.compute)

    def shards(self) -> dict[str, DataSettings]:
        """Device name -> its part of the data."""
        fleet = self.devices
        if not fleet.clients and fleet.count:
            width = len(str(fleet.count))
            return {
                f"device-{i + 1:0{width}}": replace(self.data, part=i, parts=fleet.count)
                for i in range(fleet.count)
            }
        chosen = fleet.clients or dict.fromkeys(self._domains(), fleet.per_domain)
        found = {}
        for domain, number in chosen.items():
            for i in range(number):
                name = domain if number == 1 else f"{domain}-{i + 1}"
                found[name.replace("_", "-")] = replace(self.data, domain=domain, part=i, parts=number)
        return found

    def rules(self) -> Rules:
        everybody = len(self.shards())
        return self.policy or Rules(quorum=everybody, settle_seconds=0.0)

    def _domains(self) -> tuple[str, ...]:
        if self.data.domain:
            return (self.data.domain,)
        return domains(self.data.source) or (self.data.source,)


def read_experiment(path: Path, assignments: list[str]) -> Experiment:
    return decode(Experiment, override(read_toml(path), assignments))


def coordinator_settings(
    experiment: Experiment, broker: BrokerAddress, runs: Path, words: str
) -> CoordinatorSettings:
    e = experiment
    keys = runs / e.name / "keys"
    rules = e.rules()
    if rules.quorum > len(e.shards()):
        raise SettingsError(f"policy.quorum is {rules.quorum}, but there are {len(e.shards())} devices")
    return CoordinatorSettings(
        name=e.name, rounds=e.rounds, classes=e.classes, method=e.method, federation=e.name,
        folder=str(runs), seed=e.seed, size=e.data.size, network=e.network, policy=rules, broker=broker,
        key=str(keys / "coordinator.key"), devices=str(keys / "public"), threads=1,
        metrics_port=e.metrics_port, broker_words=words,
    )  # fmt: skip


def device_settings(
    experiment: Experiment, name: str, data: DataSettings, broker: BrokerAddress, runs: Path
) -> DeviceSettings:
    folder = runs / experiment.name
    return DeviceSettings(
        name=name, federation=experiment.name, folder=str(folder / "devices" / name),
        key=str(folder / "keys" / f"{name}.key"), coordinator_key=str(folder / "keys" / "coordinator.pub"),
        broker=broker, data=data, compute=experiment.compute, threads=1, stays=False,
    )  # fmt: skip
