"""The plan of a run, which the coordinator sends and every device accepts.

A plan has only plain values with fixed types. The hash of its bytes identifies it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from protofleet.methods.contract.averages import CLASS_ROWS, Averaged
from protofleet.methods.contract.base import ClientHalf, Method, Samples, ServerHalf, seeded
from protofleet.methods.contract.catalog import load, names
from protofleet.methods.contract.dp_fit import demand_dp_fit, mechanism_of
from protofleet.methods.contract.first_weights import FirstWeights, Freeze
from protofleet.methods.contract.kept import KeptRound, problem_with
from protofleet.methods.contract.own_metrics import Metric, metrics_of
from protofleet.methods.contract.private_sums import SUMS, SUMS_PHASE, SampleSums, SumNoise
from protofleet.methods.contract.public import (
    DRAWN,
    HASHED,
    PublicSamples,
    PublicSet,
    batches_of,
    hashed,
    sha256_of,
)
from protofleet.methods.contract.shared_noise import demand_shared_noise, largest_share, shared_noise
from protofleet.methods.nets import catalog as nets
from protofleet.methods.nets.base import Net
from protofleet.methods.plugins.allowed import PLANNED, PlugIns, checked_hashes
from protofleet.methods.plugins.errors import PlugInError
from protofleet.methods.plugins.packages import installed
from protofleet.protocol.settings.bounds import (
    Block,
    Cells,
    Channels,
    Classes,
    Pixels,
    Rounds,
    Seed,
    Width,
)
from protofleet.protocol.settings.codec import CodecSettings
from protofleet.protocol.settings.dp import DpSettings
from protofleet.protocol.settings.input_shape import USUAL_CHANNELS, USUAL_SIDE, Axes, InputShape, shape_of
from protofleet.protocol.settings.named_codecs import CodecName, short_table, stages_of
from protofleet.protocol.settings.reader import SettingsError, decode, encode
from protofleet.protocol.settings.secagg import SecaggSettings
from protofleet.protocol.settings.suggest import there_are
from protofleet.protocol.wire.kinds import Kinds, declared_kinds

DEFAULT_NETWORK: Final = "cnn23"
MOST_LISTED: Final = 12  # Most domains that an error message lists.

# A function from the shape of a sample to the samples of the public set in this shape.
PublicImages: TypeAlias = Callable[[InputShape], PublicSamples]


@dataclass(frozen=True)
class Network:
    """The choice of a network."""

    name: str = DEFAULT_NETWORK
    """Name of the network (`protofleet networks` lists them)."""
    feature_size: Width | None = None
    """Number of features; if left out, the network's own number is used, and a projector keeps the embedding's
    size.
    """
    embedding_size: Width | None = None
    """Output width of a linear projector behind the features, such as varphi of FedLSA; if left out, only `cnn1d`,
    `cnn23` and `mlp` have a projector, of their own width.
    """
    head: str = "linear"
    """Form of the head, `linear` (the last layer of the network) or `mlp` (the deeper classifier of FedPall)."""
    layer: Block | None = None
    """Last block of the network `efficientnet_lite0` that is used, from 0 to 15, or 16 for its last convolution; if
    left out, it is block 10.
    """
    pool: Cells | None = None
    """Number of rows and of columns of cells to which the feature map is averaged; if left out, it is 3."""
    image_size: Pixels | None = None
    """Side in pixels to which the network enlarges its images; if left out, images are used as they are."""
    file: str = ""
    """Path of a Python file that defines the network; without `name`, the network has the name of the file."""
    plugin: str = ""
    """SHA-256 of a plug-in that this party has loaded; the program sets it, so a file leaves it empty."""

    def __post_init__(self) -> None:
        if self.file and self.name == DEFAULT_NETWORK:
            object.__setattr__(self, "name", Path(self.file).stem)
        if self.head not in nets.HEADS:
            raise ValueError(f"head is {self.head!r}, it must be one of {', '.join(nets.HEADS)}")
        if (
            not (self.file or self.plugin)
            and self.name not in nets.names()
            and self.name not in installed("network")
        ):
            raise ValueError(f"no network {self.name!r}; {there_are(self.name, nets.names())}")
        if problem := nets.foreign_setting(self.name, self.own):
            raise ValueError(problem)

    @property
    def own(self) -> dict[str, int]:
        """Return the settings that only some networks have, if they are given."""
        every = {"layer": self.layer, "pool": self.pool, "image_size": self.image_size}
        return {key: value for key, value in every.items() if value is not None}

    def taken(self, plugins: PlugIns) -> Network:
        """Return the network in the form for a plan, which names a plug-in by its hash and never by a path."""
        ours = self.name in nets.names()
        return replace(self, file="", plugin=plugins.hash_of("network", self.name, self.file, ours))


@dataclass(frozen=True)
class Plan:
    method: str
    classes: Classes
    rounds: Rounds
    seed: Seed = 0
    size: Pixels = USUAL_SIDE  # Side of an image in pixels; images are size x size.
    network: Network = Network()
    hyper: dict[str, Any] = field(default_factory=dict)
    channels: Channels = USUAL_CHANNELS  # Number of channels of an image: 3, or 1 for shades of grey.
    # Network that all devices train in addition to their own, for methods with `mutual`; None means `network`.
    mutual: Network | None = None
    # Public set on which the devices compare their outputs, for methods with `public`; None means generated images.
    public: PublicSet | None = None
    init: FirstWeights | None = (
        None  # First weights of every party's network; None stands for random weights.
    )
    freeze: Freeze | None = None  # Part of the network that is not trained.
    # Kind of plug-in -> SHA-256 of the plug-in. Networks are not included: the hash is in `Network`.
    plugins: dict[str, str] = field(default_factory=dict)
    # Shape of a sample, if size and channels cannot state it: [F], [C, T] or [C, H, W].
    shape: Axes = ()
    # Coding that rounds arrays. If None, nothing is rounded, and the plan has the form of earlier versions.
    codec: CodecSettings | None = None
    # Rounds whose answers the coordinator keeps. If it is empty, the plan has the form of earlier versions.
    keep: tuple[KeptRound, ...] = ()
    # Differential privacy of the updates. If None, no noise is added, and the plan has the form of earlier versions.
    dp: DpSettings | None = None
    # Settings of masked sums; None means that each update is sent as it is, and the plan has the form of earlier
    # versions.
    secagg: SecaggSettings | None = None
    # Coding that loses nothing, in a run without `codec`. It is no part of the plan's bytes and hash, because devices
    # that cannot read it take part too.
    lossless: CodecSettings | None = field(default=None, init=False, compare=False)

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise ValueError(f"classes is {self.classes}, it must be at least 2")
        if problem := problem_with(self.keep, self.rounds):
            raise SettingsError(problem)
        shape = shape_of(self.shape, self.size, self.channels)
        for key, network in (("network", self.network), ("mutual", self.mutual)):
            if (
                network
                and not network.plugin
                and (problem := nets.misfit(network.name, shape, f"{key}.name", own=network.own))
            ):
                raise ValueError(problem)
        try:
            decode(self.load().Hyper, self.hyper, "method")
        except LookupError as error:
            raise SettingsError(str(error).strip('"')) from None
        if self.mutual is not None and not self.load().mutual:
            raise SettingsError(
                f"{self.method} trains no mutual network, but the run has `mutual` {self.mutual.name}; leave "
                f"`mutual` out, or take one of the methods {', '.join(name for name in names() if load(name).mutual)}"
            )
        if self.public is not None and not self.load().public:
            raise SettingsError(
                f"{self.method} uses no public set, but the run has {self.public.title}; leave `public` out, or "
                f"take one of the methods {', '.join(name for name in names() if load(name).public)}"
            )

        if self.codec is not None:
            self._check_codec(self.codec)
        if self.dp is not None:
            summed = self.secagg is not None
            demand_dp_fit(self.dp, self.method, self.variant, self.rounds, self.codec is not None, summed)
            if self.dp.colluders and self.secagg is None:
                raise SettingsError(
                    f"dp.colluders is {self.dp.colluders}, but without secagg each device adds the whole noise; "
                    "leave dp.colluders out"
                )
        if self.secagg is not None:
            self._check_secagg(self.secagg)

    def _check_secagg(self, settings: SecaggSettings) -> None:
        """Raise SettingsError if a masked sum cannot replace the updates of this run."""
        if self.dp is not None:
            demand_shared_noise(self.dp, settings, self.sums)
        if self.codec is not None:
            raise SettingsError(
                "secagg and codec are both set, but a sum of masked numbers cannot be coded by each device; leave "
                "codec out, and use secagg.bits = 24 or 16 for fewer bytes"
            )
        if self.keep:
            raise SettingsError(
                "secagg and keep.answers are both set, but the masked answer of one device shows nothing that could "
                "be measured; leave keep.answers out"
            )
        if problem := secagg_misfit(self.variant, self.method, self.dp):
            raise SettingsError(problem)

    def _check_codec(self, codec: CodecSettings) -> None:
        if self.variant.arrays is not None:
            codec.check_kinds(self.variant.kinds.declared)

    def with_codec(self, codec: CodecSettings | CodecName | None) -> Plan:
        """Return this plan with a codec; the name of a codec stands for stages of all kinds of the method.

        None stands for the codec of a run that sets none: it loses nothing. This plan must have no codec.
        """
        if codec is None or isinstance(codec, str):
            codec = stages_of(codec, self.variant.kinds.declared)
        if codec is None or (self.secagg is not None and not codec.rounds):
            return self  # Masked numbers are random, so no coding makes them smaller.
        return replace(self, codec=codec) if codec.rounds else self.with_lossless(codec)

    def with_lossless(self, codec: CodecSettings | None) -> Plan:
        """Return this plan with a codec that loses nothing; raise SettingsError for any other codec."""
        if codec is None:
            return self
        self._check_codec(codec)
        if codec.rounds:
            raise SettingsError("a codec that rounds must be in the plan, but it was sent beside the plan")
        if self.codec is not None:
            raise SettingsError("the plan has a codec, and another codec was sent beside the plan")
        changed = copy(self)  # `replace` would check the whole plan again
        object.__setattr__(changed, "lossless", codec)  # the plan is frozen
        return changed

    @property
    def states_counts(self) -> bool:
        """Return whether devices state their number of samples of each class when they join.

        In a run of masked sums, these numbers are only in the sum. With noise, each device counts once.
        """
        return self.variant.needs_counts and self.secagg is None and self.dp is None

    @property
    def summed_phases(self) -> Mapping[str, Averaged]:
        """Return the phases whose updates the coordinator learns only as a sum.

        Under `dp` each device counts once, because a weight would change how far a device can move the sum. Rows of
        classes are one array with a row for every class, because a count of the holders would have no noise. Sums
        over samples are one array too.
        """
        if self.secagg is None:
            return {}
        if self.sums is not None:
            return {SUMS_PHASE: Averaged((SUMS,), by="devices")}
        averaged = self.variant.averaged
        if self.dp is None:
            return averaged
        return {
            phase: Averaged(CLASS_ROWS[:1], by="devices") if one.rows else replace(one, by="devices")
            for phase, one in averaged.items()
        }

    @property
    def kinds(self) -> Kinds:
        """Return the kinds under which the bytes of the run are counted."""
        kinds = self.variant.kinds
        if self.secagg is None or self.sums is None:
            return kinds
        return declared_kinds((*kinds.declared, SUMS))

    @property
    def coding(self) -> CodecSettings | None:
        """Return the codec of the run, whether it rounds or not."""
        return self.codec or self.lossless

    @property
    def input_shape(self) -> InputShape:
        """Return the shape of one sample at the input of a network."""
        return shape_of(self.shape, self.size, self.channels)

    def load(self) -> Method:
        return load(self.method, self.plugins.get("method", ""))

    @property
    def variant(self) -> Method:
        """Return the method for the settings of this run."""
        return self.load().under(self.settings())

    @property
    def method_words(self) -> str:
        """Return the name of the method, and that its updates are summed or kept, if they are."""
        sums = ["masked sums"] if self.secagg is not None else []
        kept = [f"answers kept: {' and '.join(map(str, self.keep))}"] if self.keep else []
        return ", ".join([self.method, *sums, *kept])

    @property
    def network_words(self) -> str:
        """Return a description of the networks of the run, their first weights and their frozen parts."""
        own = [self.network.name]
        own += [f"first weights {self.init.name}"] if self.init else []
        own += [f"{self.freeze} frozen"] if self.freeze else []
        mutual = self.mutual or self.network
        own += [f"mutual {mutual.name}"] if self.load().mutual else []
        return ", ".join(own)

    @cached_property
    def sums(self) -> SampleSums | None:
        """Return the sums that a device releases with noise, if the run protects single samples."""
        of_method = self.variant.sums
        if self.dp is None or self.dp.unit != "sample" or of_method is None:
            return None
        model = self._model_without_memory()
        return None if model is None else of_method(self.settings(), model, self.dp.clip)

    def metrics(self) -> Mapping[str, Metric]:
        """Return the user's own metrics, which are measured in addition to accuracy and loss."""
        return metrics_of(self.plugins.get("metrics", ""))

    def demand_fit(self) -> None:
        """Raise SettingsError if the method cannot learn with these settings, this number of classes or this network.

        This function is called only when a run starts. So a model can still be opened if an earlier version trained
        the model with such settings.
        """
        method, settings = self.load(), self.settings()
        problem, of_network = (
            method.misfit(settings, self.classes) if method.misfit else "",
            method.misfit_network,
        )
        if not problem and of_network and (model := self._model_without_memory()) is not None:
            problem = of_network(settings, model)
        if problem:
            raise SettingsError(f"{self.method}: {problem}")

    def _model_without_memory(self) -> Net | None:
        """Return the network on torch's meta device, where tensors take no memory, or None if it cannot be made.

        A device that cannot make the network refuses the plan later, with its own error (edge_client/limits.py).
        """
        try:
            with torch.device("meta"):
                return self.model()
        except SettingsError:
            raise
        except (RuntimeError, ValueError, TypeError, OverflowError):
            return None

    def demand_fleet_fit(self, devices: int) -> None:
        """Raise SettingsError if the coordinator cannot serve this number of devices with these settings."""
        if self.dp is not None and self.dp.unit == "device" and self.dp.delta * devices > 1:
            raise SettingsError(
                f"dp.delta is {self.dp.delta:g}, but the run has {devices} devices, so it must be at most "
                f"{1 / devices:.2g}; lower dp.delta"
            )
        method = self.load()
        if method.misfit_fleet is None:
            return
        with torch.device("meta"):  # Only shapes are needed.
            model = self.mutual_model() if method.mutual else self.model()
        if problem := method.misfit_fleet(self.settings(), model, devices):
            raise SettingsError(f"{self.method}: {problem}")

    def domain_misfit(self, domain: str) -> str:
        """Return why a device of this domain cannot take part, or "" if the method accepts the domain."""
        allowed = self.variant.domains
        if not allowed or domain in allowed:
            return ""
        return f"its domain is {domain!r}, and in method.domains {there_are(domain, allowed, MOST_LISTED)}"

    def settings(self) -> Any:
        return decode(self.load().Hyper, self.hyper, "method")

    def model(self, network: Network | None = None) -> Net:
        """Return a network whose first weights are the same on every machine.

        `network` is given for a device that does not use the network of the run.
        """
        built = self._built(network or self.network, self.seed)
        if self.init is not None and network in (None, self.network) and not torch.empty(0).is_meta:
            self.init.load_into(built)
        if self.freeze == "backbone":
            # A batch of vectors has two axes, as a batch of features has.
            built.freeze_backbone(takes_features=self.input_shape.rank > 1)
        return built

    def mutual_model(self) -> Net:
        """Return the mutual network; its first weights differ from those of the devices' own network.

        Two networks that begin with the same weights learn nothing from each other. No part of the mutual
        network is frozen.
        """
        return self._built(self.mutual or self.network, seeded(self.seed, "mutual").initial_seed())

    def _built(self, chosen: Network, seed: int) -> Net:
        return nets.build(
            chosen.name, classes=self.classes, image=self.input_shape.axes,
            feature_size=chosen.feature_size, embedding_size=chosen.embedding_size, head=chosen.head, seed=seed,
            plugin=chosen.plugin, own=tuple(chosen.own.items()),
        )  # fmt: skip

    def import_libraries(self) -> None:
        """Import the libraries of the run's networks, which may take seconds.

        Raise ImportError if a library is not installed.
        """
        for network in (self.network, self.mutual):
            if network and not network.plugin:
                nets.import_library(network.name)

    def server_half(self) -> ServerHalf:
        method = self.load()
        model = self.mutual_model() if method.mutual else self.model()
        half = method.Server(model, self.settings(), self.seed)
        half.rounds, half.public = self.rounds, self.public or PublicSet()
        half.kinds, half.summed = self.variant.kinds, self.secagg is not None
        if self.dp is not None and (sums := self.sums) is not None:
            half.noise = SumNoise(self.dp.clip, self._deviation(self.dp, sums))
        return half

    def _deviation(self, dp: DpSettings, sums: SampleSums) -> float:
        """Return the largest deviation of the noise on each number of a reply."""
        if self.secagg is None:
            return mechanism_of(dp, sums.numbers, sums).deviation
        shared = shared_noise(dp, self.secagg, sums.numbers, self.secagg.least, sums).mechanism
        return shared.deviation * math.sqrt(largest_share(dp, self.secagg))

    def client_half(
        self, data: Samples, device: str, network: Network | None = None, place: torch.device | None = None,
        *, validation: Samples | None = None, public: PublicImages | None = None,
    ) -> ClientHalf:  # fmt: skip
        """Return the client half of a device.

        `public` is a function that returns the samples of the public set. For a set of generated
        images, `public` is not needed.
        """
        method, place = self.load(), place or torch.device("cpu")
        own = self.device_model(network).to(place), data, self.settings(), self.seed, device
        half = method.Client(*own, self.mutual_model().to(place)) if method.mutual else method.Client(*own)
        half.rounds, half.validation, half.kinds = self.rounds, validation, self.variant.kinds
        if (sums := self.sums) is not None:
            half.sums, half.kinds = sums, declared_kinds((*self.variant.kinds.declared, SUMS))
        if method.public:
            half.public = self._public_batches(public, place)
        return half

    def _public_batches(self, images: PublicImages | None, place: torch.device) -> list[Tensor]:
        chosen = self.public or PublicSet()
        if images is None and chosen.source == DRAWN:
            images = chosen.draw
        if images is None:
            raise SettingsError(f"the run's public set is {chosen.title}, but this device has no public set")
        # Without a hash, the check would accept different samples on each device.
        if chosen.source != DRAWN and not chosen.sha256:
            raise no_hash(chosen)
        if chosen.sha256:
            chosen.check(images(hashed(chosen.source, self.input_shape)))
        return batches_of(images(self.input_shape), chosen, place)

    def device_model(self, network: Network | None = None) -> Net:
        """Return the network of a device, or raise SettingsError if the method cannot use it in this run."""
        if network is None or network == self.network:
            return self.model()
        if not self.variant.mixed_networks:
            message = " with these settings" if self.load().mixed_networks else ""
            both = differences(network, self.network)
            raise SettingsError(
                f"{self.method}{message} needs the same network on every device: {both}; leave `network` out on "
                f"the device, or take one of the methods "
                f"{', '.join(name for name in methods_for_mixed_networks() if name != self.method)}"
            )
        own = self.model(network)
        return own if self.variant.alike == "nothing" else self._of_the_same_size(own, network)

    def _of_the_same_size(self, own: Net, network: Network) -> Net:
        common = self.model().embedding_size
        if own.embedding_size != common:
            raise SettingsError(
                f"the run's prototypes have {common} numbers, but this device's network {network.name} gives "
                f"{own.embedding_size}; set {own.size_setting} = {common} on the device and in the run"
            )
        if self.variant.alike == "head" and network.head != self.network.head:
            raise SettingsError(
                f"{self.method} shares the head: the run's head is {self.network.head}, but the head of this "
                f"device's network {network.name} is {network.head}; set network.head = {self.network.head!r} on the "
                "device"
            )
        return own

    def encode(self) -> bytes:
        """Return the plan as JSON bytes.

        A plan without plug-ins, codec, kept answers and colluders has the same bytes as in earlier versions. The
        shape is left out if size and channels state it, because every version knows size and channels.
        """
        table = {k: value for k, value in encode(self).items() if k not in ("size", "channels", "shape")}
        hashes = dict(table.pop("plugins"))
        if not self.keep:
            del table["keep"]
        for key in ("network", "mutual"):
            if key in table:
                hashes[key] = table[key].pop("plugin")
                del table[key]["file"]
        if self.codec is not None:
            table["codec"] = short_table(self.codec)
        if self.dp is not None and not self.dp.colluders:
            del table["dp"]["colluders"]
        if hashes := {kind: number for kind, number in hashes.items() if number}:
            table["plugins"] = hashes
        return json.dumps({**table, **self.input_shape.settings()}, sort_keys=True).encode()

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.encode()).digest()


def secagg_misfit(method: Method, name: str, dp: DpSettings | None = None) -> str:
    """Return why a masked sum cannot replace the updates of a method, or "" if it can."""
    if method.sums is not None and dp is not None and dp.unit == "sample":
        return ""
    known = ", ".join(one for one in names() if fits_secagg(load(one)))
    if method.sums is None and method.sums_with:
        return (
            f"secagg is set, but it would protect nothing: {name} uses the updates of single devices; set "
            f'{method.sums_with} and add [dp] with unit = "sample", leave secagg out, or take one of {known}'
        )
    if method.needs_counts and not method.sums_counts:
        return (
            f"secagg is set, but {name} needs the number of samples of each class from each device, which would be "
            f"known in addition to the sum; leave secagg out, or take one of {known}"
        )
    if method.sums is not None:
        return (
            f"secagg is set, but {name} sends sums over samples: without noise, a sum of few devices still shows "
            'whether a sample is in it; add [dp] with unit = "sample", or leave secagg out'
        )
    if not method.averaged:
        return (
            f"secagg is set, but it would protect nothing: {name} uses the updates of single devices, not only "
            f"their mean; leave secagg out, or take one of {known}"
        )
    if len(method.averaged) > 1:
        return (
            f"secagg is set, but {name} has {len(method.averaged)} averaged phases in a round "
            f"({', '.join(method.averaged)}), and a device helps to unmask only one sum of a round; leave secagg "
            f"out, or take one of {known}"
        )
    if method.individual_phases:
        phases = ", ".join(method.individual_phases)
        return (
            f"secagg is set, but the phase {phases} of {name} uses the updates of single devices, so a sum in "
            f"{', '.join(method.averaged)} would protect nothing; leave secagg out, or take one of {known}"
        )
    return ""


def fits_secagg(method: Method) -> bool:
    """Return whether the coordinator may learn the updates of all phases of a method only as a sum."""
    counts_apart = method.needs_counts and not method.sums_counts
    return len(method.averaged) == 1 and not (counts_apart or method.individual_phases)


def agreed_public_set(method: str, chosen: PublicSet | None, plugin: str = "") -> PublicSet | None:
    """Return the public set for the plan of a run, with a hash.

    With the hash, each device checks that it has the same samples as the other devices.
    """
    # If the method is unknown or uses no public set, the plan raises the error later.
    if not (plugin or method in names()) or not load(method, plugin).public:
        return chosen
    chosen = chosen or PublicSet()
    if chosen.sha256:
        return chosen
    if chosen.source == DRAWN:
        return replace(chosen, sha256=sha256_of(chosen.draw(HASHED)))
    raise no_hash(chosen)


def no_hash(chosen: PublicSet) -> SettingsError:
    return SettingsError(
        f"public.sha256 is missing: the run's public set, {chosen.title}, comes from files on the devices; "
        f"`{command_for(chosen)}` prints the value"
    )


def command_for(chosen: PublicSet) -> str:
    """Return the command that prints the hash of this public set."""
    given = {"domain": chosen.domain, "samples": chosen.samples, "batch": chosen.batch, "seed": chosen.seed}
    usual = PublicSet()
    options = [f" --{key} {value}" for key, value in given.items() if value != getattr(usual, key)]
    return f"protofleet public-set {chosen.source}{''.join(options)}"


def differences(own: Network, of_run: Network) -> str:
    """Return each setting in which a device's network differs from the run's network, with both values."""
    pairs = {one.name: (getattr(own, one.name), getattr(of_run, one.name)) for one in fields(own)}
    return ", ".join(
        f"network.{name} is {shown(mine)} on this device and {shown(theirs)} in the run"
        for name, (mine, theirs) in pairs.items()
        if mine != theirs
    )


def shown(value: object) -> str:
    return "left out" if value in (None, "") else str(value)


def methods_for_mixed_networks() -> list[str]:
    """Return the methods whose devices may run different networks."""
    return [name for name in names() if load(name).mixed_networks]


def read_plan(text: bytes, plugins: PlugIns | None = None) -> Plan:
    """Read the plan of a message, or raise SettingsError if this party cannot take part in the run.

    `plugins` are the plug-ins that the owner of this party has allowed. A plug-in is loaded only if the plan has
    its hash.
    """
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"the plan is not JSON: {error}") from None
    if isinstance(table, dict):
        table = with_plugins(table, plugins or PlugIns())
    return decode(Plan, table, "plan")


def with_plugins(table: dict[str, Any], allowed: PlugIns) -> dict[str, Any]:
    """Load each plug-in that the plan names, and return the plan's table with the hashes of the plug-ins.

    Raise PlugInError if this party does not allow a plug-in or cannot load it. In a plan, only the table `plugins`
    may name plug-ins. The settings `file` and `plugin` of a network are local, and a plan must not contain them.
    """
    for kind in ("network", "mutual"):
        given = table.get(kind)
        for key in {"file", "plugin"} & given.keys() if isinstance(given, dict) else ():
            raise PlugInError(
                f"plan.{kind}.{key} is not a setting of a plan; a plan names plug-ins only in plan.plugins"
            )
    if "plugins" not in table:
        return table
    hashes = checked_hashes(table["plugins"])
    changed = {**table, "plugins": {k: n for k, n in hashes.items() if k not in ("network", "mutual")}}
    for kind, number in hashes.items():
        place = {"name": table.get("method")} if kind == "method" else table.get(kind, {"name": kind})
        if not isinstance(place, dict) or not isinstance(place.get("name", DEFAULT_NETWORK), str):
            raise PlugInError(f"plan.{kind} has no name, but plan.plugins has a hash for this part")
        allowed.take(PLANNED[kind], place.get("name", DEFAULT_NETWORK), number)
        if kind in ("network", "mutual"):
            changed[kind] = {**place, "plugin": number}
    return changed
