"""FedBN (Li et al., ICLR 2021): FedAvg in which batch norms are not averaged.

w_l <- sum_i (N_i / N) w_i,l   for every layer l except batch norms             (alg. 1)

The weight, bias and statistics of a batch norm stay on their device. Batch norms are found by their type, because the
name of a layer may not show its type: "downsample.1" of a ResNet is a batch norm. Group and layer norms keep no
statistics, and are averaged. The authors' code has equal weights, 1/K.
"""

from __future__ import annotations

from protofleet.methods.contract.base import Method
from protofleet.methods.contract.cost import Cost, Sizes, parameters
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.local import LocalHyper
from protofleet.methods.parts.shared import SharedPart, SharingClient, SharingServer
from protofleet.methods.parts.weights import MEAN_OF_WEIGHTS, WEIGHTS, keys_of_norms


class WithoutNorms(SharedPart):
    def shared_keys(self) -> frozenset[str]:
        return shared_keys_of(self.model)


class Server(WithoutNorms, SharingServer):
    pass


class Client(WithoutNorms, SharingClient):
    pass


def shared_keys_of(model: Net) -> frozenset[str]:
    return frozenset(model.state_dict()) - keys_of_norms(model)


def cost(sizes: Sizes) -> Cost:
    """Return the cost: all parameters that FedAvg sends, except the batch norms' weights and biases.

    A batch norm has a weight and a bias for each of its channels.
    """
    shared = parameters(sizes.model, shared_keys_of(sizes.model))
    return Cost(up={"weights": shared}, down={"weights": shared})


METHOD = Method(
    "arXiv:2102.07623",
    LocalHyper,
    Server,
    Client,
    reports="personal",
    private="batch norms",
    arrays=WEIGHTS,
    averaged=MEAN_OF_WEIGHTS,
    buffered=True,
    cost=cost,
)
