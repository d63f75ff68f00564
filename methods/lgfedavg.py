"""LG-FedAvg (Liang et al., 2020), as HtFLlib has it: all of a model is trained, and only the heads are averaged.

head <- sum_i (N_i / N) head_i                                                  (alg. 1)

The representation below the head stays on its device, so devices may have different networks with the same embedding
size. The authors share the upper two or three layers, and begin with a model that FedAvg has trained. Here only the
head is shared, because it is the only part that different networks have in common. So no trained model is needed.
"""

from __future__ import annotations

from protofleet.methods.contract.base import Method
from protofleet.methods.contract.cost import Cost, Sizes, parameters
from protofleet.methods.parts.local import LocalHyper
from protofleet.methods.parts.shared import SharedHead, SharingClient, SharingServer
from protofleet.methods.parts.weights import MEAN_OF_WEIGHTS, WEIGHTS


class Server(SharedHead, SharingServer):
    pass


class Client(SharedHead, SharingClient):
    pass


def cost(sizes: Sizes) -> Cost:
    head = {"weights": parameters(sizes.model.head)}
    return Cost(up=head, down=head)


METHOD = Method(
    "arXiv:2001.01523",
    LocalHyper,
    Server,
    Client,
    reports="personal",
    alike="head",
    private="the network below the head",
    arrays=WEIGHTS,
    averaged=MEAN_OF_WEIGHTS,
    buffered=True,
    cost=cost,
)
