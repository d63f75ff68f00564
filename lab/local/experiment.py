"""Read and check an experiment: one TOML file that describes a whole federation on one machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from protofleet.coordinator.buffered import demand_buffered_fit
from protofleet.coordinator.config import CoordinatorSettings, file_of_method, split_method
from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.devices.selection import DeviceSelection
from protofleet.coordinator.keep_settings import KeepSettings
from protofleet.coordinator.method_settings import (
    Layer,
    demand_own_settings,
    require_own_settings,
    without_unused,
)
from protofleet.coordinator.private_fit import demand_dp_policy
from protofleet.coordinator.robust.fit import demand_robust_fit
from protofleet.coordinator.round.policy import Attempts, Policy, StragglerFactor, WeightCap
from protofleet.coordinator.secagg.fit import demand_secagg_fit
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.catalog import domains
from protofleet.edge_client.data.catalog import find as find_source
from protofleet.edge_client.data.settings import DataSettings, Fraction, Samples
from protofleet.edge_client.feature_snapshots import Snapshots
from protofleet.edge_client.host.board_settings import BoardSettings
from protofleet.lab.engines.settings import EngineSettings
from protofleet.lab.local.data_beside import data_beside
from protofleet.lab.local.misplaced import places_of, read_for
from protofleet.lab.local.own_plugins import OwnPlugIns, own_plugins
from protofleet.methods.contract import catalog as methods
from protofleet.methods.contract.confusion import MOST_CLASSES
from protofleet.methods.contract.first_weights import FirstWeights, Freeze
from protofleet.methods.contract.own_metrics import OwnMetrics
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.contract.public import DRAWN, PublicSet
from protofleet.methods.nets import catalog as nets
from protofleet.methods.plugins.paths import IN_SETTINGS, seen_from
from protofleet.protocol.settings.bounds import Classes, Devices, OptionalPort, Rounds, Seed, Within
from protofleet.protocol.settings.budget import BudgetSettings
from protofleet.protocol.settings.codec import CodecSettings
from protofleet.protocol.settings.dp import DpSettings
from protofleet.protocol.settings.input_shape import TASK, InputShape, demand_classification
from protofleet.protocol.settings.named_codecs import CodecName
from protofleet.protocol.settings.reader import (
    SettingsError,
    decode,
    decode_file,
    encode,
    merge,
    override,
    read_toml,
)
from protofleet.protocol.settings.secagg import SecaggSettings
from protofleet.protocol.settings.suggest import there_are
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.wire.names import COORDINATOR, valid_name
from protofleet.runtime.installation.provenance import digest_of_experiment
from protofleet.runtime.metrics_page import LOOPBACK

MAX_DEVICES = 10_000  # Maximum number of devices on one machine.
MAX_PROCESSES_A_CORE = 4  # If there are more devices per core, several devices share a process.
# Maximum device processes for one GPU. One process leaves the GPU idle between its steps. But each process takes
# some hundred megabytes of GPU memory before it computes anything.
MAX_PROCESSES_A_GPU = 4

DEFAULT_DATA = DataSettings()

# Folder beside the runs; no run has this name, because a name does not begin with a dot.
FEATURES = ".features"

DeviceCount = Annotated[int, Within(1, MAX_DEVICES)]


@dataclass(frozen=True)
class SimulatedDevices:
    """The devices of an experiment.

    The keys `clients`, `count` and `per_domain` are three ways to choose the devices. If several of them are set,
    only the first in this order is used.
    """

    clients: dict[str, DeviceCount] = field(default_factory=dict)
    """Number of devices that share each domain, by the domain's name; empty means that `count` or
    `per_domain` is used.
    """
    count: Annotated[int, Within(0, MAX_DEVICES)] = 0
    """Number of devices that share the whole source as `data.split` says; 0 means that `per_domain` is used."""
    per_domain: DeviceCount = 1
    """Number of devices for each domain of the source or of `[domains]`."""
    networks: tuple[str, ...] = ()
    """Names of n networks; device i runs network i mod n, with `network.feature_size`; empty means that all devices
    run `network`.
    """
    start: Literal["fork", "spawn"] = "fork"
    """Start of the processes, `fork` (copies of a process that has imported everything) or `spawn` (new
    interpreters).
    """
    processes: Annotated[int, Within(0, MAX_DEVICES)] | Literal["each"] = 0
    """Number of processes that all devices share, or `each` for one process per device; 0 means one per device if a
    core has at most 4 devices, otherwise one per core, and on a GPU at most 4 processes.
    """
    board_root: str = "/"
    """Root of the file system with the sensors of this machine, which all devices share."""
    durable: bool = False
    """If true, devices sync their files; if false, a power cut may lose files, but a killed process loses none."""
    keep_models: bool = True
    """If true, devices keep their own models for `protofleet export`."""


@dataclass(frozen=True)
class DomainSource:
    """The source of the data of one domain: a row of the table [domains].

    A key that is left out has the value of the same key in [data].
    """

    source: str
    """Source of the domain's data (`protofleet data` lists the sources)."""
    root: str = ""
    """Folder of the data; empty means the source's own folder in the cache."""
    fraction: Fraction | None = None
    """Part of the domain's training samples that each device learns from, from 0 to 1; if left out, `data.fraction`
    is used.
    """
    samples: Samples | None = None
    """Largest number of a device's samples for training and validation together; if left out, `data.samples` is used.
    """

    def data(self, domain: str, common: DataSettings) -> DataSettings:
        """Return the data settings of a device that has all samples of this domain."""
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
    """The choice of a broker.

    `auto` takes the system's Mosquitto if it is installed, and otherwise the embedded broker.
    """

    kind: str = "auto"
    """Kind of the broker, `auto` (the system's Mosquitto, or else the embedded broker), `mosquitto`,
    `embedded` or `external`.
    """
    tls: Literal["auto", "on", "off"] = "auto"
    """Use of TLS, `on`, `off` or `auto` (on if the run starts a Mosquitto)."""
    address: BrokerAddress = field(default_factory=BrokerAddress)
    """Address of an `external` broker."""

    def __post_init__(self) -> None:
        kinds = ("auto", "mosquitto", "embedded", "external")
        if self.kind not in kinds:
            raise ValueError(f"kind is {self.kind!r}, it must be one of {', '.join(kinds)}")
        if self.tls == "on" and self.kind in ("embedded", "external"):
            reason = "cannot use TLS" if self.kind == "embedded" else "uses the table address.tls"
            raise ValueError(f'tls is "on", but a broker of kind {self.kind} {reason}; leave out tls')


@dataclass(frozen=True)
class LocalPolicy(Policy):
    """The policy of a run on one machine.

    This policy has no straggler rule. On one machine, chance decides which device is slow, and a repeated run
    must have the same cohorts. Each round is tried only once, because in a second try the devices would send
    the same numbers.
    """

    gather: Devices = 0
    """Number of devices for which the first round waits, for at most `patience_seconds`; 0 means all devices."""
    straggler_factor: StragglerFactor = 0.0
    attempts: Attempts = 1
    # No cap is needed, because all devices belong to this machine. As in papers, the weight of a device is its
    # number of samples.
    weight_cap: WeightCap = 0.0


@dataclass(frozen=True)
class Experiment:
    """The settings of an experiment, which describe a whole federation on one machine."""

    name: str
    """Name of the run, and of its folder under `runs/`."""
    rounds: Rounds
    """Number of training rounds."""
    method: dict[str, Any]
    """Name of the method (`name`), or the path of a Python file that defines one (`file`), and the settings
    of this method.
    """
    seed: Seed = 0
    """Seed of all random draws, such as first weights, cohorts and the order of samples."""
    task: str = TASK
    """Kind of the task; the only kind is `classification`."""
    classes: Classes = 10
    """Number of classes."""
    network: Network = field(default_factory=Network)
    """Network of the devices."""
    mutual: Network | None = None
    """Network that all devices train in addition to their own, for methods such as FML and FedKD; if left out, it is
    the same network as `network`.
    """
    public: PublicSet | None = None
    """Samples that all devices have, for methods whose devices compare their outputs on these samples (FCCL+); if
    left out, the samples are generated images.
    """
    init: FirstWeights | None = None
    """First weights of every party's network; if left out, the first weights are drawn with the seed."""
    freeze: Freeze | None = None
    """Part of the network that is not trained, `backbone` (the layers that make the features); if left out, the whole
    network is trained.
    """
    codec: CodecSettings | CodecName | None = None
    """Coding of arrays in fewer bytes, as the name of a codec or as stages; if left out, no number is
    rounded, and arrays that have not changed are not sent again.
    """
    dp: DpSettings | None = None
    """Noise on the updates, so that they give away at most an epsilon; if left out, no noise is added."""
    secagg: SecaggSettings | None = None
    """Masked sums, so that the coordinator learns only the sum of the updates; if left out, it gets each update.
    """
    metrics: OwnMetrics | None = None
    """Metrics that are measured in addition to accuracy and loss."""
    data: DataSettings = field(default_factory=DataSettings)
    """Data of the devices."""
    domains: dict[str, DomainSource] = field(default_factory=dict)
    """Source of each domain by the domain's name, if not all domains come from `data.source`."""
    devices: SimulatedDevices = field(default_factory=SimulatedDevices)
    """Number of the devices, their networks and their processes."""
    select: DeviceSelection | None = None
    """Devices that take part in the run; if left out, all devices of the experiment take part."""
    policy: LocalPolicy | None = None
    """Rules for the rounds; if left out, every round waits for all devices."""
    budget: BudgetSettings | None = None
    """Limits on what the connection of each device transfers, in bytes or in money; if left out, there are none."""
    keep: KeepSettings = field(default_factory=KeepSettings)
    """Answers that the coordinator keeps after their rounds; if left out, it keeps none."""
    broker: BrokerChoice = field(default_factory=BrokerChoice)
    """Broker of the run."""
    pictures: Snapshots = field(default_factory=Snapshots)
    """Snapshots of embeddings for the pictures of the report."""
    security: str = "sealed"
    """Protection of messages, `sealed`, or `off` for signed messages that the broker can read."""
    confusion: bool = True
    """If true, the report shows which classes are mistaken for which."""
    plugins: dict[str, str] = field(default_factory=dict)
    """SHA-256 of each plug-in by its file name; the run writes this table, and if the table is set, only plug-ins
    with these hashes run.
    """
    compute: str = "auto"
    """Processor of all devices, `auto` (the GPU if it is faster), `cpu` or `cuda`."""
    metrics_port: OptionalPort = 0
    """Port of the coordinator's metrics page; 0 means no metrics."""
    metrics_host: str = LOOPBACK
    """Address of the metrics page on this machine; `0.0.0.0` means all addresses."""
    page_port: OptionalPort = 0
    """Port of the live page of the run on this machine's loopback; 0 means no page."""
    engine: EngineSettings | None = None
    """Engine that runs several runs of this file on other nodes (`--on`); if left out, they run on this machine."""

    def __post_init__(self) -> None:
        valid_name(self.name)
        name, _ = split_method(self.method)
        object.__setattr__(self, "method", without_unused(self.method, name))  # the experiment is frozen
        demand_classification(self.task)
        if self.public and self.public.source != DRAWN:
            find_source(self.public.source)
        self._require_fitting_networks()
        # The settings files that the run will write are checked here, before anything starts.
        plan = self.plan
        for name, data in self.shards.items():
            DeviceSettings(name, data=data, compute=self.compute)
        if self.data.is_plugin and self.domains:
            raise ValueError(
                "[domains] names the source of each domain, so it cannot be used with data.file of "
                f"{self.data.source}"
            )
        with torch.device("meta"):  # The meta device checks shapes and allocates no memory.
            for network in set(self.networks.values()):
                plan.device_model(network.taken(self.own_plugins.allowed()))
            if plan.load().mutual:
                plan.mutual_model()
            if plan.network.plugin:
                plan.model()
        plan.demand_fleet_fit(len(self.shards))
        self._require_known_domains()
        if plan.init is not None:
            plan.model()
        if plan.variant.validates and not any(data.validation for data in self.shards.values()):
            raise ValueError(
                f"data.validation is 0 for every device, but {plan.method} needs validation samples to learn; set "
                "it to a "
                "share, for example 0.1"
            )

        self._require_validation_to_stop_by()
        demand_buffered_fit(self.effective_policy, self.plan)
        demand_robust_fit(self.effective_policy, self.plan)
        demand_secagg_fit(self.effective_policy, self.plan)
        demand_dp_policy(self.effective_policy, self.plan)

    def _require_validation_to_stop_by(self) -> None:
        if self.policy and self.policy.stop and not any(data.validation for data in self.shards.values()):
            raise ValueError(
                "policy.stop needs validation accuracy, but data.validation is 0 for every device; set "
                "data.validation to a share, for example 0.1, or leave out policy.stop (test samples must not decide "
                "when a run stops)"
            )

    def _require_known_domains(self) -> None:
        if not self.plan.variant.domains:
            return
        for domain, devices in self.devices_by_domain.items():
            if problem := self.plan.domain_misfit(domain):
                raise ValueError(f"the device {devices[0]} cannot take part: {problem}")

    def _require_fitting_networks(self) -> None:
        own = {"network": self.network, "mutual": self.mutual}
        chosen = {f"{key}.name": (one.name, one.own) for key, one in own.items() if one and not one.file}
        chosen |= {f"devices.networks[{i}]": (name, {}) for i, name in enumerate(self.devices.networks)}
        for key, (name, settings) in chosen.items():
            if problem := nets.misfit(name, self.input_shape, key, "data.", settings):
                raise ValueError(problem)

    @cached_property
    def own_plugins(self) -> OwnPlugIns:
        """Load and return the plug-ins that the user of this machine has named.

        If a plug-in has another hash than in `plugins`, an error is raised.
        """
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
                    f"plugins has the SHA-256 {pinned} of {Path(path).name}, but {path} has {source.sha256}; the "
                    "file was changed: restore the file, or remove its line from plugins"
                )
        return found

    @cached_property
    def plan(self) -> Plan:
        """Return the plan that the coordinator sends to every device."""
        return coordinator_settings(self, BrokerAddress(), Path("runs"), "").plan()

    @cached_property
    def input_shape(self) -> InputShape:
        """Return the shape of one sample, which must be the same for every device."""
        found = {data.input_shape: name for name, data in self.shards.items()}
        if len(found) > 1:
            (one, here), (other, there) = list(found.items())[:2]
            raise ValueError(
                f"{there} has samples of the shape {other}, but {here} has {one}; all devices need samples of the "
                "same shape: set data.shape, or choose other domains"
            )
        return next(iter(found), self.data.input_shape)

    @cached_property
    def shards(self) -> Mapping[str, DataSettings]:
        """Return the data settings of each device that takes part, by the device's name."""
        return self._all_shards if self.select is None else selected(self.select, self._all_shards)

    @cached_property
    def _all_shards(self) -> Mapping[str, DataSettings]:
        """Return the data settings of all devices, which share the data also if some of them are not selected."""
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
                        f"domains {found[name].domain!r} and {domain!r} both have a device with the name {name!r}; "
                        "rename "
                        "one of them, or change how many devices share it"
                    )
                found[name] = replace(own, part=i, parts=number)
        return found

    def device_groups(self, cores: int, *, on_gpu: bool = False) -> list[tuple[str, ...]]:
        """Return the groups of devices that share a process."""
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
        """Return, for each domain, the names of the devices that have data of this domain.

        During the run, only these devices may report the domain.
        """
        found: dict[str, tuple[str, ...]] = {}
        for name, data in self.shards.items():
            domain = data.domain or data.source
            found[domain] = (*found.get(domain, ()), name)
        return found

    @property
    def _named_data(self) -> DataSettings:
        """Return the data settings. If a function of the user makes the data and no domain is set, add a domain.

        The added domain has the name of the data source. Messages and results need the name of the domain before
        the function is called.
        """
        data = self.data
        return replace(data, domain=data.domain or data.source) if data.is_plugin else data

    @cached_property
    def networks(self) -> Mapping[str, Network]:
        """Return the network of each device, by the device's name; empty if all devices have the same network."""
        mixed = self.devices.networks

        def of(name: str) -> Network:
            return self.network if name == self.network.name else replace(self.network, name=name, file="")

        every = {name: of(mixed[i % len(mixed)]) for i, name in enumerate(self._all_shards) if mixed}
        return {name: network for name, network in every.items() if name in self.shards}

    @property
    def reports(self) -> str:
        """Return the model whose accuracy the run reports: "global" or "personal"."""
        return self.plan.variant.reports

    @cached_property
    def effective_policy(self) -> LocalPolicy:
        """Return the policy of the run. If `gather` is not set, the first round waits for all devices.

        Without this wait, the first cohort would depend on how fast the devices start.
        """
        all_devices = len(self.shards)
        policy = self.policy or LocalPolicy(quorum=all_devices, settle_seconds=0.0)
        return replace(policy, gather=policy.gather or all_devices)

    def _sources(self) -> dict[str, DataSettings]:
        """Return the data settings of each domain; empty if the table [domains] is not set."""
        if not self.domains:
            return {}
        if self.devices.count and not self.devices.clients:
            raise ValueError(
                f"devices.count is {self.devices.count}, but it can divide only one source, and [domains] has "
                f"{len(self.domains)} sources; set devices.clients or devices.per_domain"
            )
        if unknown := sorted(self.devices.clients.keys() - self.domains.keys()):
            raise ValueError(
                f"devices.clients has {unknown[0]!r}, which is not in [domains]; the domains are "
                f"{', '.join(self.domains)}"
            )
        return data_by_domain(self.domains, self.data)

    def _domains(self) -> tuple[str, ...]:
        if self.data.domain:
            return (self.data.domain,)
        if self.data.is_plugin:
            return (self.data.source,)
        return domains(self.data.source) or (self.data.source,)


def selected(select: DeviceSelection, every: Mapping[str, DataSettings]) -> dict[str, DataSettings]:
    """Return the data settings of the devices that a run on one machine selects."""
    select.demand_no_labels("a run on one machine has no such coordinator")
    if problem := select.problem(1, every, {}):
        raise ValueError(problem)
    domains = select.domains
    found = [
        name
        for name, data in every.items()
        if select.has_name(name) and (not domains or (data.domain or data.source) in domains)
    ]
    if not found:
        known = sorted({data.domain or data.source for data in every.values()})
        raise ValueError(
            f"select.domains is {', '.join(domains)}, and no device is left; {there_are(domains[0], known)}"
        )
    return {name: every[name] for name in found[: select.most or len(found)]}


def data_by_domain(sources: dict[str, DomainSource], common: DataSettings) -> dict[str, DataSettings]:
    """Return the data settings of each domain. A ValueError names the key whose value is wrong."""
    for key in ("source", "root", "domain"):
        if getattr(common, key) != getattr(DEFAULT_DATA, key):
            raise ValueError(
                f"data.{key} is {getattr(common, key)!r}, but [domains] names the source of each domain; "
                "leave out one of these two settings"
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


def names_patience(path: Path, assignments: Sequence[str]) -> bool:
    """Return whether the file or an assignment names `policy.patience_seconds`."""
    policy = override(experiment_table(path), assignments).get("policy")
    return isinstance(policy, Mapping) and "patience_seconds" in policy


def require_tables(table: Mapping[str, Any], path: Path, assignments: Sequence[str], option: str) -> None:
    """Raise SettingsError for a setting without the name of its table, and suggest the full name."""
    known, method = {f.name for f in fields(Experiment)}, table.get("method")
    name = method.get("name") if isinstance(method, dict) else None
    said = {key: str(path) for key in table}
    said |= {text.partition("=")[0].strip(): f"{path} with {option}" for text in assignments}
    for key, where in said.items():
        if key not in known and (places := places_of(key, Experiment, name)):
            raise SettingsError(f"{where}: {key} is not a setting; did you mean {' or '.join(places)}?")


def experiment_table(path: Path) -> dict[str, Any]:
    """Return the settings of a file, merged with the settings of its bases.

    A relative path of a data folder starts at the folder of the file that contains the path, and not at the
    working directory.
    """
    return merged(read_layers(path, to_its_folders))


def to_its_folders(table: dict[str, Any], folder: Path) -> None:
    table |= seen_from(table, folder)
    domains = table.get("domains")
    for place in [table.get("data"), *(domains.values() if isinstance(domains, dict) else ())]:
        root = place.get("root") if isinstance(place, dict) else None
        if isinstance(place, dict) and isinstance(root, str) and root and not root.startswith("~"):
            place["root"] = str(folder.absolute() / root)


def read_with_bases(path: Path) -> dict[str, Any]:
    """Return the file's table, merged over the table of its `base`. A base may have a base, too."""
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
    """Read a file and its bases. The result begins with the lowest base and ends with the file."""
    chain = (*parents, path.resolve())
    if chain[-1] in parents:
        raise SettingsError(
            f"these files form a circle, in which each `base` is the next file: {' -> '.join(p.name for p in chain)}"
        )
    table = read_toml(path)
    if "grid" in table and "experiment" in table:
        raise SettingsError(f"{path} is a sweep and not an experiment; run it with protofleet sweep {path}")
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
    """Make an experiment from a table that a Python program gives.

    Relative paths in the table, also the path of `base`, start at the working directory.
    """
    here = Path()
    base = table.pop("base", None)
    if base is not None and not (isinstance(base, str) and Path(base).is_file()):
        raise SettingsError(
            f"base is {base!r}, it must be the path of a TOML file; no file has this path, relative to "
            f"{here.absolute()}"
        )
    to_its_folders(table, here)
    layers = [*(read_layers(Path(base), to_its_folders) if base else ()), Layer("the settings given", table)]
    whole = merged(layers)
    demand_own_settings(layers, whole)
    beside = data_beside(whole, here / "experiment", [])
    return decode(Experiment, beside.applied(whole) if beside else whole)


def coordinator_settings(
    experiment: Experiment,
    broker: BrokerAddress,
    runs: Path,
    broker_description: str,
    policy: Policy | None = None,
) -> CoordinatorSettings:
    """Return the settings of the coordinator. If `policy` is given, it replaces the policy of the experiment."""
    e = experiment
    enrolled = runs / e.name / "enrolled"
    for key in ("quorum", "gather", "cohort", "buffer"):
        if (wanted := getattr(e.effective_policy, key)) > len(e.shards):
            raise SettingsError(f"policy.{key} is {wanted}, but there are {len(e.shards)} devices")
    limits = CoordinatorLimits(
        domains=dict(e.devices_by_domain), confusion=MOST_CLASSES if e.confusion else 0
    )
    return CoordinatorSettings(
        name=e.name, rounds=e.rounds, classes=e.classes, method=e.method, federation=e.name,
        folder=str(runs), seed=e.seed, **e.input_shape.settings(),
        network=e.network, mutual=e.mutual, public=e.public, init=e.init, freeze=e.freeze, codec=e.codec,
        secagg=e.secagg, dp=e.dp, policy=policy or e.effective_policy, budget=e.budget, keep=e.keep,
        broker=broker,
        enrolled=str(enrolled / COORDINATOR), devices=str(enrolled / "root" / "records"), threads=1,
        security=e.security, limits=limits,
        metrics_port=e.metrics_port, metrics_host=e.metrics_host, page_port=e.page_port,
        broker_words=broker_description,
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
        features=str(runs / FEATURES),
        board=BoardSettings(experiment.devices.board_root, len(experiment.shards)),
        plugins=experiment.own_plugins.allowed(),
    )  # fmt: skip


def recorded(experiment: Experiment) -> dict[str, Any]:
    """Return the settings in the form in which a run records them.

    The path of a plug-in is the path of its copy, relative to the run's folder. The hashes of the plug-ins
    are included. The port of the live page is left out, because each start may have another port. The engine is left
    out, because it changes no result.
    """
    found = experiment.own_plugins
    table: dict[str, Any] = encode(experiment)
    table.pop("page_port", None)
    table.pop("engine", None)
    if not found.sources:
        return table
    hashes = {Path(name).name: source.sha256 for name, source in found.sources.items()}
    return {**found.kept(table, Path()), "plugins": hashes}
