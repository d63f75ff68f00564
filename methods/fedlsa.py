"""FedLSA (Fu et al., AAAI 2025): the server learns semantic anchors; devices train unit features towards them.

Client: h = nor(varphi(psi(x))), logits phi(h)                                  (alg. 1, lines 4-6)
        L_HC  = CE(phi(h), y) + lam * L_COM(h, y, A)                            (eqs. 8-10)
Server: w <- FedAvg, then E_s steps on R and Theta with phi_glo frozen:
        L_LSA = L_ACE(phi_glo, A) + alpha * L_SEP(A),   A = nor(Theta(R))       (eqs. 3-5)

psi, varphi and phi are the features, the projector and the head of the network; phi_glo is the averaged head.
nor scales a vector to length 1. E_s is server_epochs. R and Theta are trained only to make the anchors A.

Choices where the paper cannot be followed:
  eq. 4     prints tau outside exp, where tau has no influence on the gradient. We put tau inside exp.
            separation="paper" leaves it outside.
  anchors   are unit vectors of R^L, the space of h: eq. 6 uses them as mean directions, and L_SEP has no lower
            bound otherwise. R is [C, I], Theta I -> I -> L with ReLU.
  round 1   in alg. 1 the devices work before the server has made anchors. We train anchors on the first classifier
            before round 1 ("pretrain"), or leave L_COM out of round 1 ("skip").
  ablation  com="l2" is the "L2-norm" of Tables 4 and 5: mean |h - a_y|^2. com="none" with use_sep=false is
            FedAvg on h.
The paper does not print the two learning rates. The server uses plain SGD, as in lines 23-24: 500 steps at 0.1 give
the same anchors as steps at 0.5 or 1.0 (10 classes: mean cosine -1/9, L_ACE as low as phi's row norms allow).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods import fedavg
from protofleet.methods.contract.base import Method, Payload, Round, Samples, seeded
from protofleet.methods.contract.cost import Cost, Sizes
from protofleet.methods.contract.received import demand_arrays
from protofleet.methods.maths.anchors import anchor_cross_entropy, compactness, separation
from protofleet.methods.maths.geometry import unit
from protofleet.methods.nets.base import Net, frozen, initialised_from
from protofleet.methods.parts.local import LocalHyper, demand_one_of
from protofleet.methods.parts.optimizers import SGD
from protofleet.methods.parts.prototypes import margin_figures, table_specs
from protofleet.methods.parts.rules import Classifier, Nearest
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import (
    MEAN_OF_WEIGHTS,
    WEIGHTS,
    load_weights,
    torch_device_of,
    weights_of,
)
from protofleet.protocol.settings.bounds import Epochs, Rate, Temperature, Weight

FirstRound = Literal["pretrain", "skip"]
Separation = Literal["inside", "paper"]
Compactness = Literal["vmf", "l2", "none"]


@dataclass(frozen=True)
class Hyper(LocalHyper):
    """The settings, with defaults for Digits.

    For Office-Caltech and PACS, set alpha = 0.4, lam = 0.7 and tau = 0.2 (a guess from fig. 5).
    """

    tau: Temperature = 0.1
    """Temperature of the contrast with the anchors and of their separation (0.2 for Office-Caltech and PACS is a
    guess from fig. 5).
    """
    alpha: Weight = 0.02
    """Weight of the separation loss L_SEP on the server (0.4 for Office-Caltech and PACS)."""
    lam: Weight = 0.1
    """Weight (lambda) of the compactness loss L_COM on the device (0.7 for Office-Caltech and PACS); 0 means off."""
    server_epochs: Epochs = 500
    """Number of training steps of the anchors on the server in a round."""
    server_lr: Rate = 0.1
    """Learning rate of SGD for the anchors."""
    anchors_first_round: FirstRound = "pretrain"
    """Anchors of round 1, `pretrain` (trained on the first classifier) or `skip` (round 1 has no L_COM)."""
    separation: Separation = "inside"
    """Place of tau in L_SEP, `inside` (in the exponential) or `paper` (as in the paper, where tau has no effect on
    gradients).
    """
    use_sep: bool = True
    """If false, the anchors are trained without L_SEP."""
    com: Compactness = "vmf"
    """Form of L_COM, `vmf` (the paper's), `l2` (mean squared distance to the anchor) or `none`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("anchors_first_round", self.anchors_first_round, get_args(FirstRound))
        demand_one_of("separation", self.separation, get_args(Separation))
        demand_one_of("com", self.com, get_args(Compactness))


class Learner(nn.Module):
    """The network that makes the anchors: A = nor(Theta(R)), [C, L]."""

    def __init__(self, model: Net) -> None:
        super().__init__()
        I, L = model.feature_size, model.embedding_size  # noqa: E741 - the paper's symbols
        self.R = nn.Parameter(torch.randn(model.classes, I))
        self.Theta = nn.Sequential(nn.Linear(I, I), nn.ReLU(), nn.Linear(I, L))

    def forward(self) -> Tensor:
        return unit(self.Theta(self.R))


class Server(fedavg.Server):
    hyper: Hyper
    anchors: Tensor | None = None  # [C, L]

    def __init__(self, model: Net, hyper: Hyper, seed: int) -> None:
        super().__init__(model, hyper, seed)
        with initialised_from(seeded(seed, "server", "anchors").initial_seed()):
            self.learner = Learner(model)
        self.learner.to(torch_device_of(model))

    def round(self) -> Round:
        if self.anchors is None and self.hyper.anchors_first_round == "pretrain":
            self.fit_anchors()
        yield from super().round()
        self.fit_anchors()

    def fit_anchors(self) -> None:
        """Train the anchors.

        An epoch is one step, because the C anchors are one batch. R and Theta continue from the last round.
        """
        phi_glo = frozen(self.model.head)
        optimizer = SGD(self.learner.parameters(), lr=self.hyper.server_lr)
        for _ in range(self.hyper.server_epochs):
            optimizer.zero_grad()
            torch.autograd.backward(self.anchor_loss(phi_glo, self.learner()))
            optimizer.step()
        self.anchors = self.learner().detach()

    def anchor_loss(self, phi_glo: nn.Module, anchors: Tensor) -> Tensor:
        loss = anchor_cross_entropy(phi_glo, anchors)
        if not self.hyper.use_sep:
            return loss
        inside = self.hyper.separation == "inside"
        return loss + self.hyper.alpha * separation(anchors, self.hyper.tau, tau_inside=inside)

    def payload(self) -> Payload:
        return {**super().payload(), **self.known_anchors()}

    def known_anchors(self) -> Payload:
        return {} if self.anchors is None else {"anchors": self.anchors}

    def state(self) -> Payload:
        return {**super().state(), **snapshot(weights_of(self.learner, "learner")), **self.known_anchors()}

    def restore(self, state: Payload) -> None:
        super().restore(state)
        load_weights(self.learner, state, "learner")
        self.anchors = state["anchors"].to(torch_device_of(self.model)) if "anchors" in state else None

    def monitor(self) -> Mapping[str, float]:
        return {} if self.anchors is None else margin_figures(self.anchors)


class Client(fedavg.Client):
    hyper: Hyper

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        self.anchors: Tensor | None = None

    def receive(self, payload: Payload) -> None:
        super().receive(payload)
        if "anchors" in payload:
            demand_arrays(payload, table_specs(self.model, "anchors"))
            self.anchors = payload["anchors"].detach()

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.sphere(x)
        loss = F.cross_entropy(self.model.head(h), y)
        if self.anchors is None:
            return loss
        return loss + self.hyper.lam * COM[self.hyper.com](h, y, self.anchors, self.hyper.tau)

    def rule(self) -> nn.Module:
        return Classifier(self.model.head, sphere=True)

    def other_rules(self) -> Mapping[str, nn.Module]:
        if self.anchors is None:
            return {}
        every = torch.arange(self.model.classes, device=self.anchors.device)
        return {"anchor": Nearest(self.anchors, every, self.model.classes, "cosine")}

    def embedding(self, x: Tensor) -> Tensor:
        return self.sphere(x)

    def sphere(self, x: Tensor) -> Tensor:
        """Return the unit features h [B, L] of samples."""
        return unit(self.model.embed(x))


def squared_gap(h: Tensor, y: Tensor, anchors: Tensor, tau: float) -> Tensor:
    return (h - anchors[y]).square().sum(dim=1).mean()


def no_compactness(h: Tensor, y: Tensor, anchors: Tensor, tau: float) -> Tensor:
    return h.new_zeros(())


COM: Mapping[str, Callable[[Tensor, Tensor, Tensor, float], Tensor]] = {
    "vmf": compactness,
    "l2": squared_gap,
    "none": no_compactness,
}


def cost(sizes: Sizes) -> Cost:
    anchors = sizes.C * sizes.D
    return Cost(up={"weights": sizes.weights}, down={"weights": sizes.weights, "anchors": anchors})


METHOD = Method(
    "Fu et al., AAAI 2025",
    Hyper,
    Server,
    Client,
    other_rules=("anchor",),
    arrays=(*WEIGHTS, "anchors"),
    averaged=MEAN_OF_WEIGHTS,
    buffered=True,
    cost=cost,
)
