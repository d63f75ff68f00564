"""What FedPall's server trains: C_g and A, on the mixed features of a whole cohort, with one batch in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods.contract.base import Payload, Reply, seeded
from protofleet.methods.nets.mlp import amplifier
from protofleet.methods.parts.averaging import flat_slice
from protofleet.methods.parts.local import LocalHyper, sgd, train
from protofleet.methods.parts.optimizers import SGD
from protofleet.methods.parts.state import names_from_tensor, names_to_tensor
from protofleet.methods.parts.weights import load_weights, torch_device_of, weights_of


class PooledFeatures:
    """Features that stay on the disk, as Samples: x are the numbers of the rows over all replies in turn.

    Those of Digits are 59,000 x 2048 numbers, half a gigabyte; a batch reads its own rows alone.
    """

    def __init__(self, replies: Sequence[Reply], owners: Sequence[int], size: int) -> None:
        self.size, self._payloads = size, [reply.payload for reply in replies]
        labels = [payload["labels"] for payload in self._payloads]
        lengths = torch.tensor([len(part) for part in labels])
        self.y = torch.cat(labels)  # [n]
        self.x = torch.arange(len(self.y))
        self._reply = torch.arange(len(labels)).repeat_interleave(lengths)  # [n]
        self._starts = lengths.cumsum(0) - lengths  # [replies]
        self.owner = torch.tensor(owners)[self._reply]  # [n]

    def features(self, rows: Tensor) -> Tensor:
        """[B, size]"""
        replies = self._reply[rows]
        places = zip(replies.tolist(), (rows - self._starts[replies]).tolist(), strict=True)
        return torch.stack([self._row(self._payloads[reply], row) for reply, row in places])

    def _row(self, payload: Payload, row: int) -> Tensor:
        return flat_slice(payload, "features", row * self.size, (row + 1) * self.size)


class ServerModels:
    """C_g and A, the devices that A tells apart, and one SGD for both that goes on over rounds.

    Both learn from the same batches. Their weights are apart, so each learns what it would learn alone.
    """

    def __init__(self, C_g: nn.Module, size: int, outputs: int, seed: int) -> None:
        self.C_g, self.size, self.seed = C_g, size, seed
        self.A = self._new_amplifier(outputs)
        self.devices: list[str] = []  # output i of A is for the i-th
        self.momenta: dict[str, Tensor] = {}  # by parameter

    def add_devices(self, present: Iterable[str]) -> None:
        """A new device gets the next output, with fresh weights; no device's number ever changes."""
        self.devices += [device for device in sorted(present) if device not in self.devices]
        if len(self.devices) > outputs_of(self.A):
            grown = self._new_amplifier(len(self.devices))
            for new, old in zip(grown.state_dict().values(), self.A.state_dict().values(), strict=True):
                (new if new.shape == old.shape else new[: len(old)]).copy_(old)
            self.A = grown

    def fit(
        self, replies: Sequence[Reply], hyper: LocalHyper, generator: torch.Generator
    ) -> dict[str, float]:
        """FedPall, eqs. 12 and 13: cross-entropy with labels, and with who sent what. Figures come back."""
        pool = PooledFeatures(replies, [self.devices.index(reply.device) for reply in replies], self.size)
        both = nn.ModuleDict({"classifier": self.C_g, "amplifier": self.A})
        sums, torch_device = torch.zeros(2, dtype=torch.float64), torch_device_of(both)
        optimizer = self.optimizer(both, hyper)

        def objective(rows: Tensor, y: Tensor) -> Tensor:
            r, owner = pool.features(rows).to(torch_device), pool.owner[rows].to(torch_device)
            y = y.to(torch_device)
            losses = torch.stack([F.cross_entropy(self.C_g(r), y), F.cross_entropy(self.A(r), owner)])
            sums.add_(losses.detach().cpu(), alpha=len(rows))
            return losses.sum()

        train(both, pool, objective, hyper, generator, before_epoch=sums.zero_, optimizers=[optimizer])
        named = zip(both.named_parameters(), optimizer.buffers, strict=True)
        self.momenta = {name: buffers["momentum_buffer"] for (name, _), buffers in named}
        means = (sums / max(len(pool.y), 1)).tolist()
        return {"loss.classifier": means[0], "loss.amplifier": means[1], "features": float(len(pool.y))}

    def weights(self) -> dict[str, Tensor]:
        return {**weights_of(self.C_g, "classifier"), **weights_of(self.A, "amplifier")}

    def state(self) -> dict[str, Tensor]:
        momenta = {f"momentum.{name}": value for name, value in self.momenta.items()}
        return {**self.weights(), **momenta, "devices": names_to_tensor(self.devices)}

    def restore(self, state: Payload) -> None:
        prefix, torch_device = "momentum.", torch_device_of(self.C_g)
        load_weights(self.C_g, state, "classifier")
        self.A = amplifier_from(state, self.A)
        kept = (name for name in state if name.startswith(prefix))
        self.momenta = {name.removeprefix(prefix): state[name].to(torch_device) for name in kept}
        self.devices = names_from_tensor(state["devices"])

    def _new_amplifier(self, outputs: int) -> nn.Sequential:
        first = seeded(self.seed, "server", "amplifier", outputs).initial_seed()
        return amplifier(self.size, outputs, seed=first).to(torch_device_of(self.C_g))

    def optimizer(self, both: nn.Module, hyper: LocalHyper) -> SGD:
        """It continues with the momentum that it had; outputs that are new since start with none."""
        made = sgd(both.parameters(), hyper)
        for (name, w), buffers in zip(both.named_parameters(), made.buffers, strict=True):
            kept = self.momenta.get(name, torch.zeros_like(w[:0]))
            buffers["momentum_buffer"] = torch.cat([kept, torch.zeros_like(w[len(kept) :])])
        return made


def amplifier_from(payload: Mapping[str, Tensor], own: nn.Sequential) -> nn.Sequential:
    """A as it was sent: a new network where it has another number of outputs, `own` where none was sent."""
    size, last = own.get_parameter("0.weight").shape[1], f"amplifier.{len(own) - 1}.weight"
    if last in payload and len(payload[last]) != outputs_of(own):
        own = amplifier(size, len(payload[last])).to(torch_device_of(own))
    load_weights(own, payload, "amplifier")
    return own


def outputs_of(own: nn.Sequential) -> int:
    return len(own.get_parameter(f"{len(own) - 1}.weight"))
