"""FedPer (Arivazhagan et al., 2019): a base that all devices average, and each device's own last layer.

(b_i, h_i) <- epochs of SGD on the base b and the head h_i together
b <- sum_i (N_i / N) b_i

As in FedRep, the base is all of the network below the head, with the statistics of its batch norms. FedRep trains
the head and the base one after the other. Here every batch trains both, with one optimizer. In the paper, more than
one of the last layers may stay on the device. Here it is the head alone.
"""

from __future__ import annotations

from protofleet.methods import fedrep
from protofleet.methods.contract.base import Method
from protofleet.methods.parts.local import LocalHyper
from protofleet.methods.parts.shared import SharingClient
from protofleet.methods.parts.weights import MEAN_OF_WEIGHTS, WEIGHTS


class Client(fedrep.Base, SharingClient):
    pass


METHOD = Method(
    "arXiv:1912.00818",
    LocalHyper,
    fedrep.Server,
    Client,
    reports="personal",
    private="the head",
    arrays=WEIGHTS,
    averaged=MEAN_OF_WEIGHTS,
    buffered=True,
    cost=fedrep.cost,
)
