"""FedHEAL (Chen et al., CVPR 2024): FedAvg that leaves out updates of unusual sign; distant devices count more.

u_i = x - y_i              x the global model, y_i the model that device i trained from x
m_i = 1 where the share of device i's past updates that have the sign of u_i is above the threshold (0.3)
d_i = sum over the arrays of parameters of |m_i u_i|          D = sum of the last d of all devices known
step_i <- (1 - beta) step_i + beta d_i / D                    beta 0.4, first step_i 0
q_i <- q_i + step_i                                           first q_i 1 / (number of devices)
x <- x - sum_i q_i m_i u_i / sum_i q_i m_i                    per number; a number that nobody's mask has stays

The server keeps, for each device, how many of the device's updates were 0 or more, per parameter. Choices where the
authors' code states nothing, or differs:
  past rounds   A device's own rounds are counted. The authors' code divides by the number of the round, and has no
                table for a device that is absent in the first round. In a device's first round, m_i is 1 everywhere.
  statistics    Only parameters are masked. Running statistics of batch norms are the mean with the weights q_i.
  samples       N_i is not a weight. A device without samples is left out, unless no device has samples.
  memory        The tables take 4 bytes per parameter and device, so a run whose tables would be larger than
                `table_bytes` is refused. If further devices enrol later, those that find no room for a table are
                treated in each round as in their first round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum

import torch
from torch import Tensor

from protofleet.methods import fedavg
from protofleet.methods.contract.base import Ask, Method, Payload, Reply, Round
from protofleet.methods.maths.consistency import keeps_sign, masked_mean
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.averaging import flat_slice, weighted_mean
from protofleet.methods.parts.device_records import (
    Known,
    new_table,
    records_in,
    records_to_arrays,
    reweighed,
    table_sizes,
)
from protofleet.methods.parts.local import LocalHyper
from protofleet.methods.parts.parameters import learned_in, parts_of
from protofleet.methods.parts.weights import WEIGHTS, load_weights, weight_wants
from protofleet.protocol.settings.bounds import PositiveBytes, Share


@dataclass(frozen=True)
class Hyper(LocalHyper):
    threshold: Share = 0.3
    """Share of a device's past updates that must have the sign of the present update (tau in the paper)."""
    beta: Share = 0.4
    """Part of the present distance in the step of a device's weight; 0 keeps all weights equal."""
    table_bytes: PositiveBytes = 1 << 30
    """Largest number of bytes of the coordinator's tables, which take 4 bytes per parameter and device."""


class Server(fedavg.Server):
    hyper: Hyper

    def __init__(self, model: Net, hyper: Hyper, seed: int) -> None:
        super().__init__(model, hyper, seed)
        self.known: dict[str, Known] = {}

    def round(self) -> Round:
        wants = weight_wants(self.model)
        replies = yield Ask("train", self.payload(), wants)
        replies = sorted([r for r in replies if r.examples] or replies, key=lambda reply: reply.device)
        for new in [reply.device for reply in replies if reply.device not in self.known]:
            table = new_table(self.model, self.known, self.hyper.table_bytes)
            self.known[new] = Known(1 / self.fleet, table)
        after = {reply.device: self.seen(reply) for reply in replies}
        distances = {device: distance for device, (distance, _) in after.items()}
        self.known = reweighed(self.known, distances, self.hyper.beta)
        weights = {device: self.known[device].weight for device in after}
        moved = {name: self.moved(name, replies) for name in learned_in(self.model)}
        load_weights(self.model, {**moved, **weighted_mean(replies, wants.keys() - moved.keys(), weights)})
        for device, (_, rises) in after.items():
            known = self.known[device]
            self.known[device] = replace(known, rises=rises, rounds=known.rounds + 1 if len(rises) else 0)

    def seen(self, reply: Reply) -> tuple[float, Tensor]:
        """Return the distance of this update, and the device's table with this update."""
        lengths, rises = [], self.known[reply.device].rises.clone()
        parts = parts_of(rises, self.model) if len(rises) else {}
        for name in learned_in(self.model):
            update, mask = self.masked(reply, name)
            lengths.append(float(torch.where(mask, update, 0.0).norm()))
            if name in parts:
                parts[name].add_(update >= 0)
        return fsum(lengths), rises

    def masked(self, reply: Reply, name: str) -> tuple[Tensor, Tensor]:
        """Return the update of an array, flat and in float64, and its mask."""
        own, known = learned_in(self.model)[name].reshape(-1), self.known[reply.device]
        update = own.double() - flat_slice(reply.payload, name, 0, len(own)).double()
        if not known.rounds:
            return update, torch.ones_like(update, dtype=torch.bool)
        rises = parts_of(known.rises, self.model)[name]
        return update, keeps_sign(update, rises, known.rounds, self.hyper.threshold)

    def moved(self, name: str, replies: Sequence[Reply]) -> Tensor:
        before = learned_in(self.model)[name]
        pieces = ((*self.masked(reply, name), self.known[reply.device].weight) for reply in replies)
        return (before.double() - masked_mean(pieces).view_as(before)).to(before.dtype)

    def state(self) -> Payload:
        return {**super().state(), **records_to_arrays(self.known)}

    def restore(self, state: Payload) -> None:
        super().restore(state)
        self.known = records_in(state, self.model)


def misfit_fleet(hyper: Hyper, model: Net, devices: int) -> str:
    size = table_sizes(model, devices)
    if size <= hyper.table_bytes:
        return ""
    return (
        f"the tables of {devices:,} devices take {size:,} bytes, but method.table_bytes is {hyper.table_bytes:,}; "
        f"set method.table_bytes = {size}, or use a smaller network or fewer devices"
    )


METHOD = Method(
    "Chen et al., CVPR 2024: FedHEAL", Hyper, Server, fedavg.Client,
    arrays=WEIGHTS, cost=fedavg.cost, misfit_fleet=misfit_fleet,
)  # fmt: skip
