"""GH-OFL (Turazza et al., ICLR 2026): Gaussian classifiers on frozen features, from one message of each device.

mu_c, n_c: mean and number of the samples of class c over all devices; the prior is n_c / n
nb    var_c = q_c / n_c - mu_c^2           score log prior - sum (x - mu_c)^2 / (2 var_c) - sum log(var_c) / 2
lda   S = sum_c scatter_c / (n - classes)  score W_c . x - W_c . mu_c / 2 + log prior,  W_c = S^-1 mu_c
qda   S_c = scatter_c / (n_c - 1)          score as nb, with S_c in place of the variances; S where n_c < 2
lda and qda take (1 - a) S + a tr(S)/D I with a = shrinkage.

x is the network's feature as the run begins; nothing is trained. q_c is the sum of x^2, and scatter_c is the sum of
(x - mu_c)(x - mu_c)'. A device sends its scatter about its own class means, and the server adds the scatter of these
means about mu_c. The authors' code sends the sum of x x', which loses digits in float32. Every sum is sent as a mean
over the device's samples. Instead of S_c, the devices get the upper triangle U with S_c^-1 = U U'.

qda sends as much as weights, and needs many more samples of each class than a feature has numbers. Named codecs do
not round these arrays. If another codec rounds `scatter`, eigenvalues become negative, and the answer is not used.
FisherMix and Proto-Hyper of the paper, which train heads on drawn features, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal, TypeAlias, get_args

from torch import Tensor

from protofleet.methods.contract.base import Method, Payload, Reply
from protofleet.methods.contract.cost import Cost, Sizes, eight_bytes
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.means import class_means
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.feature_means import (
    dtype_of,
    held_mean_wants,
    held_means,
    holds_a_class,
    known_or_zero,
    spec,
    total_means,
)
from protofleet.methods.parts.gaussian_heads import HEADS, GaussianHead, warn_of_few
from protofleet.methods.parts.local import demand_one_of
from protofleet.methods.parts.statistics import (
    StatisticsClient,
    StatisticsHyper,
    StatisticsServer,
)
from protofleet.protocol.settings.bounds import PositiveBytes, Within

HELD_MEANS = ("means", "labels", "counts")
Head: TypeAlias = Literal["nb", "lda", "qda"]
# With a smaller share, a covariance may have no inverse if a device has sent eigenvalues slightly below zero.
Shrinkage: TypeAlias = Annotated[float, Within(0.001, 1)]


@dataclass(frozen=True)
class Hyper(StatisticsHyper):
    head: Head = "lda"
    """Classifier, `nb` (naive Bayes, with variances for each class), `lda` (one covariance for all classes) or
    `qda` (a covariance for each class).
    """
    shrinkage: Shrinkage = 0.05
    """Share of a sphere in the covariances of `lda` and `qda`; the paper's code has 0.05 and, for `qda`, 0.1."""
    most_bytes: PositiveBytes = 16 << 20
    """Largest size in bytes of the answer of a device with `qda`; a run that needs more does not start."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("head", self.head, get_args(Head))

    @property
    def classifier(self) -> GaussianHead:
        """Return the classifier of the setting `head`."""
        return HEADS[self.head]


class Server(StatisticsServer):
    hyper: Hyper

    def wants(self) -> Mapping[str, TensorSpec]:
        size, chosen = self.model.embedding_size, self.hyper.classifier
        return {
            **held_mean_wants(self.model, self.hyper, size),
            chosen.sent: spec(self.model, *chosen.shape(size)),
        }

    def refusal(self, reply: Reply) -> str:
        most = self.model.embedding_size if self.hyper.normalised else math.inf
        return self.hyper.classifier.problem(reply.payload, most)

    def solve(self, replies: Sequence[Reply]) -> Payload:
        if not holds_a_class(replies):
            return {}
        means, counts = total_means(replies, self.model.classes)
        if self.hyper.head == "qda":
            warn_of_few(self.number, counts, self.model.embedding_size)
        found = self.hyper.classifier.solve(replies, means, counts, self.hyper.shrinkage)
        dtype = dtype_of(self.model)
        return {name: known_or_zero(value, counts > 0).to(dtype) for name, value in found.items()}


class Client(StatisticsClient):
    hyper: Hyper

    def statistics(self, z: Tensor, y: Tensor) -> Payload:
        means, counts = class_means(z, y, self.model.classes)
        chosen = self.hyper.classifier
        found = chosen.describe(z, y, means, counts).to(dtype_of(self.model))
        return {chosen.sent: found, **held_means(self.model, means, counts)}

    def receive(self, payload: Payload) -> None:
        if payload:
            self.head = self.hyper.classifier.rule(payload, self.model, self.hyper.normalised)


def cost(sizes: Sizes, hyper: Hyper | None = None) -> Cost:
    """Return the cost of a round; the head goes down only in the last evaluation."""
    chosen, held = (hyper or Hyper()).classifier, eight_bytes(sizes.held)
    second = math.prod(sizes.held if dim == "held" else int(dim) for dim in chosen.shape(sizes.D))
    last = {name: sizes.C * width for name, width in chosen.down(sizes.D).items()}
    up = {chosen.sent: second, "means": sizes.held * sizes.D, "labels": held, "counts": held}
    return Cost(up, last=last)


def misfit_network(hyper: Hyper, model: Net) -> str:
    needed = sum(cost(Sizes(model, held=model.classes), hyper).bytes_up.values())
    if hyper.head != "qda" or needed <= hyper.most_bytes:
        return ""
    return (
        f'method.head is "{hyper.head}": an answer with {model.classes} classes and features of '
        f"{model.embedding_size} numbers has {needed:,} bytes, above method.most_bytes = {hyper.most_bytes:,}; "
        'raise it, set a smaller network.embedding_size, or set method.head = "lda"'
    )


def variant(hyper: Hyper) -> Method:
    chosen = hyper.classifier
    arrays = tuple(dict.fromkeys((chosen.sent, *HELD_MEANS, *chosen.down(1))))
    return replace(METHOD, arrays=arrays, cost=partial(cost, hyper=hyper))


METHOD = Method(
    "arXiv:2602.01186", Hyper, Server, Client,
    arrays=("scatter", *HELD_MEANS, "head"), cost=cost, variant=variant, misfit_network=misfit_network,
)  # fmt: skip
