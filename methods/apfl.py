"""APFL (Deng et al., 2020): each device predicts with a mixture of the global model and a model of its own.

u_i = alpha_i v_i + (1 - alpha_i) w_i                   w_i: trained from the received w, as in FedAvg
w_i <- w_i - lr grad L(w_i)                             for each batch; both steps start from the same values
v_i <- v_i - lr alpha_i grad L(u_i)
alpha_i <- alpha_i - lr <v_i - w_i, grad L(u_i)>        within 0 and 1; only with `adaptive`, at a round's first batch
w <- sum_i (N_i / N) w_i

v_i and alpha_i never leave their device. v_i starts from the first network of the run. After the last round, u_i
is measured with the last w. With alpha = 1, u_i has the same bits as SingleSet's model; with alpha = 0, v_i never
moves. The global model has the same bits as FedAvg's, except in networks with dropout: u_i draws random numbers too.

  weight decay  is a part of L. So in the step of v_i it is a multiple of alpha_i u_i.
  batch norms   Their weights and biases are mixed, but their statistics are not, because the variance of a mixture
                is not the mixture of the variances. The statistics of u_i are from its own batches, and stay on the
                device.
  other codes   PFLlib takes the gradient for v_i at v_i, and changes alpha_i at every batch. PFLlib and fluke replace
                v_i by u_i in every round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods import fedavg
from protofleet.methods.contract.base import Ask, Method, Payload, Samples
from protofleet.methods.maths.mixtures import mixed, moved_alpha
from protofleet.methods.nets.base import Net, frozen
from protofleet.methods.parts.local import LocalHyper, sgd, train
from protofleet.methods.parts.optimizers import SGD
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import MEAN_OF_WEIGHTS, WEIGHTS, load_weights, weights_of
from protofleet.protocol.settings.bounds import Share


@dataclass(frozen=True)
class Hyper(LocalHyper):
    alpha: Share = 0.5
    """Share of a device's own model in the mixture; with `adaptive`, the share at the start of the run."""
    adaptive: bool = False
    """If true, every device learns its own share, with one step in each round."""


class Client(fedavg.Client):
    """A client half whose `model` is u_i, `world` is w_i, and `own` is v_i."""

    hyper: Hyper

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        self.world, self.own = deepcopy(model), frozen(model)
        self.alpha = hyper.alpha

    def networks(self) -> Sequence[nn.Module]:
        return [self.model, self.world, self.own]

    def receive(self, payload: Payload) -> None:
        load_weights(self.world, payload)
        self.mix()

    def run(self, ask: Ask) -> Payload:
        both = nn.ModuleList([self.world, self.model])
        steps = [OwnSGD(self), sgd(self.world.parameters(), self.hyper)]
        train(
            both, self.data, self.objective, self.hyper, self.generator(ask.phase),
            optimizers=steps, clipped=list(both),
        )  # fmt: skip
        self.mix()
        return weights_of(self.world)

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        self.mix()
        return F.cross_entropy(self.world(x), y) + super().objective(x, y)

    @torch.no_grad()
    def mix(self) -> None:
        for v, w, u in self.parts():
            u.copy_(mixed(v, w, self.alpha))

    def parts(self) -> Iterator[tuple[nn.Parameter, nn.Parameter, nn.Parameter]]:
        """Yield the parameters that are trained, as they are in v_i, w_i and u_i."""
        trios = zip(*(network.parameters() for network in (self.own, self.world, self.model)), strict=True)
        return ((v, w, u) for v, w, u in trios if u.requires_grad)

    def state(self) -> Payload:
        learned = {name for name, _ in self.model.named_parameters()}
        statistics = set(self.model.state_dict()) - learned
        return {
            **snapshot(weights_of(self.own, "own", learned)),
            **snapshot(weights_of(self.model, "statistics", statistics)),
            "alpha": torch.tensor([self.alpha], dtype=torch.float64),
        }

    def restore(self, state: Payload) -> None:
        learned = {name for name, _ in self.model.named_parameters()}
        load_weights(self.own, state, "own", learned)
        load_weights(self.model, state, "statistics", set(self.model.state_dict()) - learned)
        self.alpha = float(state["alpha"])


class OwnSGD(SGD):
    """The SGD of v_i, whose gradients are alpha_i times the gradients at u_i. It also moves alpha_i.

    Its step must be the first one of a batch, because alpha_i moves by the values before all steps.
    """

    def __init__(self, half: Client) -> None:
        super().__init__([v for v, _, _ in half.parts()], half.hyper.lr, half.hyper.momentum)
        self.half, self.alpha_moves = half, half.hyper.adaptive

    def zero_grad(self) -> None:
        super().zero_grad()
        self.half.model.zero_grad()

    @torch.no_grad()
    def step(self) -> None:
        half, alpha, decay = self.half, self.half.alpha, self.half.hyper.weight_decay
        slopes = [(v, w, u.grad.add(u, alpha=decay)) for v, w, u in half.parts() if u.grad is not None]
        if self.alpha_moves:
            half.alpha, self.alpha_moves = moved_alpha(alpha, self.lr, slopes), False
        for v, _, slope in slopes:
            v.grad = alpha * slope
        super().step()


METHOD = Method(
    "arXiv:2003.13461",
    Hyper,
    fedavg.Server,
    Client,
    reports="personal",
    private="its own model and alpha",
    arrays=WEIGHTS,
    averaged=MEAN_OF_WEIGHTS,
    buffered=True,
    cost=fedavg.cost,
)
