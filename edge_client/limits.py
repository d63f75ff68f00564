"""The device's own limits on the work and memory for a run's plan, which are checked before memory is allocated.

The limits are needed because a valid plan may have a network of any width and any number of epochs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import torch
from torch import Tensor

from protofleet.edge_client.private_updates import demand_delta_fit
from protofleet.edge_client.trainer.features import replaces_samples
from protofleet.methods.contract.base import ClientHalf, Payload, Samples
from protofleet.methods.contract.confusion import MOST_CLASSES, ConfusionClasses
from protofleet.methods.contract.plan import Network, Plan, PublicImages
from protofleet.methods.contract.private_rows import demand_rows_fit
from protofleet.methods.contract.public import PublicSet
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.local import BATCH
from protofleet.methods.parts.weights import weights_of
from protofleet.methods.plugins.errors import place_of
from protofleet.protocol.settings.bounds import LONG_SECONDS, Bytes, Epochs, PositiveBytes, Within
from protofleet.protocol.settings.input_shape import InputShape
from protofleet.protocol.settings.reader import SettingsError, demand_within

FLOAT: Final = 4  # bytes of a number
COPIES: Final = 4  # copies of the weights in memory: weights, gradients, momentum, and received weights
MEMINFO: Final = Path("/proc/meminfo")


WorkSeconds = Annotated[float, Within(1, LONG_SECONDS)]


@dataclass(frozen=True)
class DeviceLimits:
    """The [limits] table: the most work and memory that this device accepts for a run's plan."""

    memory_bytes: Bytes = 0
    """Largest memory, in bytes, of a network during training; 0 means the memory of the machine or its GPU."""
    disk_bytes: PositiveBytes = 8 << 30
    """Largest disk space, in bytes, of the device's state and one more update."""
    features_bytes: Bytes = 256 << 20
    """Largest disk space, in bytes, of the features that frozen backbones have computed; 0 means that they are not
    stored.
    """
    epochs: Epochs = 1000
    """Largest number of epochs of a round; this number is the sum of `epochs` and all `..._epochs` of the method
    except the server's.
    """
    confusion: ConfusionClasses = MOST_CLASSES
    """Largest number of classes with which the device reports at the end which classes it confuses; 0 means never."""
    work_seconds: WorkSeconds = 86_400.0
    """Longest time, in seconds, of one piece of work inside the agent, after which the work is ended and started
    again.
    """

    def __post_init__(self) -> None:
        demand_within(self)


@dataclass(frozen=True)
class HalfBuilder:
    """The builder of this device's half of a plan.

    If the plan exceeds a limit, `build` raises SettingsError with the value, the limit and a way out.
    """

    limits: DeviceLimits
    train: Samples
    name: str
    network: Network | None
    place: torch.device
    validation: Samples | None = None
    public: Callable[[Plan], PublicImages | None] = lambda plan: None

    def build(self, plan: Plan) -> ClientHalf:
        demand_delta_fit(plan.dp, len(self.train.y))
        demand_rows_fit(plan, len(self.train.y))
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
        half = self.build_unchecked(plan)
        self._demand_memory(held + self._batch(plan) * activation_bytes(half, self.train.x, plan.input_shape))
        return half

    def build_unchecked(self, plan: Plan) -> ClientHalf:
        """Build the half of a plan that `build` has accepted with the same limits and data."""
        return plan.client_half(
            self.train,
            self.name,
            self.network,
            self.place,
            validation=self.validation,
            public=self.public(plan),
        )

    def _sizes(self, plan: Plan) -> tuple[int, int, int]:
        """Return the bytes of the networks' weights, of the half's state, and of the features of all samples.

        The features are included because most methods compute them for all samples after training. The half is built
        on torch's meta device, where tensors take no memory.
        """
        meta = torch.device("meta")
        try:
            with meta:
                half = plan.client_half(self.train, self.name, self.network, meta, public=self.public(plan))
                features = FLOAT * len(self.train.y) * half.model.embedding_size
                if replaces_samples(half):
                    features += FLOAT * len(self.train.y) * half.model.feature_size
                weights = sum(bytes_of(weights_of(network)) for network in half.networks())
                return weights, bytes_of(half.state()), features
        except SettingsError:
            raise
        except (RuntimeError, ValueError, TypeError, OverflowError) as error:
            raise SettingsError(f"the run's network cannot be made: {first_line(error)}") from None

    def _batch(self, plan: Plan) -> int:
        """Return the largest number of samples in one step on the device's data or public data.

        A method that trains nothing has no setting `batch`.
        """
        own = min(int(getattr(plan.settings(), "batch", BATCH)), len(self.train.y))
        return max(own, *public_set(plan).batches) if plan.load().public else own

    def _demand_memory(self, size: int) -> None:
        most = self.limits.memory_bytes or total_memory(self.place)
        limit = f"memory_bytes = {most:,}"
        demand(f"{size:,} bytes of memory", size <= most, limit, "a smaller network or batch")


def device_epochs(hyper: Any) -> int:
    """Return the epochs of a device in a round: the sum of `epochs` and `..._epochs`, except the server's epochs.

    If this sum is wrong for a method, the method's settings have a property `device_epochs`.
    """
    if (said := getattr(hyper, "device_epochs", None)) is not None:
        return int(said)
    names = [name for name in vars(hyper) if name.endswith("epochs") and not name.startswith("server_")]
    return sum(getattr(hyper, name) or 0 for name in names)


def public_set(plan: Plan) -> PublicSet:
    return plan.public or PublicSet()


def public_bytes(plan: Plan) -> int:
    """Return the bytes of the run's public samples, and of the cosines of all pairs of public samples."""
    if not plan.load().public:
        return 0
    chosen = public_set(plan)
    return FLOAT * (chosen.samples * plan.input_shape.numbers + chosen.pairs)


def demand(takes: str, holds: bool, limit: str, other: str) -> None:
    if not holds:
        raise SettingsError(
            f"the run's plan takes {takes}, which is more than this device's limits.{limit}; raise this limit if the "
            f"device can do the work, or plan {other}"
        )


def demand_same_kind(wanted: InputShape, x: Tensor) -> None:
    """Raise SettingsError if the device's samples are of another kind than the run's samples.

    Samples are of the same kind if their rank and their number of channels are equal. Samples of another kind are
    refused here, because a network might train on them without an error. Images of another size are not refused
    here: the network accepts or refuses them later.
    """
    if not len(x):
        return
    own = InputShape(tuple(x.shape[1:]))
    if (own.rank, own.channels) != (wanted.rank, wanted.channels):
        raise SettingsError(
            f"the run's samples are {wanted}, but this device's samples are {own}; set data.shape = "
            f"{list(wanted.axes)} if the device's source can give such samples, or name another source"
        )


def activation_bytes(half: ClientHalf, x: Tensor, wanted: InputShape) -> int:
    """Return the bytes that the forward pass of one sample keeps for the backward pass.

    Raise SettingsError if a network does not accept these samples. `wanted` is the shape of the run's samples.
    """
    # Other networks, for example FedKD's map between embeddings, do not take samples and need little memory.
    networks = [n for n in half.networks() if isinstance(n, Net)]
    trained = [n for n in networks if any(w.requires_grad for w in n.parameters())]
    return sum(kept_by(network, x, wanted) for network in trained) if len(x) else 0


def kept_by(network: Net, x: Tensor, wanted: InputShape) -> int:
    kept: dict[int, int] = {}
    own = {w.untyped_storage().data_ptr() for w in network.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    training = network.training
    network.eval()  # In training mode, this forward pass would change the statistics of BatchNorm.
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            # Without the copy, the sample would share the memory of all samples, and all of it would be counted.
            held = network(x[:1].clone())
        del held
    except RuntimeError as error:
        raise SettingsError(refusal(network, x, wanted, error)) from None
    finally:
        network.train(training)
    return sum(kept.values())


def refusal(network: Net, x: Tensor, wanted: InputShape, error: RuntimeError) -> str:
    """Return the reason why a network does not accept the device's samples.

    If the samples have another size than the run's samples, the text has both sizes. Otherwise the network is wrong:
    if it is in a user's file, the text has the file and the line that raises the error. If the network's Net states a
    wrong size, the text has this size too.
    """
    which = "the run's network"
    if network.made_in:
        which = f"{place_of(error, network.made_in.__eq__) or network.made_in}: the run's network"
    if network.made_for == tuple(x.shape[1:]) and (problem := wrong_size(network, x)):
        return f"{which} {problem}"
    own = InputShape(tuple(x.shape[1:]))
    refused = f"{which} does not take this device's {own}"
    if own == wanted:
        return f"{refused}: {first_line(error)}"
    return (
        f"{refused}, because the run's samples are {wanted}; set data.{sizes_words(wanted)} on this device if its "
        f"source can give such samples, or {sizes_words(own)} in the run"
    )


def sizes_words(shape: InputShape) -> str:
    """Return the setting that gives samples of this size; the number of channels is right already."""
    return f"size = {shape.spatial[0]}" if shape.is_square_picture else f"shape = {list(shape.axes)}"


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
    except RuntimeError:  # The network raises an error, so its sizes cannot be compared.
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
