"""An experiment: a whole federation on one machine, as one TOML file says it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from protofleet.coordinator.config import CoordinatorSettings, Rules, Straggler, split_method
from protofleet.coordinator.devices.limits import Limits
from protofleet.deploy.local.origin import Origin, placed
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.catalog import domains
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.pictures import Pictures
from protofleet.methods.contract.plan import Network
from protofleet.protocol.settings.bounds import Classes, OptionalPort, Rounds, Seed, Within
from protofleet.protocol.settings.reader import SettingsError, decode_file, read_toml
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.wire.names import COORDINATOR, valid_name
from protofleet.runtime.metrics_page import LOOPBACK

MOST_DEVICES = 10_000  # processes of one machine

OneMachine = Annotated[int, Within(1, MOST_DEVICES)]


@dataclass(frozen=True)
class Fleet:
    """Which devices there are. One of three ways to say it; the first that is set holds."""

    clients: dict[str, OneMachine] = field(default_factory=dict)  # domain -> how many devices share it
    count: Annotated[int, Within(0, MOST_DEVICES)] = 0  # so many devices share the data, as data.split says
    per_domain: OneMachine = 1  # so many for every domain of the source, or of [domains]
    networks: tuple[str, ...] = ()  # device i runs network i mod n of these, with network.feature_size


@dataclass(frozen=True)
class BrokerChoice:
    """`auto` takes the system's Mosquitto where there is one, else the embedded broker."""

    kind: str = "auto"  # auto, mosquitto, embedded, external
    tls: Literal["auto", "on", "off"] = "auto"  # auto: on where it is a Mosquitto that we start
    address: BrokerAddress = field(default_factory=BrokerAddress)  # for external

    def __post_init__(self) -> None:
        kinds = ("auto", "mosquitto", "embedded", "external")
        if self.kind not in kinds:
            raise ValueError(f"kind is {self.kind!r}, it must be one of {', '.join(kinds)}")
        if self.tls == "on" and self.kind in ("embedded", "external"):
            words = "has none" if self.kind == "embedded" else "has what address.tls says"
            raise ValueError(f'tls is "on", but a broker of kind {self.kind} {words}; leave it out')


@dataclass(frozen=True)
class LocalRules(Rules):
    """Devices that share one machine: who is quick there is chance, and a repeated run must count the same."""

    straggler_factor: Straggler = 0.0


@dataclass(frozen=True)
class Experiment:
    name: str
    rounds: Rounds
    method: dict[str, Any]
    seed: Seed = 0
    classes: Classes = 10
    network: Network = field(default_factory=Network)
    data: DataSettings = field(default_factory=DataSettings)
    domains: dict[str, Origin] = field(default_factory=dict)  # if not all are from data.source
    devices: Fleet = field(default_factory=Fleet)
    policy: LocalRules | None = None  # by default everybody is waited for
    broker: BrokerChoice = field(default_factory=BrokerChoice)
    pictures: Pictures = field(default_factory=Pictures)
    security: str = "sealed"  # or "off": signed still, but the broker can read it
    compute: str = "auto"
    metrics_port: OptionalPort = 0
    metrics_host: str = LOOPBACK

    def __post_init__(self) -> None:
        valid_name(self.name)
        split_method(self.method)
        # Every file that a run writes is checked before anything starts.
        plan = coordinator_settings(self, BrokerAddress(), Path("runs"), "").plan()
        for name, data in self.shards().items():
            DeviceSettings(name, data=data, compute=self.compute)
        with torch.device("meta"):  # shapes without numbers
            for network in set(self.networks().values()):
                plan.device_model(network)

    def shards(self) -> dict[str, DataSettings]:
        """Device name -> its part of the data."""
        fleet, sources = self.devices, self._sources()
        if not fleet.clients and fleet.count:
            width = len(str(fleet.count))
            return {
                f"device-{i + 1:0{width}}": replace(self.data, part=i, parts=fleet.count)
                for i in range(fleet.count)
            }
        chosen = fleet.clients or dict.fromkeys(sources or self._domains(), fleet.per_domain)
        found = {}
        for domain, number in chosen.items():
            own = sources.get(domain) or replace(self.data, domain=domain)
            for i in range(number):
                name = domain if number == 1 else f"{domain}-{i + 1}"
                found[name.replace("_", "-")] = replace(own, part=i, parts=number)
        return found

    def sharers(self) -> dict[str, tuple[str, ...]]:
        """Domain -> the devices that have a part of it, and alone may say so."""
        found: dict[str, tuple[str, ...]] = {}
        for name, data in self.shards().items():
            domain = data.domain or data.source
            found[domain] = (*found.get(domain, ()), name)
        return found

    def networks(self) -> dict[str, Network]:
        """Device name -> its own network, where the fleet is mixed."""
        mixed = self.devices.networks
        return {
            name: replace(self.network, name=mixed[i % len(mixed)])
            for i, name in enumerate(self.shards())
            if mixed
        }

    @property
    def reports(self) -> str:
        """Whose accuracy the run is about: "global" or "personal"."""
        return coordinator_settings(self, BrokerAddress(), Path("runs"), "").plan().variant.reports

    def rules(self) -> LocalRules:
        """Everybody is there at the first round, or who is drawn for it would depend on who was quick to start."""
        everybody = len(self.shards())
        rules = self.policy or LocalRules(quorum=everybody, settle_seconds=0.0)
        return replace(rules, gather=rules.gather or everybody)

    def _sources(self) -> dict[str, DataSettings]:
        """Domain -> its data, where the domains are of several sources."""
        if not self.domains:
            return {}
        if self.devices.count and not self.devices.clients:
            raise ValueError(
                f"devices.count is {self.devices.count}, for devices that share one source, but [domains] has "
                f"{len(self.domains)}; say devices.clients or devices.per_domain"
            )
        if strange := sorted(self.devices.clients.keys() - self.domains.keys()):
            raise ValueError(
                f"devices.clients has {strange[0]!r}, which is not in [domains]; there are {', '.join(self.domains)}"
            )
        return placed(self.domains, self.data)

    def _domains(self) -> tuple[str, ...]:
        if self.data.domain:
            return (self.data.domain,)
        return domains(self.data.source) or (self.data.source,)


def read_experiment(path: Path, assignments: list[str]) -> Experiment:
    return decode_file(Experiment, path, read_tables(path), assignments)


def read_tables(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The file on top of its `base`, which may have one itself."""
    chain = (*above, path.resolve())
    if chain[-1] in above:
        raise SettingsError(f"bases go round in a circle: {' -> '.join(p.name for p in chain)}")
    table = read_toml(path)
    base = table.pop("base", None)
    if base is None:
        return table
    if not isinstance(base, str) or not (path.parent / base).is_file():
        raise SettingsError(f"{path}: base is {base!r}, it must be a TOML file's path as seen from this file")
    return merged(read_tables(path.parent / base, chain), table)


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Tables key by key; anything else takes the place of what is below."""
    both = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], dict) and isinstance(above[key], dict):
            both[key] = merged(below[key], above[key])
    return both


def coordinator_settings(
    experiment: Experiment, broker: BrokerAddress, runs: Path, words: str
) -> CoordinatorSettings:
    e = experiment
    enrolled = runs / e.name / "enrolled"
    rules = e.rules()
    if rules.quorum > len(e.shards()):
        raise SettingsError(f"policy.quorum is {rules.quorum}, but there are {len(e.shards())} devices")
    return CoordinatorSettings(
        name=e.name, rounds=e.rounds, classes=e.classes, method=e.method, federation=e.name,
        folder=str(runs), seed=e.seed, size=e.data.size, channels=e.data.channels,
        network=e.network, policy=rules, broker=broker,
        enrolled=str(enrolled / COORDINATOR), devices=str(enrolled / "root" / "records"), threads=1,
        security=e.security, limits=Limits(domains=e.sharers()),
        metrics_port=e.metrics_port, metrics_host=e.metrics_host, broker_words=words,
    )  # fmt: skip


def device_settings(
    experiment: Experiment, name: str, data: DataSettings, broker: BrokerAddress, runs: Path
) -> DeviceSettings:
    folder = runs / experiment.name
    return DeviceSettings(
        name=name, federation=experiment.name, folder=str(folder / "devices" / name),
        enrolled=str(folder / "enrolled" / "devices" / name),
        broker=broker, data=data, network=experiment.networks().get(name), pictures=experiment.pictures,
        compute=experiment.compute, threads=1, stays=False, security=experiment.security,
    )  # fmt: skip
