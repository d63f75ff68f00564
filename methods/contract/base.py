"""What a federated method is: a server half, a client half, and their settings.

The two halves share a file and no memory. They meet only as bytes, in simulation too.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from protofleet.methods.contract.cost import Cost, Sizes
from protofleet.methods.contract.public import PublicSet
from protofleet.methods.contract.wants import TensorSpec, problem_with
from protofleet.methods.nets.base import Encoder, Net
from protofleet.protocol.wire.kinds import UNDECLARED, Kinds, declared_kinds
from protofleet.protocol.wire.reasons import Problem

Payload: TypeAlias = Mapping[str, Tensor]


class Samples(Protocol):
    """Labelled data of one device: x [N, ...], y [N] with classes 0..C-1.

    The channels of grey images may lie in one memory: `reshape` x, as `view` refuses it, and write to none of it.
    """

    @property
    def x(self) -> Tensor: ...
    @property
    def y(self) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Reply:
    """One device's answer as the server half sees it. `payload` may be read from disk, array by array."""

    device: str
    examples: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class Member:
    """A device of the cohort, as its hello describes it."""

    device: str
    examples: int
    counts: tuple[int, ...] = ()  # per class; only for methods with `needs_counts`


@dataclass(frozen=True, slots=True)
class Ask:
    """What the server half wants every device of the cohort to do next, and what must come back."""

    phase: str
    payload: Payload = field(default_factory=dict)
    wants: Mapping[str, TensorSpec] = field(default_factory=dict)

    def problem_with(
        self, payload: Payload, examples: int | None = None, norm: float = math.inf
    ) -> Problem | None:
        return problem_with(self.wants, payload, examples, norm)


Round: TypeAlias = Generator[Ask, Sequence[Reply], None]


def seeded(*parts: object) -> torch.Generator:
    """A generator for one purpose. Everything random is named, so that a replay draws the same."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


class ServerHalf(ABC):
    """Owns global state. `round` is the paper's loop; each `yield` crosses the network."""

    rounds: int = 0  # of the run, as its plan has them; where nobody has said, each may be the last
    number: int = 0  # of the current round, from 1
    cohort: Sequence[Member] = ()
    fleet: int = (
        1  # N: devices that were enrolled when the run began, asked in this round or not; it never changes
    )
    kinds: Kinds = UNDECLARED  # of the arrays that it may send, as METHOD declares them
    public: PublicSet = (
        PublicSet()
    )  # of the run, for methods with `public`: what is known of it, without images

    def __init__(self, model: Net, hyper: Any, seed: int) -> None:
        self.model, self.hyper, self.seed = model, hyper, seed

    def begin(self, number: int, cohort: Sequence[Member]) -> None:
        self.number, self.cohort = number, cohort

    def generator(self, purpose: str) -> torch.Generator:
        return seeded(self.seed, self.number, "server", purpose)

    @abstractmethod
    def payload(self) -> Payload:
        """What a device needs in order to predict: sent in training and in the last evaluation."""

    @abstractmethod
    def round(self) -> Round: ...

    @abstractmethod
    def state(self) -> Payload:
        """All that must survive a crash between rounds."""

    @abstractmethod
    def restore(self, state: Payload) -> None: ...

    def monitor(self) -> Mapping[str, float]:
        """Figures for the record of the round (margins between anchors ...)."""
        return {}


class ClientHalf(ABC):
    """Owns one device's model and data. Never sees a topic, a byte or another device."""

    rounds: int = 0  # as the server half's
    number: int = 0
    kinds: Kinds = UNDECLARED  # as the server half's
    # The device's, where it is known: for methods that learn from how they do.
    validation: Samples | None = None
    public: Sequence[Tensor] = ()  # images of all devices in batches, for methods with `public`

    def __init__(
        self, model: Net, data: Samples, hyper: Any, seed: int, device: str, mutual: Net | None = None
    ) -> None:
        """`mutual` only for methods that train one: the network of all, as the run begins."""
        self.model, self.data, self.hyper = model, data, hyper
        self.seed, self.device = seed, device

    def begin(self, number: int) -> None:
        self.number = number

    def generator(self, purpose: str) -> torch.Generator:
        return seeded(self.seed, self.number, self.device, purpose)

    @abstractmethod
    def receive(self, payload: Payload) -> None:
        """Take over what the server knows; afterwards `predict` uses it. Called before every `run`."""

    @abstractmethod
    def run(self, ask: Ask) -> Payload:
        """Do the phase's work and return what the server half's `wants` demand."""

    def networks(self) -> Sequence[nn.Module]:
        """All that it holds: by them its device judges whether it has the memory."""
        return [self.model]

    def rule(self) -> nn.Module:
        """How this model predicts now: embeddings [B, D] to class scores [B, C]."""
        return self.model.head

    def other_rules(self) -> Mapping[str, nn.Module]:
        """Measured beside it: {"classifier": ...}."""
        return {}

    def predict(self, x: Tensor) -> Tensor:
        """Class scores [B, C]."""
        return self.scores(x, self.rule())

    def encoder(self, rule: nn.Module) -> Encoder:
        """What makes of a sample that which this rule reads."""
        return Encoder(self.model.features, self.model.projector)

    def scores(self, x: Tensor, rule: nn.Module) -> Tensor:
        found: Tensor = rule(self.encoder(rule)(x))
        return found

    def embedding(self, x: Tensor) -> Tensor:
        """[B, D]: the space of the method's prototypes or anchors, as the feature pictures show it."""
        return self.model.embed(x)

    def after_last_round(self) -> None:  # noqa: B027 - most methods do nothing
        """After the last round, before the last evaluation: what the paper does to a personal model first."""

    @abstractmethod
    def state(self) -> Payload:
        """All that must survive a reboot, and a round that this device takes no part in."""

    @abstractmethod
    def restore(self, state: Payload) -> None: ...


# Devices have the same network; or an embedding of one size, with the same kind of head or with any; or any network.
Alike: TypeAlias = Literal["network", "head", "embedding", "nothing"]


@dataclass(frozen=True)
class Method:
    paper: str
    Hyper: type
    Server: type[ServerHalf]
    Client: type[ClientHalf]
    reports: str = "global"  # which model's accuracy the paper reports: "global" or "personal"
    private: str = ""  # what a device keeps to itself from round to round, in words
    needs_counts: bool = False  # devices state samples per class when they join
    alike: Alike = "network"  # what all devices of a run must have in common
    mutual: bool = False  # its server half's network is another one, which devices train beside their own
    public: bool = False  # its devices compare what their networks make of images that all of them have
    validates: bool = False  # without any device that has validation samples it would be another method
    other_rules: tuple[str, ...] = ()  # all that its client half's `other_rules` can name
    # First parts of the names of all arrays that its halves send, each a kind that bytes are counted under; None: not
    # said, and all its arrays are of the kind "other".
    arrays: tuple[str, ...] | None = None
    cost: Callable[[Sizes], Cost] | None = None  # of one participant and round, in closed form
    variant: Callable[[Any], Method] | None = None  # what of the above is otherwise under some settings
    # Why settings cannot be used with a number of classes; "" where they can.
    misfit: Callable[[Any, int], str] | None = None
    # Settings to lower where training diverges, the first one first. Those that Hyper lacks are left out.
    calmer: tuple[str, ...] = ("lr",)

    VIEWS: ClassVar[tuple[str, ...]] = ("global", "personal")

    def __post_init__(self) -> None:
        """An author who has mixed something up reads it where it stands, and not in the middle of a run."""
        if not (isinstance(self.Hyper, type) and is_dataclass(self.Hyper)):
            raise TypeError(f"Method(Hyper=...) is {self.Hyper!r}, it must be a dataclass, as LocalHyper is")
        halves: Mapping[str, tuple[type, type]] = {
            "Server": (self.Server, ServerHalf), "Client": (self.Client, ClientHalf)
        }  # fmt: skip
        for name, (half, base) in halves.items():
            if not (isinstance(half, type) and issubclass(half, base)):
                raise TypeError(f"Method({name}=...) is {half!r}, it must be a class of {base.__name__}")
            if lacking := ", ".join(f"{call}()" for call in sorted(getattr(half, "__abstractmethods__", ()))):
                raise TypeError(f"{half.__name__} lacks {lacking}, which a {base.__name__} has to have")
        if self.reports not in self.VIEWS:
            raise ValueError(f"Method(reports={self.reports!r}), it must be one of {', '.join(self.VIEWS)}")
        for name, call in {"cost": self.cost, "variant": self.variant, "misfit": self.misfit}.items():
            if not (call is None or callable(call)):
                raise TypeError(f"Method({name}={call!r}), it must be a function")
        if not (self.arrays is None or isinstance(self.arrays, tuple)):
            raise TypeError(
                f'Method(arrays={self.arrays!r}), it must be a tuple of names: ("weights", "labels")'
            )
        try:
            declared_kinds(self.arrays or ())
        except ValueError as error:
            raise ValueError(f"Method(arrays=...): {error}") from None

    @property
    def kinds(self) -> Kinds:
        """The kinds that bytes of its arrays are counted under."""
        return UNDECLARED if self.arrays is None else declared_kinds(self.arrays)

    @property
    def mixed_networks(self) -> bool:
        return self.alike != "network"

    @property
    def views(self) -> frozenset[str]:
        """What its devices measure: of each model `rule`, and its other rules behind the model's name."""
        models = self.VIEWS if self.reports == "global" else ("personal",)
        others = [f"-{name}" for name in self.other_rules]
        return frozenset(model + other for model in models for other in ("", *others))

    @property
    def way_out_of_divergence(self) -> str:
        """Advice for whoever ran it, such as "lower method.lr"; "" where no setting is known to help."""
        own = {one.name for one in fields(self.Hyper)}
        known = [f"method.{name}" for name in self.calmer if name in own]
        return f"lower {' or '.join(known)}" if known else ""

    def under(self, hyper: Any) -> Method:
        """The method as a run with these settings has it."""
        return self.variant(hyper) if self.variant else self
