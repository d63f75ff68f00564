"""The settings of a coordinator: its run, its broker, its keys and its folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protofleet.coordinator.buffered import demand_buffered_fit
from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.devices.selection import DeviceSelection
from protofleet.coordinator.keep_settings import KeepSettings
from protofleet.coordinator.method_settings import IDENTITY, without_unused
from protofleet.coordinator.page.page_address import PageAddress
from protofleet.coordinator.private_fit import demand_dp_policy
from protofleet.coordinator.robust.fit import demand_robust_fit
from protofleet.coordinator.round.policy import Policy
from protofleet.coordinator.round_bytes import demand_one_round
from protofleet.coordinator.secagg.fit import NO_RECORDS, demand_secagg_fit
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
from protofleet.protocol.settings.budget import BudgetSettings
from protofleet.protocol.settings.codec import CodecSettings
from protofleet.protocol.settings.dp import DpSettings
from protofleet.protocol.settings.input_shape import (
    TASK,
    USUAL_CHANNELS,
    USUAL_SIDE,
    Axes,
    demand_classification,
)
from protofleet.protocol.settings.named_codecs import CodecName
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.settings.secagg import SecaggSettings
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.wire.class_names import normalized, problem_with
from protofleet.protocol.wire.names import valid_name
from protofleet.runtime.metrics_page import LOOPBACK, Endpoint


@dataclass(frozen=True)
class CoordinatorSettings:
    """The settings of a coordinator."""

    name: str
    """Name of the run, whose results go to `<folder>/<name>/`."""
    rounds: Rounds
    """Number of training rounds."""
    classes: Classes
    """Number of classes."""
    method: dict[str, Any]
    """Name of the method (`name`), or the path of a Python file that defines one (`file`), and the settings
    of this method.
    """
    federation: str = "protofleet"
    """Name of the federation, which is part of every topic."""
    task: str = TASK
    """Kind of the task; the only kind is `classification`."""
    class_names: tuple[str, ...] = ()
    """Names of the classes in the order of their labels; empty means the names that most devices send."""
    folder: str = "runs"
    """Folder of the results of all runs."""
    seed: Seed = 0
    """Seed of all random draws of the run, such as first weights and cohorts."""
    size: Pixels = USUAL_SIDE
    """Side of an image in pixels."""
    channels: Channels = USUAL_CHANNELS
    """Number of channels of an image, 3 for colour or 1 for shades of grey."""
    shape: Axes = ()
    """Shape of a sample, [F] for vectors, [C, T] for series or [C, H, W] for images; empty means that `size` and
    `channels` are used.
    """
    network: Network = field(default_factory=Network)
    """Network of the run."""
    mutual: Network | None = None
    """Network that all devices train in addition to their own, for methods such as FML and FedKD; if left
    out, it is the same network as `network`.
    """
    public: PublicSet | None = None
    """Samples that all devices have, for methods whose devices compare their outputs on these samples (FCCL+);
    if left out, the samples are generated images.
    """
    init: FirstWeights | None = None
    """First weights of every party's network; if left out, the first weights are drawn with the seed."""
    freeze: Freeze | None = None
    """Part of the network that is not trained, `backbone` (the layers that make the features); if left out,
    the whole network is trained.
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
    plugins: PlugIns = field(default_factory=PlugIns)
    """Python files that the coordinator may run, by their hashes."""
    policy: Policy = field(default_factory=Policy)
    """Rules for the rounds."""
    budget: BudgetSettings | None = None
    """Limits on what the connection of each device transfers, in bytes or in money; if left out, there are none."""
    keep: KeepSettings = field(default_factory=KeepSettings)
    """Answers that the coordinator keeps after their rounds; if left out, it keeps none."""
    select: DeviceSelection | None = None
    """Devices that take part in the run; if left out, all enrolled devices may take part."""
    limits: CoordinatorLimits = field(default_factory=CoordinatorLimits)
    """Limits on the claims of a device and on the disk space of updates."""
    broker: BrokerAddress = field(default_factory=BrokerAddress)
    """Address of the broker."""
    enrolled: str = ""
    """Folder with the enrolment that `protofleet enrol` has made, in place of `key`; empty means no enrolment."""
    key: str = "keys/coordinator.key"
    """Path of the coordinator's private key, if `enrolled` is empty."""
    devices: str = "keys"
    """Folder of the files `<device>.record` of the devices that may take part, or of the files `<device>.pub` if
    `enrolled` is empty.
    """
    security: str = "sealed"
    """Protection of messages, `sealed`, or `off` for signed messages that every broker can read."""
    threads: Threads = 0
    """Number of threads of torch; 0 means that torch chooses the number."""
    metrics_port: OptionalPort = 0
    """Port of the page of metrics and health; 0 means no page."""
    metrics_host: str = LOOPBACK
    """Address of the metrics page on this machine; `0.0.0.0` means all addresses."""
    page_port: OptionalPort = 0
    """Port of the live page of the run; 0 means no page."""
    page_host: str = LOOPBACK
    """Address of the live page on this machine; an address off the loopback needs `page_cert` and `page_key`."""
    page_cert: str = ""
    """Path of the certificate of the live page, with its chain; the page answers only to the names in it."""
    page_key: str = ""
    """Path of the private key of `page_cert`."""
    watchdog_seconds: Watchdog = 900.0
    """Seconds without a sign of life after which the process ends itself; 0 means no watchdog."""
    patience_seconds: PositiveSeconds = 60.0
    """Seconds that the broker has for its first reply."""
    broker_words: str = ""
    """Description of the broker in reports."""
    experiment: str = ""
    """Digest of the experiment that this run belongs to, for reports."""

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
        self.page_address()
        plan = self.plan()
        demand_buffered_fit(self.policy, plan)
        demand_robust_fit(self.policy, plan)
        demand_secagg_fit(self.policy, plan)
        demand_dp_policy(self.policy, plan)
        if self.secagg is not None and not self.enrolled:
            raise SettingsError(NO_RECORDS)
        if self.secagg is not None and not seals(self.security):
            raise SettingsError(
                'secagg is set and security is "off", so every broker could read what devices send in addition to '
                'the sum; set security = "sealed"'
            )
        if self.budget is not None:
            demand_one_round(self.budget, plan, self.policy.quorum)
        self._demand_enough_places()

    def _demand_enough_places(self) -> None:
        most = self.select.most if self.select else 0
        for key in ("quorum", "gather", "cohort", "buffer"):
            if 0 < most < (wanted := getattr(self.policy, key)):
                raise ValueError(
                    f"select.most is {most}, but policy.{key} is {wanted}; raise select.most to at least "
                    f"{wanted}, or lower policy.{key}"
                )

    def endpoint(self) -> Endpoint:
        return Endpoint(self.metrics_host, self.metrics_port)

    def page_address(self) -> PageAddress:
        return PageAddress(self.page_host, self.page_port, self.page_cert, self.page_key)

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
            keep=self.keep.answers,
            dp=self.dp,
            secagg=self.secagg,
        ).with_codec(self.codec)  # fmt: skip
        plan.demand_fit()
        return plan


def split_method(table: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of the method, and its settings without the keys `name` and `file`."""
    name = table.get("name", Path(file_of_method(table)).stem or None)
    if not isinstance(name, str):
        raise SettingsError('method.name is missing; add a name under [method], for example name = "fedlsa"')
    return name, {key: value for key, value in without_unused(table, name).items() if key not in IDENTITY}


def file_of_method(table: dict[str, Any]) -> str:
    """Return the path of the method's file; "" if the method is built in or belongs to a package."""
    file = table.get("file", "")
    if not isinstance(file, str):
        raise SettingsError(f"method.file is {file!r}, but must be the path of a Python file")
    return file
