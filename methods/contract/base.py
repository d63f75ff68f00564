"""The parts of a federated method: a server half, a client half, and their settings.

Both halves are in one file, but they share no memory. They exchange only bytes, also in a simulation.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from protofleet.methods.contract.averages import Averaged, demand_averaged
from protofleet.methods.contract.cost import Cost, Sizes
from protofleet.methods.contract.private_sums import SampleSums, SumNoise
from protofleet.methods.contract.public import PublicSet
from protofleet.methods.contract.wants import TensorSpec, problem_with
from protofleet.methods.nets.base import Encoder, Net
from protofleet.protocol.wire.kinds import UNDECLARED, Kinds, declared_kinds
from protofleet.protocol.wire.reasons import Problem

Payload: TypeAlias = Mapping[str, Tensor]


class Samples(Protocol):
    """The labelled data of one device: x [N, ...], y [N] with classes 0..C-1.

    For grey images, the channels of x may share memory. So never write into x. Use `reshape` instead of `view`,
    because `view` may fail on x.
    """

    @property
    def x(self) -> Tensor:
        """Return the samples [N, ...]."""
        ...

    @property
    def y(self) -> Tensor:
        """Return the classes [N] of the samples, from 0 to C-1."""
        ...


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of one device, as the server half gets it.

    If `payload` is on the disk, each array is read only when it is used.
    """

    device: str
    examples: int
    payload: Payload
    # Factor of the reply's share in a mean. It is below 1 for a late update of a buffered round (policy.mode).
    weight: float = 1.0
    # Class -> number of devices that have sent it, if the reply stands for the mean of several devices.
    devices_of_class: Mapping[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A device of the cohort, as its hello message describes it."""

    device: str
    examples: int
    counts: tuple[
        int, ...
    ] = ()  # Number of samples of each class, for methods whose field `needs_counts` is true.
    domain: str = ""  # Domain of its data, as reports show it; "" stands for the device's name.


@dataclass(frozen=True, slots=True)
class Ask:
    """The next task of every device of the cohort, and the arrays that each device must return."""

    phase: str
    payload: Payload = field(default_factory=dict)
    wants: Mapping[str, TensorSpec] = field(default_factory=dict)

    def problem_with(
        self, payload: Payload, examples: int | None = None, norm: float = math.inf
    ) -> Problem | None:
        """Return why a reply with these arrays cannot be used, or None.

        `examples` is the number of samples of the device, and `norm` the largest norm that an array may have.
        """
        return problem_with(self.wants, payload, examples, norm)


Round: TypeAlias = Generator[Ask, Sequence[Reply], None]


def seeded(*parts: object) -> torch.Generator:
    """Return a random generator for one purpose.

    The parts together are the name of the purpose. Every random draw has such a name, so a replay of the run draws
    the same numbers.
    """
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def unlimited(replies: Sequence[Reply], wants: Mapping[str, TensorSpec]) -> Sequence[Reply]:
    """Return the replies as they are, in a run that does not limit the samples that devices claim."""
    return replies


class ServerHalf(ABC):
    """The part of a method that runs on the coordinator and owns the global state.

    `round` computes one round of the paper's algorithm. At each `yield`, data is sent over the network.
    """

    # Number of rounds of the run, as in its plan. 0 means that the number is unknown, so each round may be the last.
    # An operator may change the number later, and then this one stays as it is (`Method.fixed_rounds`).
    rounds: int = 0
    number: int = 0  # Number of the current round, counted from 1.
    cohort: Sequence[Member] = ()
    # N: number of devices that were enrolled when the run began. Devices without a task in this round are included.
    # N never changes.
    fleet: int = 1
    kinds: Kinds = UNDECLARED  # Kinds of the arrays that this half may send, as METHOD declares them.
    # Description of the run's public set, for methods whose field `public` is true. The server half does not get the
    # samples.
    public: PublicSet = PublicSet()
    # Noise on the sums of each reply under `dp.unit = "sample"`, or None.
    noise: SumNoise | None = None
    # True if the replies of all devices are replaced by one reply with their sum or mean ([secagg]).
    summed: bool = False
    # True if the half keeps the answers of devices in its state, so that each device is asked once. Then it defines
    # `answered` and `forget`, and calls `capped` with all kept answers, because their median does not depend on the
    # rounds in which they came. The coordinator limits the samples of all other halves' replies itself.
    keeps_answers: bool = False

    def __init__(self, model: Net, hyper: Any, seed: int) -> None:
        self.model, self.hyper, self.seed = model, hyper, seed
        # Function that limits the samples which the replies to a task with these `wants` claim (policy.weight_cap).
        self.capped: Callable[[Sequence[Reply], Mapping[str, TensorSpec]], Sequence[Reply]] = unlimited

    def begin(self, number: int, cohort: Sequence[Member]) -> None:
        """Begin round `number` with the devices in `cohort`; the first round has the number 1."""
        self.number, self.cohort = number, cohort

    def generator(self, purpose: str) -> torch.Generator:
        """Return a random generator for one purpose in this round; a replay of the run draws the same numbers."""
        return seeded(self.seed, self.number, "server", purpose)

    @abstractmethod
    def payload(self) -> Payload:
        """Return the arrays that a device needs in order to predict.

        The arrays are sent in training and in the last evaluation.
        """

    @abstractmethod
    def round(self) -> Round:
        """Conduct a round: yield an `Ask` for each task. Each `yield` returns the cohort's replies to that task."""

    @abstractmethod
    def state(self) -> Payload:
        """Return all arrays that the coordinator needs after a crash between two rounds."""

    @abstractmethod
    def restore(self, state: Payload) -> None:
        """Restore the state that the method `state` of the same half has returned."""

    def lacking(self) -> str:
        """Return why the state cannot predict, or "" if it can.

        If there is a reason at the last evaluation, the coordinator ends the run with it.
        """
        return ""

    def answered(self) -> Collection[str]:
        """Return the devices whose answers this half keeps in its state.

        Later rounds do not ask these devices. A later round may end without any reply.
        """
        return ()

    def unused(self) -> Collection[str]:
        """Return the devices whose answers are kept but hold nothing that this half can use.

        The record of the round and the report name these devices.
        """
        return ()

    def forget(self, devices: Collection[str]) -> None:  # noqa: B027 - most methods keep no answers
        """Forget devices whose answers are kept, because their enrolment has ended.

        Then the state has the bits of a run in which these devices have never answered.
        """

    def monitor(self) -> Mapping[str, float]:
        """Return measured numbers for the record of the round, such as the margins between anchors."""
        return {}


class ClientHalf(ABC):
    """The part of a method that runs on a device and owns the model and the data of that device.

    The client half sends and receives no messages itself, and does not know the other devices.
    """

    rounds: int = 0  # Number of rounds of the run, as in the server half.
    number: int = 0
    kinds: Kinds = UNDECLARED  # Kinds of the arrays, as in the server half.
    # Validation samples of the device, or None. A method reads them only if it uses validation results in training.
    validation: Samples | None = None
    public: Sequence[Tensor] = ()  # Batches of the public set, for methods whose field `public` is true.
    domain: str = ""  # Domain that the device states; "" stands for the device's name.
    # If set, the half returns the array SUMS with these sums. The device adds noise, and makes the update from them.
    sums: SampleSums | None = None
    # True if the half uses its samples in another way than as the input of the network `model`, for example if it
    # changes pictures or trains another network. Otherwise a device replaces the samples by their features if the
    # backbone of `model` is frozen.
    uses_samples: bool = False

    def __init__(
        self, model: Net, data: Samples, hyper: Any, seed: int, device: str, mutual: Net | None = None
    ) -> None:
        """Keep the model, the data and the settings of the device.

        `mutual` is given only to methods that train a mutual network. It is the network that all devices
        share, in its state at the start of the run.
        """
        self.model, self.data, self.hyper = model, data, hyper
        self.seed, self.device = seed, device

    def begin(self, number: int) -> None:
        """Begin a round, counted from 1."""
        self.number = number

    def generator(self, purpose: str) -> torch.Generator:
        """Return a random generator for one purpose in this round; a replay of the run draws the same numbers."""
        return seeded(self.seed, self.number, self.device, purpose)

    @abstractmethod
    def receive(self, payload: Payload) -> None:
        """Store the arrays of the server half, so that `predict` uses these arrays afterwards.

        The device calls this before every `run`.
        """

    @abstractmethod
    def run(self, ask: Ask) -> Payload:
        """Do the work of the phase, and return the arrays that the server half has specified in `wants`."""

    def networks(self) -> Sequence[nn.Module]:
        """Return all networks that this half holds.

        The device uses them to judge whether its memory is large enough.
        """
        return [self.model]

    def rule(self) -> nn.Module:
        """Return the module that now computes class scores [B, C] from embeddings [B, D]."""
        return self.model.head

    def other_rules(self) -> Mapping[str, nn.Module]:
        """Return further rules that are measured in addition to `rule`, by name: {"classifier": ...}."""
        return {}

    def predict(self, x: Tensor) -> Tensor:
        """Return the class scores [B, C]."""
        return self.scores(x, self.rule())

    def encoder(self, rule: nn.Module) -> Encoder:
        """Return the encoder that turns a sample into the input of this rule."""
        return Encoder(self.model.features, self.model.projector)

    def scores(self, x: Tensor, rule: nn.Module) -> Tensor:
        """Return the class scores [B, C] by this rule."""
        found: Tensor = rule(self.encoder(rule)(x))
        return found

    def embedding(self, x: Tensor) -> Tensor:
        """Return the embeddings [B, D], in the space of the method's prototypes or anchors.

        The feature pictures show this space.
        """
        return self.model.embed(x)

    def after_last_round(self) -> None:  # noqa: B027 - most methods do nothing
        """Change the personal model before the last evaluation, if the paper changes it after the last round."""

    @abstractmethod
    def state(self) -> Payload:
        """Return all arrays that the device needs after a reboot or after a round in which it takes no part."""

    @abstractmethod
    def restore(self, state: Payload) -> None:
        """Restore the state that the method `state` of the same half has returned."""


# What all devices must have in common: "network": the same network; "head": the same embedding size and the same kind
# of head; "embedding": the same embedding size, with any head; "nothing": each device may have any network.
Alike: TypeAlias = Literal["network", "head", "embedding", "nothing"]


@dataclass(frozen=True)
class Method:
    """The description of a method: its two halves, its settings, and what a run must know about the method."""

    paper: str
    Hyper: type
    Server: type[ServerHalf]
    Client: type[ClientHalf]
    reports: str = "global"  # Model whose accuracy the paper reports: "global" or "personal".
    private: str = ""  # Description of the data that a device keeps from round to round and never sends.
    needs_counts: bool = False  # True if devices state their number of samples per class when they join.
    # None if the method reads no domains. Otherwise the domains that devices may state; an empty tuple means any. A
    # device that states the domain of other devices is then refused, and not only shown separately in reports.
    domains: tuple[str, ...] | None = None
    alike: Alike = "network"  # Property that all devices of a run must have in common.
    # True if the server half has a mutual network, which each device trains in addition to its own network.
    mutual: bool = False
    # True if the method uses a public set: samples that all devices have and on which outputs are compared.
    public: bool = False
    # True if at least one device must have validation samples. Without any validation samples, the run would be a
    # run of another method.
    validates: bool = False
    # True if a run of the method may have buffered rounds (policy.mode). Then each round has one phase that requests
    # the same arrays, and the server step is a mean of the replies or a table of class means. Each share in this mean
    # is multiplied by `Reply.weight`.
    buffered: bool = False
    # Reason why an operator cannot change the number of rounds (`protofleet extend`), or "". A method whose settings
    # depend on the number gives a reason, because `rounds` of its halves stays the number in the plan.
    fixed_rounds: str = ""
    other_rules: tuple[str, ...] = ()  # All names that `other_rules` of the client half can return.
    # Kinds of the arrays that the halves send. The kind of an array is the first part of its name, and bytes are
    # counted by kind. None means that no kinds are declared; then all arrays are of the kind "other".
    arrays: tuple[str, ...] | None = None
    # Phases whose replies the server half uses only through a mean, with the arrays of this mean. Then one reply with
    # the mean leaves the same state as all replies. Rules against lying devices, secure aggregation and differential
    # privacy are possible only in these phases.
    averaged: Mapping[str, Averaged] = field(default_factory=dict, hash=False)
    # Phases in which the server half needs the updates of single devices. A method with such a phase cannot be used
    # with masked sums ([secagg]), although another phase is averaged.
    individual_phases: tuple[str, ...] = ()
    # Function that gets the settings, the run's network and `dp.clip`. It returns the sums that a device releases
    # with noise under `dp.unit = "sample"`. A method whose features depend on the training samples must not have it.
    sums: Callable[[Any, Net, float], SampleSums] | None = None
    sums_with: str = ""  # Setting with which the method has `sums`, if it has none as it is.
    cost: Callable[[Sizes], Cost] | None = None  # Cost of one participant in one round, in closed form.
    # Function that gets the settings. It returns a copy of this method, in which the fields above have the values for
    # these settings.
    variant: Callable[[Any], Method] | None = None
    # Function that gets the settings and the number of classes. It returns why the settings do not fit this number
    # of classes, or "" if they fit.
    misfit: Callable[[Any, int], str] | None = None
    # Function that gets the settings and the run's network, on torch's meta device. It returns why the settings do
    # not fit the network, or "" if they fit.
    misfit_network: Callable[[Any, Net], str] | None = None
    # Function that gets the settings, the network and N, the number of devices. It returns why the coordinator cannot
    # serve this number of devices, or "" if it can.
    misfit_fleet: Callable[[Any, Net, int], str] | None = None
    # Settings that a user should lower if training diverges, in the order in which the advice lists them. Names that
    # are not fields of Hyper are ignored.
    calmer: tuple[str, ...] = ("lr",)

    VIEWS: ClassVar[tuple[str, ...]] = ("global", "personal")

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError if an argument has a wrong type or value.

        The author then sees the error at the definition of the method, and not in the middle of a run.
        """
        if not (isinstance(self.Hyper, type) and is_dataclass(self.Hyper)):
            raise TypeError(
                f"Method(Hyper=...) is {self.Hyper!r}, but it must be a dataclass, such as LocalHyper"
            )
        halves: Mapping[str, tuple[type, type]] = {
            "Server": (self.Server, ServerHalf), "Client": (self.Client, ClientHalf)
        }  # fmt: skip
        for name, (half, base) in halves.items():
            if not (isinstance(half, type) and issubclass(half, base)):
                raise TypeError(
                    f"Method({name}=...) is {half!r}, but it must be a subclass of {base.__name__}"
                )
            if lacking := ", ".join(f"{call}()" for call in sorted(getattr(half, "__abstractmethods__", ()))):
                raise TypeError(f"{half.__name__} lacks {lacking}, which each {base.__name__} must define")
        if self.reports not in self.VIEWS:
            raise ValueError(
                f"Method(reports={self.reports!r}): reports must be one of {', '.join(self.VIEWS)}"
            )
        for name in ("cost", "sums", "variant", "misfit", "misfit_network", "misfit_fleet"):
            if not ((call := getattr(self, name)) is None or callable(call)):
                raise TypeError(f"Method({name}={call!r}): this argument must be a function")
        if not (self.arrays is None or isinstance(self.arrays, tuple)):
            raise TypeError(
                f'Method(arrays={self.arrays!r}): arrays must be a tuple of names such as ("weights", "labels")'
            )
        try:
            declared_kinds(self.arrays or ())
        except ValueError as error:
            raise ValueError(f"Method(arrays=...): {error}") from None
        demand_averaged(self.averaged, self.arrays)

    @property
    def kinds(self) -> Kinds:
        """Return the kinds of arrays. The bytes of each kind are counted separately."""
        return UNDECLARED if self.arrays is None else declared_kinds(self.arrays)

    @property
    def sums_counts(self) -> bool:
        """Return whether the counts that devices state are used only as weights of a mean of tables.

        Then a masked sum can contain them, and no device states them.
        """
        return any(one.table for one in self.averaged.values())

    @property
    def mixed_networks(self) -> bool:
        """Return whether the devices of a run may have different networks."""
        return self.alike != "network"

    @property
    def views(self) -> frozenset[str]:
        """Return the names of all results that the devices measure.

        A result of the client half's `rule` is named after the model, for example "personal". A result of another
        rule has the name of the rule appended, for example "personal-classifier".
        """
        models = self.VIEWS if self.reports == "global" else ("personal",)
        others = [f"-{name}" for name in self.other_rules]
        return frozenset(model + other for model in models for other in ("", *others))

    @property
    def way_out_of_divergence(self) -> str:
        """Return advice for the user if training diverges, such as "lower method.lr".

        The text is "" if no setting is known to help.
        """
        own = {one.name for one in fields(self.Hyper)}
        known = [f"method.{name}" for name in self.calmer if name in own]
        return f"lower {' or '.join(known)}" if known else ""

    def under(self, hyper: Any) -> Method:
        """Return the method for a run with these settings."""
        return self.variant(hyper) if self.variant else self
