"""An experiment: a whole federation on one machine, described by one TOML file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from protofleet.coordinator.config import CoordinatorSettings, file_of_method, split_method
from protofleet.coordinator.devices.limits import Limits
from protofleet.coordinator.method_settings import Layer, demand_own_settings, require_own_settings
from protofleet.coordinator.round.policy import Attempts, Policy, StragglerFactor, WeightCap
from protofleet.deploy.local.data_beside import data_beside
from protofleet.deploy.local.own_plugins import OwnPlugIns, own_plugins
from protofleet.deploy.local.start.misplaced import places_of, read_for
from protofleet.deploy.provenance import digest_of_experiment
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.catalog import domains
from protofleet.edge_client.data.catalog import find as find_source
from protofleet.edge_client.data.settings import DataSettings, Fraction, Samples
from protofleet.edge_client.feature_snapshots import Snapshots
from protofleet.edge_client.host.board_settings import BoardSettings
from protofleet.methods.contract import catalog as methods
from protofleet.methods.contract.confusion import MOST_CLASSES
from protofleet.methods.contract.first_weights import FirstWeights, Freeze
from protofleet.methods.contract.own_metrics import OwnMetrics
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.contract.public import DRAWN, PublicSet
from protofleet.methods.nets import catalog as nets
from protofleet.methods.plugins.paths import IN_SETTINGS, seen_from
from protofleet.protocol.settings.bounds import Classes, OptionalPort, Rounds, Seed, Within
from protofleet.protocol.settings.input_shape import TASK, InputShape, demand_classification
from protofleet.protocol.settings.reader import SettingsError, decode, decode_file, encode, merge, read_toml
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.wire.names import COORDINATOR, valid_name
from protofleet.runtime.metrics_page import LOOPBACK

MAX_DEVICES = 10_000  # on one machine
MAX_PROCESSES_A_CORE = 4  # above it devices share processes
# Each takes some hundred megabytes of it before it computes anything; one alone leaves it idle between its steps.
MAX_PROCESSES_A_GPU = 4

DEFAULT_DATA = DataSettings()

DeviceCount = Annotated[int, Within(1, MAX_DEVICES)]


@dataclass(frozen=True)
class SimulatedDevices:
    """Which devices there are, in one of three ways; the first that is set is used."""

    clients: dict[str, DeviceCount] = field(default_factory=dict)  # domain -> how many devices share it
    # How many devices share the data, divided by data.split.
    count: Annotated[int, Within(0, MAX_DEVICES)] = 0
    per_domain: DeviceCount = 1  # devices for each domain of the source, or of [domains]
    networks: tuple[str, ...] = ()  # device i runs network i mod n of these, with network.feature_size
    # Processes forked from one that has imported everything, or a fresh interpreter each.
    start: Literal["fork", "spawn"] = "fork"
    # "each": a process each; a number: so many share all devices; 0: a process each up to 4 a core, else one a core,
    # and where they compute on a GPU at most 4.
    processes: Annotated[int, Within(0, MAX_DEVICES)] | Literal["each"] = 0
    board_root: str = (
        "/"  # file system in which all of them find the sensors of this machine, which they share
    )
    durable: bool = False  # devices sync their files; else a power cut may cost them, a killed process never
    keep_models: bool = True  # devices keep their own models for `protofleet export`


@dataclass(frozen=True)
class DomainSource:
    """Where one domain comes from: a row of the [domains] table. Omitted keys have the values of [data]."""

    source: str
    root: str = ""  # "": the source's own folder
    fraction: Fraction | None = None
    samples: Samples | None = None

    def data(self, domain: str, common: DataSettings) -> DataSettings:
        """The settings of a device that shares this domain with no other."""
        known = domains(self.source)
        if known and domain not in (self.source, *known):
            raise ValueError(f"{self.source} has no domain {domain!r}; it has {', '.join(known)}")
        return replace(
            common, source=self.source, root=self.root, domain=domain,
            fraction=common.fraction if self.fraction is None else self.fraction,
            samples=common.samples if self.samples is None else self.samples,
        )  # fmt: skip


@dataclass(frozen=True)
class BrokerChoice:
    """`auto` takes the system's Mosquitto where there is one, else the embedded broker."""

    kind: str = "auto"  # auto, mosquitto, embedded, external
    tls: Literal["auto", "on", "off"] = "auto"  # auto: on where run starts a Mosquitto
    address: BrokerAddress = field(default_factory=BrokerAddress)  # for external

    def __post_init__(self) -> None:
        kinds = ("auto", "mosquitto", "embedded", "external")
        if self.kind not in kinds:
            raise ValueError(f"kind is {self.kind!r}, it must be one of {', '.join(kinds)}")
        if self.tls == "on" and self.kind in ("embedded", "external"):
            reason = "has none" if self.kind == "embedded" else "has what address.tls says"
            raise ValueError(f'tls is "on", but a broker of kind {self.kind} {reason}; leave it out')


@dataclass(frozen=True)
class LocalPolicy(Policy):
    """No straggler rule: here chance decides which device is slow, and a repeated run must have the same cohorts. And
    one attempt at a round: its devices would answer the same numbers again."""

    straggler_factor: StragglerFactor = 0.0
    attempts: Attempts = 1
    weight_cap: WeightCap = 0.0  # they are all of this machine, and papers weigh a device by its samples


@dataclass(frozen=True)
class Experiment:
    name: str
    rounds: Rounds
    method: dict[str, Any]
    seed: Seed = 0
    task: str = TASK  # the only one that there is
    classes: Classes = 10
    network: Network = field(default_factory=Network)
    # For methods whose devices train a network of all beside their own; None: as `network`.
    mutual: Network | None = None
    # For methods whose devices compare what they make of images that all have; None: the drawn ones.
    public: PublicSet | None = None
    init: FirstWeights | None = None  # of every party's network; None: they are drawn
    freeze: Freeze | None = None  # "backbone": it stays as it is
    metrics: OwnMetrics | None = None  # measured beside accuracy and loss
    data: DataSettings = field(default_factory=DataSettings)
    domains: dict[str, DomainSource] = field(default_factory=dict)  # if not all are from data.source
    devices: SimulatedDevices = field(default_factory=SimulatedDevices)
    policy: LocalPolicy | None = None  # default: every round waits for all devices
    broker: BrokerChoice = field(default_factory=BrokerChoice)
    pictures: Snapshots = field(default_factory=Snapshots)
    security: str = "sealed"  # or "off": signed still, but the broker can read it
    confusion: bool = True  # the report says which classes are taken for which
    # File -> SHA-256 of the plug-ins that a run has run, which it writes; who sets it runs no others.
    plugins: dict[str, str] = field(default_factory=dict)
    compute: str = "auto"
    metrics_port: OptionalPort = 0
    metrics_host: str = LOOPBACK

    def __post_init__(self) -> None:
        valid_name(self.name)
        split_method(self.method)
        demand_classification(self.task)
        if self.public and self.public.source != DRAWN:
            find_source(self.public.source)
        self._require_fitting_networks()
        # All settings that a run writes are checked before anything starts.
        plan = self.plan
        for name, data in self.shards.items():
            DeviceSettings(name, data=data, compute=self.compute)
        if self.data.is_plugin and self.domains:
            raise ValueError(
                f"[domains] says where each domain comes from, and so does data.file of {self.data.source}"
            )
        with torch.device("meta"):  # checks shapes, allocates nothing
            for network in set(self.networks.values()):
                plan.device_model(network.taken(self.own_plugins.allowed()))
            if plan.load().mutual:
                plan.mutual_model()
            if plan.network.plugin:
                plan.model()
        if plan.init is not None:
            plan.model()
        if plan.variant.validates and not any(data.validation for data in self.shards.values()):
            raise ValueError(
                f"data.validation is 0 for every device, and {plan.method} learns by validation samples; set it to a "
                "share, for example 0.1"
            )

        self._require_validation_to_stop_by()

    def _require_validation_to_stop_by(self) -> None:
        if self.policy and self.policy.stop and not any(data.validation for data in self.shards.values()):
            raise ValueError(
                "policy.stop ends a run by its validation accuracy, and data.validation is 0 for every device: test "
                "samples choose nothing; set data.validation to a share, for example 0.1, or leave policy.stop out"
            )

    def _require_fitting_networks(self) -> None:
        own = {"network": self.network, "mutual": self.mutual}
        chosen = {f"{key}.name": one.name for key, one in own.items() if one and not one.file}
        chosen |= {f"devices.networks[{i}]": name for i, name in enumerate(self.devices.networks)}
        for key, name in chosen.items():
            if problem := nets.misfit(name, self.input_shape, key, "data."):
                raise ValueError(problem)

    @cached_property
    def own_plugins(self) -> OwnPlugIns:
        """Loaded, as this machine's user has named them. SettingsError where one is not what `plugins` says."""
        name, _ = split_method(self.method)
        networks = [self.network, *([self.mutual] if self.mutual else [])]
        metrics = self.metrics or OwnMetrics()
        files = [file_of_method(self.method), *(one.file for one in networks), self.data.file, metrics.file]
        every = [*(one.name for one in networks if not one.file), *self.devices.networks]
        wanted = {
            "method": [] if name in methods.names() or files[0] else [name],
            "network": [one for one in every if one not in nets.names()],
            "metrics": [metrics.name] if metrics.name and not metrics.file else [],
            "data": [self.data.source] if self.data.is_plugin and not self.data.file else [],
        }
        found = own_plugins(files, wanted, IN_SETTINGS)
        for path, source in found.sources.items():
            if (pinned := self.plugins.get(Path(path).name, source.sha256)) != source.sha256:
                raise ValueError(
                    f"plugins has SHA-256 {pinned} of {Path(path).name}, and {path} has {source.sha256}; the "
                    "file was changed: put it back, or leave that out"
                )
        return found

    @cached_property
    def plan(self) -> Plan:
        """What the coordinator sends to every device."""
        return coordinator_settings(self, BrokerAddress(), Path("runs"), "").plan()

    @cached_property
    def input_shape(self) -> InputShape:
        """Of one sample of every device."""
        found = {data.input_shape: name for name, data in self.shards.items()}
        if len(found) > 1:
            (one, here), (other, there) = list(found.items())[:2]
            raise ValueError(
                f"{there} has {other} and {here} {one}; all devices of a run learn from one shape: set data.shape "
                "or take other domains"
            )
        return next(iter(found), self.data.input_shape)

    @cached_property
    def shards(self) -> Mapping[str, DataSettings]:
        """Device name -> its data."""
        fleet, sources = self.devices, self._sources()
        if not fleet.clients and fleet.count:
            width = len(str(fleet.count))
            return {
                f"device-{i + 1:0{width}}": replace(self._named_data, part=i, parts=fleet.count)
                for i in range(fleet.count)
            }
        chosen = fleet.clients or dict.fromkeys(sources or self._domains(), fleet.per_domain)
        found: dict[str, DataSettings] = {}
        for domain, number in chosen.items():
            own = sources.get(domain) or replace(self.data, domain=domain)
            for i in range(number):
                name = (domain if number == 1 else f"{domain}-{i + 1}").replace("_", "-")
                if name in found:
                    raise ValueError(
                        f"domains {found[name].domain!r} and {domain!r} both have a device called {name!r}; rename "
                        "one of them, or change how many devices share it"
                    )
                found[name] = replace(own, part=i, parts=number)
        return found

    def device_groups(self, cores: int, *, on_gpu: bool = False) -> list[tuple[str, ...]]:
        """The devices of each process."""
        names, number = list(self.shards), self.devices.processes
        if number == 0 and on_gpu:
            number = min(MAX_PROCESSES_A_GPU, cores)
        elif number == 0:
            number = "each" if len(names) <= MAX_PROCESSES_A_CORE * cores else cores
        if number == "each":
            number = len(names)
        return [tuple(names[i::number]) for i in range(min(number, len(names)))]

    @cached_property
    def devices_by_domain(self) -> Mapping[str, tuple[str, ...]]:
        """Domain -> the devices that hold data of it: no other device may report it."""
        found: dict[str, tuple[str, ...]] = {}
        for name, data in self.shards.items():
            domain = data.domain or data.source
            found[domain] = (*found.get(domain, ()), name)
        return found

    @property
    def _named_data(self) -> DataSettings:
        """A function's data are of a domain that is known before it is asked."""
        data = self.data
        return replace(data, domain=data.domain or data.source) if data.is_plugin else data

    @cached_property
    def networks(self) -> Mapping[str, Network]:
        """Device name -> its own network, where the fleet is mixed."""
        mixed = self.devices.networks

        def of(name: str) -> Network:
            return self.network if name == self.network.name else replace(self.network, name=name, file="")

        return {name: of(mixed[i % len(mixed)]) for i, name in enumerate(self.shards) if mixed}

    @property
    def reports(self) -> str:
        """Whose accuracy the run is about: "global" or "personal"."""
        return self.plan.variant.reports

    @cached_property
    def effective_policy(self) -> LocalPolicy:
        """The first round waits for all devices: else the cohort would depend on which of them started fastest."""
        all_devices = len(self.shards)
        policy = self.policy or LocalPolicy(quorum=all_devices, settle_seconds=0.0)
        return replace(policy, gather=policy.gather or all_devices)

    def _sources(self) -> dict[str, DataSettings]:
        """Domain -> its data, where the domains are of several sources."""
        if not self.domains:
            return {}
        if self.devices.count and not self.devices.clients:
            raise ValueError(
                f"devices.count is {self.devices.count}, for devices that share one source, but [domains] has "
                f"{len(self.domains)}; set devices.clients or devices.per_domain"
            )
        if unknown := sorted(self.devices.clients.keys() - self.domains.keys()):
            raise ValueError(
                f"devices.clients has {unknown[0]!r}, which is not in [domains]; there are {', '.join(self.domains)}"
            )
        return data_by_domain(self.domains, self.data)

    def _domains(self) -> tuple[str, ...]:
        if self.data.domain:
            return (self.data.domain,)
        if self.data.is_plugin:
            return (self.data.source,)
        return domains(self.data.source) or (self.data.source,)


def data_by_domain(sources: dict[str, DomainSource], common: DataSettings) -> dict[str, DataSettings]:
    """Domain -> its data. ValueError names the key that is wrong."""
    for key in ("source", "root", "domain"):
        if getattr(common, key) != getattr(DEFAULT_DATA, key):
            raise ValueError(
                f"data.{key} is {getattr(common, key)!r}, but [domains] says where each domain comes from; "
                "leave one of them out"
            )
    found = {}
    for domain, source in sources.items():
        try:
            found[domain] = source.data(domain, common)
        except ValueError as error:
            raise ValueError(f"domains.{domain}: {error}") from None
    return found


def read_experiment(path: Path, assignments: list[str], option: str = "--set") -> Experiment:
    layers = read_layers(path, to_its_folders)
    table = merged(layers)
    beside = data_beside(table, path, assignments)
    with read_for(path, "run", "sweep"):
        require_tables(table, path, assignments, option)
        require_own_settings(layers, path, assignments, option)
        return decode_file(Experiment, path, beside.applied(table) if beside else table, assignments, option)


def require_tables(table: Mapping[str, Any], path: Path, assignments: Sequence[str], option: str) -> None:
    """SettingsError for a setting without the table that it belongs to."""
    known, method = {f.name for f in fields(Experiment)}, table.get("method")
    name = method.get("name") if isinstance(method, dict) else None
    said = {key: str(path) for key in table}
    said |= {text.partition("=")[0].strip(): f"{path} with {option}" for text in assignments}
    for key, where in said.items():
        if key not in known and (places := places_of(key, Experiment, name)):
            raise SettingsError(f"{where}: {key} is not a setting; did you mean {' or '.join(places)}?")


def experiment_table(path: Path) -> dict[str, Any]:
    """What a file and its bases say, each folder of data by its file and not by where the command was given."""
    return merged(read_layers(path, to_its_folders))


def to_its_folders(table: dict[str, Any], folder: Path) -> None:
    table |= seen_from(table, folder)
    domains = table.get("domains")
    for place in [table.get("data"), *(domains.values() if isinstance(domains, dict) else ())]:
        root = place.get("root") if isinstance(place, dict) else None
        if isinstance(place, dict) and isinstance(root, str) and root and not root.startswith("~"):
            place["root"] = str(folder.absolute() / root)


def read_with_bases(path: Path) -> dict[str, Any]:
    """The file's table merged over that of its `base`, which may have a base itself."""
    return merged(read_layers(path))


def merged(layers: Sequence[Layer]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for layer in layers:
        table = merge(table, layer.table)
    return table


def read_layers(
    path: Path,
    change: Callable[[dict[str, Any], Path], None] = lambda table, folder: None,
    parents: tuple[Path, ...] = (),
) -> list[Layer]:
    """Read a file and its bases, the lowest base first."""
    chain = (*parents, path.resolve())
    if chain[-1] in parents:
        raise SettingsError(f"circular base: {' -> '.join(p.name for p in chain)}")
    table = read_toml(path)
    if "grid" in table and "experiment" in table:
        raise SettingsError(f"{path} is no experiment but a sweep of one: protofleet sweep {path}")
    change(table, path.parent)
    base = table.pop("base", None)
    own = Layer(str(path), table, path)
    if base is None:
        return [own]
    if not isinstance(base, str) or not (path.parent / base).is_file():
        raise SettingsError(
            f"{path}: base is {base!r}, it must be the path of a TOML file, relative to this file"
        )
    return [*read_layers(path.parent / base, change, chain), own]


def experiment_of_table(table: dict[str, Any]) -> Experiment:
    """Of a program: its paths, that of its base among them, are relative to the working directory."""
    here = Path()
    base = table.pop("base", None)
    if base is not None and not (isinstance(base, str) and Path(base).is_file()):
        raise SettingsError(
            f"base is {base!r}, it must be the path of a TOML file; none is there from {here.absolute()}"
        )
    to_its_folders(table, here)
    layers = [*(read_layers(Path(base), to_its_folders) if base else ()), Layer("the settings given", table)]
    whole = merged(layers)
    demand_own_settings(layers, whole)
    beside = data_beside(whole, here / "experiment", [])
    return decode(Experiment, beside.applied(whole) if beside else whole)


def coordinator_settings(
    experiment: Experiment, broker: BrokerAddress, runs: Path, broker_description: str
) -> CoordinatorSettings:
    e = experiment
    enrolled = runs / e.name / "enrolled"
    for key in ("quorum", "gather", "cohort"):
        if (wanted := getattr(e.effective_policy, key)) > len(e.shards):
            raise SettingsError(f"policy.{key} is {wanted}, but there are {len(e.shards)} devices")
    limits = Limits(domains=dict(e.devices_by_domain), confusion=MOST_CLASSES if e.confusion else 0)
    return CoordinatorSettings(
        name=e.name, rounds=e.rounds, classes=e.classes, method=e.method, federation=e.name,
        folder=str(runs), seed=e.seed, **e.input_shape.settings(),
        network=e.network, mutual=e.mutual, public=e.public, init=e.init, freeze=e.freeze,
        policy=e.effective_policy, broker=broker,
        enrolled=str(enrolled / COORDINATOR), devices=str(enrolled / "root" / "records"), threads=1,
        security=e.security, limits=limits,
        metrics_port=e.metrics_port, metrics_host=e.metrics_host, broker_words=broker_description,
        plugins=e.own_plugins.allowed(), metrics=e.metrics, experiment=digest_of_experiment(recorded(e)),
    )  # fmt: skip


def device_settings(experiment: Experiment, name: str, broker: BrokerAddress, runs: Path) -> DeviceSettings:
    folder = runs / experiment.name
    return DeviceSettings(
        name=name, federation=experiment.name, folder=str(folder / "devices" / name),
        enrolled=str(folder / "enrolled" / "devices" / name), broker=broker, data=experiment.shards[name],
        network=experiment.networks.get(name), pictures=experiment.pictures,
        compute=experiment.compute, threads=1, stays=False, security=experiment.security,
        durable=experiment.devices.durable, keep_models=experiment.devices.keep_models,
        board=BoardSettings(experiment.devices.board_root, len(experiment.shards)),
        plugins=experiment.own_plugins.allowed(),
    )  # fmt: skip


def recorded(experiment: Experiment) -> dict[str, Any]:
    """As its run writes it down: with the files that it keeps, seen from its folder, and their hashes."""
    found = experiment.own_plugins
    table: dict[str, Any] = encode(experiment)
    if not found.sources:
        return table
    hashes = {Path(name).name: source.sha256 for name, source in found.sources.items()}
    return {**found.kept(table, Path()), "plugins": hashes}
