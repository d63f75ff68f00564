"""What a run's plan may make this device do: bounded by the device's own settings, before any memory is taken.

Nothing of a plan is bounded by itself: a network may be as wide as a number can say, and epochs as many.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import torch
from torch import Tensor

from protofleet.methods.contract.base import ClientHalf, Payload, Samples
from protofleet.methods.contract.confusion import MOST_CLASSES, ConfusionClasses
from protofleet.methods.contract.plan import Network, Plan, PublicImages
from protofleet.methods.contract.public import PublicSet
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.weights import weights_of
from protofleet.methods.plugins.errors import place_of
from protofleet.protocol.settings.bounds import LONG_SECONDS, Bytes, Epochs, PositiveBytes, Within
from protofleet.protocol.settings.input_shape import InputShape
from protofleet.protocol.settings.reader import SettingsError, demand_within

FLOAT: Final = 4  # bytes of a number
COPIES: Final = 4  # of the weights: they, their gradients, their momentum, and those that came
MEMINFO: Final = Path("/proc/meminfo")


WorkSeconds = Annotated[float, Within(1, LONG_SECONDS)]


@dataclass(frozen=True)
class Limits:
    """The [limits] table."""

    memory_bytes: Bytes = 0  # that a network takes while it learns; 0: what the machine, or its GPU, has
    disk_bytes: PositiveBytes = 8 << 30  # of the state that the device keeps, and an answer beside it
    epochs: Epochs = 1000  # of a round: `epochs` and all `..._epochs` of the method but those of the server
    # Classes of a run, at most, in which it tells at the end which of them it confuses; 0: in none.
    confusion: ConfusionClasses = MOST_CLASSES
    # Of one piece of work inside the agent; then it is ended and begun again.
    work_seconds: WorkSeconds = 86_400.0

    def __post_init__(self) -> None:
        demand_within(self)


@dataclass(frozen=True)
class HalfBuilder:
    """Makes this device's half of a plan, or raises SettingsError with the value, the limit and the way out."""

    limits: Limits
    train: Samples
    name: str
    network: Network | None
    place: torch.device
    validation: Samples | None = None
    public: Callable[[Plan], PublicImages | None] = lambda plan: None

    def build(self, plan: Plan) -> ClientHalf:
        epochs, limits = device_epochs(plan.settings()), self.limits
        demand_same_kind(plan.input_shape, self.train.x)
        demand(f"{epochs:,} epochs", epochs <= limits.epochs, f"epochs = {limits.epochs:,}", "fewer")
        public = public_bytes(plan)
        self._demand_memory(public)
        weights, state, features = self._sizes(plan)
        held = COPIES * weights + features + public
        self._demand_memory(held)
        stored, most = weights + state, limits.disk_bytes
        demand(f"{stored:,} bytes of disk", stored <= most, f"disk_bytes = {most:,}", "a smaller network")
        half = plan.client_half(
            self.train,
            self.name,
            self.network,
            self.place,
            validation=self.validation,
            public=self.public(plan),
        )
        self._demand_memory(held + self._batch(plan) * activation_bytes(half, self.train.x))
        return half

    def _sizes(self, plan: Plan) -> tuple[int, int, int]:
        """Bytes of the networks, of the half's state, and of all samples' features, which most methods take after
        training: measured where tensors have no memory."""
        meta = torch.device("meta")
        try:
            with meta:
                half = plan.client_half(self.train, self.name, self.network, meta, public=self.public(plan))
                features = FLOAT * len(self.train.y) * half.model.embedding_size
                weights = sum(bytes_of(weights_of(network)) for network in half.networks())
                return weights, bytes_of(half.state()), features
        except SettingsError:
            raise
        except (RuntimeError, ValueError, TypeError, OverflowError) as error:
            raise SettingsError(f"the run's network cannot be made: {first_line(error)}") from None

    def _batch(self, plan: Plan) -> int:
        """The most samples of one step: its own, or the public ones, of which it may have more."""
        own = min(int(plan.settings().batch), len(self.train.y))
        return max(own, *public_set(plan).batches) if plan.load().public else own

    def _demand_memory(self, size: int) -> None:
        most = self.limits.memory_bytes or total_memory(self.place)
        limit = f"memory_bytes = {most:,}"
        demand(f"{size:,} bytes of memory", size <= most, limit, "a smaller network or batch")


def device_epochs(hyper: Any) -> int:
    """Count the epochs of a device in a round: the settings `epochs` and `..._epochs`, but `server_epochs`.

    Settings that do not simply add up have a property `device_epochs`.
    """
    if (said := getattr(hyper, "device_epochs", None)) is not None:
        return int(said)
    names = [name for name in vars(hyper) if name.endswith("epochs") and not name.startswith("server_")]
    return sum(getattr(hyper, name) or 0 for name in names)


def public_set(plan: Plan) -> PublicSet:
    return plan.public or PublicSet()


def public_bytes(plan: Plan) -> int:
    """Of the samples that all devices of a run have, and of their cosines."""
    if not plan.load().public:
        return 0
    chosen = public_set(plan)
    return FLOAT * (chosen.samples * plan.input_shape.numbers + chosen.pairs)


def demand(takes: str, holds: bool, limit: str, other: str) -> None:
    if not holds:
        raise SettingsError(
            f"the run's plan takes {takes}, over this device's limits.{limit}; raise that where the device can "
            f"bear it, or plan {other}"
        )


def demand_same_kind(wanted: InputShape, x: Tensor) -> None:
    """Images of another size, a network may take or refuse; what is another kind of thing, or is made of other
    channels, would be learned as if it were the same."""
    if not len(x):
        return
    own = InputShape(tuple(x.shape[1:]))
    if (own.rank, own.channels) != (wanted.rank, wanted.channels):
        raise SettingsError(
            f"the run's samples are {wanted}, this device's {own}; set data.shape = {list(wanted.axes)} where its "
            "source can give them, or name the source that has them"
        )


def activation_bytes(half: ClientHalf, x: Tensor) -> int:
    """Bytes that one sample's pass leaves for the way back; a network that does not take these samples is refused."""
    # What takes no samples, as FedKD's map of embeddings, keeps next to nothing.
    networks = [n for n in half.networks() if isinstance(n, Net)]
    trained = [n for n in networks if any(w.requires_grad for w in n.parameters())]
    return sum(kept_by(network, x) for network in trained) if len(x) else 0


def kept_by(network: Net, x: Tensor) -> int:
    kept: dict[int, int] = {}
    own = {w.untyped_storage().data_ptr() for w in network.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    training = network.training
    network.eval()  # nothing of the network moves
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            held = network(x[:1].clone())  # alone in its memory, of which all counts
        del held
    except RuntimeError as error:
        raise SettingsError(refusal(network, x, error)) from None
    finally:
        network.train(training)
    return sum(kept.values())


def refusal(network: Net, x: Tensor, error: RuntimeError) -> str:
    """Of one's own network: with its file, its line if that raises, and what its Net has said of it wrongly."""
    which = "the run's network"
    if network.made_in:
        which = f"{place_of(error, network.made_in.__eq__) or network.made_in}: the run's network"
    if network.made_for == tuple(x.shape[1:]) and (problem := wrong_size(network, x)):
        return f"{which} {problem}"
    return f"{which} does not take this device's {InputShape(tuple(x.shape[1:]))}: {first_line(error)}"


@torch.no_grad()
def wrong_size(network: Net, x: Tensor) -> str:
    parts: dict[str, Callable[[Tensor], Tensor]] = {
        "feature_size": network.features,
        "embedding_size": network.embed,
    }
    try:
        for name, part in parts.items():
            found, said = list(part(x[:1]).shape[1:]), getattr(network, name)
            if found != [said]:
                return f"gives {found} numbers for a sample before its head, and its Net says {name} = {said}"
    except RuntimeError:  # it is the samples that do not fit
        return ""
    return ""


def bytes_of(payload: Payload) -> int:
    return sum(value.numel() * value.element_size() for value in payload.values())


def total_memory(place: torch.device) -> int:
    if place.type == "cuda":
        return int(torch.cuda.get_device_properties(place).total_memory)
    try:
        lines = (line.split() for line in MEMINFO.read_text().splitlines())
        return 1024 * sum(int(fields[1]) for fields in lines if fields[0] in ("MemTotal:", "SwapTotal:"))
    except (OSError, ValueError, IndexError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]
