"""FML (Shen et al., 2020: federated mutual learning): each device's own network and a shared one teach each other.

L_own = alpha CE(f(x), y) + (1 - alpha) KL(g(x) || f(x))     f the device's own, any network, which is never sent
L_g   = beta CE(g(x), y) + (1 - beta) KL(f(x) || g(x))       g the small shared network, `mutual` of the plan
g <- mean of the devices' g, with equal weights

Both losses use the same forward pass, and each loss changes only its own network: the scores of the other network are
a constant target in this loss. f is measured. Differences from HtFLlib:
  kl       "classes" is a sum over classes. HtFLlib has "elements", the default of torch: a mean over classes too.
  targets  "fixed". With HtFLlib's "moving", each loss also changes the network that is its target.
  clip     HtFLlib limits the norm of each network's gradient to 10: clip = 10.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from protofleet.methods.contract.averages import Averaged
from protofleet.methods.contract.base import Method
from protofleet.methods.contract.cost import Cost, Sizes, parameters
from protofleet.methods.parts.mutual import MutualClient, MutualHyper, MutualServer
from protofleet.methods.parts.weights import WEIGHTS
from protofleet.protocol.settings.bounds import Share


@dataclass(frozen=True)
class Hyper(MutualHyper):
    alpha: Share = 0.5
    """Weight of the labels in the loss of a device's own network; the rest is the weight of the shared network's
    scores.
    """
    beta: Share = 0.5
    """Weight of the labels in the loss of the shared network; the rest is the weight of the own network's scores."""


class Client(MutualClient):
    hyper: Hyper

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        h, own, shared = self.hyper, self.model(x), self.mutual(x)
        return (
            h.alpha * F.cross_entropy(own, y) + (1 - h.alpha) * self.divergence(shared, own)
            + h.beta * F.cross_entropy(shared, y) + (1 - h.beta) * self.divergence(own, shared)
        )  # fmt: skip


def cost(sizes: Sizes) -> Cost:
    shared = {"weights": parameters(sizes.mutual or sizes.model)}
    return Cost(up=shared, down=shared)


METHOD = Method(
    "arXiv:2006.16765", Hyper, MutualServer, Client,
    reports="personal", private="its own network", alike="nothing", mutual=True, arrays=WEIGHTS,
    averaged={"train": Averaged(arrays=WEIGHTS, by="devices")},
    cost=cost,
)  # fmt: skip
