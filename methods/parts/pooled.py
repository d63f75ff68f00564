"""Networks that a server half trains on the features of a whole cohort. Only one batch at a time is in memory.

The networks are ADCOL's discriminator, which predicts the device of a feature, and FedPall's C_g and A.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods.contract.base import Member, Payload, Reply, seeded
from protofleet.methods.contract.bridge import LazyPayload
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.nets.base import Net
from protofleet.methods.nets.mlp import amplifier
from protofleet.methods.parts.averaging import flat_slice
from protofleet.methods.parts.local import LocalHyper, sgd, train
from protofleet.methods.parts.optimizers import SGD
from protofleet.methods.parts.prototypes import LARGEST_NUMBER
from protofleet.methods.parts.state import names_from_tensor, names_to_tensor
from protofleet.methods.parts.weights import load_weights, weights_of
from protofleet.protocol.settings.bounds import Within

Outputs: TypeAlias = Annotated[int, Within(0, 65_536)]
FEATURES: Final = ("features",)  # The kinds that METHOD declares for features.


def feature_wants(model: Net, cohort: Sequence[Member]) -> dict[str, TensorSpec]:
    """Return the specification of features, with one row for each sample.

    A device may send at most as many rows as it has samples.
    """
    most = max((member.examples for member in cohort), default=0)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return {
        "features": TensorSpec(
            ("n", model.embedding_size), dtype, low=-LARGEST_NUMBER, high=LARGEST_NUMBER, most=most,
            row_per_example=True,
        )
    }  # fmt: skip


class PooledFeatures:
    """Features that stay on the disk, in the form of Samples.

    `x` has the indices of the rows, counted from the first reply to the last. The features of Digits are
    59,000 x 2048 numbers, half a gigabyte, so only the rows of a batch are read. `y` has the labels of the rows,
    or the indices of the devices if no labels were sent.
    """

    def __init__(self, replies: Sequence[Reply], owners: Sequence[int], size: int) -> None:
        self.size, self._payloads = size, [reply.payload for reply in replies]
        lengths = torch.tensor([rows_of(payload) for payload in self._payloads])
        self._reply = torch.arange(len(lengths)).repeat_interleave(lengths)  # [n]
        self._starts = lengths.cumsum(0) - lengths  # [replies]
        self.owner = torch.tensor(owners)[self._reply]  # [n]
        labels = [payload["labels"] for payload in self._payloads if "labels" in payload]
        self.y = torch.cat(labels) if labels else self.owner  # [n]
        self.x = torch.arange(len(self.y))

    def features(self, rows: Tensor) -> Tensor:
        """Return the features of these rows, [B, size]."""
        replies = self._reply[rows]
        places = zip(replies.tolist(), (rows - self._starts[replies]).tolist(), strict=True)
        return torch.stack([self._row(self._payloads[reply], row) for reply, row in places])

    def _row(self, payload: Payload, row: int) -> Tensor:
        return flat_slice(payload, "features", row * self.size, (row + 1) * self.size)


def rows_of(payload: Payload) -> int:
    if isinstance(payload, LazyPayload):
        return payload.dtype_and_shape("features")[1][0]
    return len(payload["features"])


class Discriminator:
    """A network A that predicts which device has computed a feature, and the list of all such devices.

    The momentum of the network's SGD is kept over rounds.
    """

    kind = "discriminator"

    def __init__(self, like: nn.Module, size: int, outputs: int, seed: int) -> None:
        self.like, self.size, self.seed = next(like.parameters()), size, seed
        self.A = self._new_network(outputs)
        self.devices: list[str] = []  # Output i of A is for the i-th device.
        self.momenta: dict[str, Tensor] = {}  # Momentum by name of the parameter.

    def trained(self) -> dict[str, nn.Module]:
        return {self.kind: self.A}

    def losses(self, z: Tensor, y: Tensor, owner: Tensor) -> list[Tensor]:
        """Return one loss for each network of `trained`."""
        return [F.cross_entropy(self.A(z), owner)]

    def add_devices(self, present: Iterable[str]) -> None:
        """Give each new device the next output, with new weights; a device always keeps its output."""
        self.devices += [device for device in sorted(present) if device not in self.devices]
        if len(self.devices) > outputs_of(self.A):
            grown = self._new_network(len(self.devices))
            for new, old in zip(grown.state_dict().values(), self.A.state_dict().values(), strict=True):
                (new if new.shape == old.shape else new[: len(old)]).copy_(old)
            self.A = grown

    def fit(
        self, replies: Sequence[Reply], hyper: LocalHyper, generator: torch.Generator
    ) -> dict[str, float]:
        """Train on the rows in the order of the devices, and return measured numbers for the record of the round."""
        ordered = sorted(replies, key=lambda reply: reply.device)
        pool = PooledFeatures(ordered, [self.devices.index(reply.device) for reply in ordered], self.size)
        networks = nn.ModuleDict(self.trained())
        sums, torch_device = torch.zeros(len(networks), dtype=torch.float64), self.like.device
        optimizer = self.optimizer(networks, hyper)

        def objective(rows: Tensor, y: Tensor) -> Tensor:
            r, owner = pool.features(rows).to(torch_device), pool.owner[rows].to(torch_device)
            losses = torch.stack(self.losses(r, y.to(torch_device), owner))
            sums.add_(losses.detach().cpu(), alpha=len(rows))
            return losses.sum()

        train(networks, pool, objective, hyper, generator, before_epoch=sums.zero_, optimizers=[optimizer])
        named = zip(networks.named_parameters(), optimizer.buffers, strict=True)
        self.momenta = {name: buffers["momentum_buffer"] for (name, _), buffers in named}
        means = zip(networks, (sums / max(len(pool.y), 1)).tolist(), strict=True)
        return {**{f"loss.{kind}": mean for kind, mean in means}, "features": float(len(pool.y))}

    def weights(self) -> dict[str, Tensor]:
        return {
            name: value
            for kind, net in self.trained().items()
            for name, value in weights_of(net, kind).items()
        }

    def state(self) -> dict[str, Tensor]:
        momenta = {f"momentum.{name}": value for name, value in self.momenta.items()}
        return {**self.weights(), **momenta, "devices": names_to_tensor(self.devices)}

    def restore(self, state: Payload) -> None:
        prefix = "momentum."
        self.A = amplifier_from(state, self.A, self.kind)
        kept = (name for name in state if name.startswith(prefix))
        self.momenta = {name.removeprefix(prefix): state[name].to(self.like.device) for name in kept}
        self.devices = names_from_tensor(state["devices"])

    def _new_network(self, outputs: int) -> nn.Sequential:
        first = seeded(self.seed, "server", "amplifier", outputs).initial_seed()
        return amplifier(self.size, outputs, seed=first).to(self.like.device, self.like.dtype)

    def optimizer(self, networks: nn.Module, hyper: LocalHyper) -> SGD:
        """Return an SGD that continues with the momentum of the last round.

        New outputs start without momentum.
        """
        made = sgd(networks.parameters(), hyper)
        for (name, w), buffers in zip(networks.named_parameters(), made.buffers, strict=True):
            kept = self.momenta.get(name, torch.zeros_like(w[:0]))
            buffers["momentum_buffer"] = torch.cat([kept, torch.zeros_like(w[len(kept) :])])
        return made


class ServerModels(Discriminator):
    """FedPall's C_g, which learns the label of each row (eq. 13), and A, which learns its sender (eq. 12).

    Both networks learn from the same batches. They share no weights, so neither network changes
    what the other network learns.
    """

    kind = "amplifier"

    def __init__(self, C_g: nn.Module, size: int, outputs: int, seed: int) -> None:
        super().__init__(C_g, size, outputs, seed)
        self.C_g = C_g

    def trained(self) -> dict[str, nn.Module]:
        return {"classifier": self.C_g, **super().trained()}

    def losses(self, z: Tensor, y: Tensor, owner: Tensor) -> list[Tensor]:
        return [F.cross_entropy(self.C_g(z), y), *super().losses(z, y, owner)]

    def restore(self, state: Payload) -> None:
        super().restore(state)
        load_weights(self.C_g, state, "classifier")


def amplifier_from(
    payload: Mapping[str, Tensor], own: nn.Sequential, kind: str = "amplifier"
) -> nn.Sequential:
    """Return A with the weights that were sent.

    If no weights were sent, return `own`. If the number of outputs has changed, return a new network.
    """
    first, last = own.get_parameter("0.weight"), f"{kind}.{len(own) - 1}.weight"
    if last in payload and len(payload[last]) != outputs_of(own):
        own = amplifier(first.shape[1], len(payload[last])).to(first.device, first.dtype)
    load_weights(own, payload, kind)
    return own


def outputs_of(own: nn.Sequential) -> int:
    return len(own.get_parameter(f"{len(own) - 1}.weight"))
