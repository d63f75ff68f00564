"""Fed3R (Fani et al., ICML 2024): ridge regression on frozen features, from sums that are exact over devices.

G_i = sum x x', s_ic = sum of x over class c          (device i; x = (phi, 1), phi is the feature)
W_c = (sum_i G_i + lam I)^-1 sum_i s_ic               (server), score W_c . x

phi is the network as the run begins; nothing is trained. The spread of the samples over devices changes nothing.
Each device sends G_i / n_i, s_ic / n_ic and the counts n_ic, from which the server makes the sums.

  intercept   the last feature is 1, and its weight is the bias of the class. The penalty includes the bias, as in
              the authors' code. FedCOF's copy of Fed3R has no intercept.
  normalise   each class is divided by the length of its weights without its bias, as in the authors' code.
  penalty     "relative": lam times the mean of the diagonal of the sum of all G_i. The code has "absolute", 0.01.

AFL (He et al., CVPR 2025) gives the same head as intercept = false, normalise = false and lam = 0. There devices
send solved heads, and the server joins them by a recursion that takes each device's penalty back.

Named codecs do not round these arrays. If another codec rounds `gram`, eigenvalues become negative, and the answer
is not used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

import torch
from torch import Tensor

from protofleet.methods.contract.base import Method, Payload, Reply
from protofleet.methods.contract.cost import Cost, Sizes, eight_bytes
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.grams import (
    gram,
    symmetric_of,
    triangle_of,
    triangle_size,
    unit_classes,
    with_constant,
)
from protofleet.methods.maths.heads import Penalty, penalised, solved
from protofleet.methods.maths.means import class_means
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.class_sums import (
    ClassSums,
    NoisySums,
    ReleasedSums,
    noise_edge,
    problem_with_noisy_products,
    solvable,
)
from protofleet.methods.parts.feature_means import (
    class_squares,
    dtype_of,
    held_mean_wants,
    held_means,
    holds_a_class,
    linear_rule,
    own_squares,
    problem_with_squares,
    samples,
    spec,
    total_means,
)
from protofleet.methods.parts.local import demand_one_of
from protofleet.methods.parts.statistics import StatisticsClient, StatisticsHyper, StatisticsServer
from protofleet.protocol.settings.bounds import Weight

ARRAYS = ("gram", "targets", "labels", "counts", "head")


@dataclass(frozen=True)
class Hyper(StatisticsHyper):
    lam: Weight = 0.01
    """Penalty (lambda) on the weights of the head; 0 needs more samples in the fleet than numbers in a feature."""
    penalty: Penalty = "relative"
    """Unit of `lam`, `relative` (the mean of the diagonal of the Gram matrix) or `absolute` (the paper's 1)."""
    intercept: bool = True
    """If true, each class has a bias."""
    normalise: bool = True
    """If true, the weights of each class are scaled to length 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("penalty", self.penalty, get_args(Penalty))

    def width(self, size: int) -> int:
        """Return the count of numbers in a row of the head, for features of this size."""
        return size + self.intercept


class Server(StatisticsServer):
    hyper: Hyper

    @property
    def width(self) -> int:
        return self.hyper.width(self.model.embedding_size)

    def wants(self) -> Mapping[str, TensorSpec]:
        triangle = spec(self.model, triangle_size(self.width))
        return {**held_mean_wants(self.model, self.hyper, self.width, "targets"), "gram": triangle}

    def refusal(self, reply: Reply) -> str:
        whole = symmetric_of(reply.payload["gram"].double(), self.width)
        most = self.width if self.hyper.normalised else math.inf
        if self.noise is not None:
            return problem_with_noisy_products(whole, self.noise, float(samples(reply).sum()), most)
        within = whole - own_squares(reply.payload, "targets")
        return problem_with_squares("gram", whole, within, whole, most)

    def solve(self, replies: Sequence[Reply]) -> Payload:
        if not holds_a_class(replies):
            return {}
        means, counts = total_means(replies, self.model.classes, "targets")
        G = torch.zeros(self.width, self.width, dtype=torch.float64, device=means.device)
        for reply in replies:
            G += samples(reply).sum() * symmetric_of(reply.payload["gram"].double(), self.width)
        if self.noise is not None:
            G = solvable(G, noise_edge(self.noise, self.width, len(replies)))
        targets = counts.unsqueeze(1) * means
        head = solved(penalised(G, self.hyper.lam, self.hyper.penalty), targets.T).T
        head = unit_classes(head, self.model.embedding_size) if self.hyper.normalise else head
        return {"head": head.to(dtype_of(self.model))}

    def too_few(self, samples: float) -> str:
        if self.hyper.lam > 0 or samples >= self.width:
            return ""
        intercept = " and the intercept" if self.hyper.intercept else ""
        return (
            f"fed3r: method.lam is 0, and the devices have {samples:g} samples, fewer than the "
            f"{self.model.embedding_size} features{intercept}; set method.lam above 0"
        )


class Client(StatisticsClient):
    hyper: Hyper

    def statistics(self, z: Tensor, y: Tensor) -> Payload:
        x = with_constant(z) if self.hyper.intercept else z
        means, counts = class_means(x, y, self.model.classes)
        mean_gram = triangle_of(gram(x) / max(1, len(x))).to(dtype_of(self.model))
        return {"gram": mean_gram, **held_means(self.model, means, counts, "targets")}

    def receive(self, payload: Payload) -> None:
        if payload:
            hyper = self.hyper
            self.head = linear_rule(payload, self.model, bias=hyper.intercept, normalised=hyper.normalised)


def sums(hyper: Hyper, model: Net, clip: float) -> ReleasedSums:
    """Return the sums whose release with noise protects each sample; phi does not depend on the samples."""
    size = model.embedding_size
    longest = min(clip, math.sqrt(size)) if hyper.normalised else clip
    dtype = dtype_of(model)

    def arrays(noisy: NoisySums, samples: int) -> dict[str, Tensor]:
        means, counts = noisy.means(hyper.least_samples, samples, longest)
        assert noisy.products is not None, "the released sums have products"
        x, total = with_constant(means) if hyper.intercept else means, counts.sum().clamp(min=1)
        # The products with the constant feature are the sums of the features, so they follow from the means.
        mean_gram = class_squares(x, counts.double() / total)
        mean_gram[:size, :size] = noisy.products / total
        return {"gram": triangle_of(mean_gram).to(dtype), **held_means(model, x, counts, "targets")}

    return ReleasedSums(ClassSums(clip, model.classes, size, products=True), arrays)


def cost(sizes: Sizes, hyper: Hyper | None = None) -> Cost:
    """Return the cost of a round; the head goes down only in the last evaluation."""
    width, held = (hyper or Hyper()).width(sizes.D), eight_bytes(sizes.held)
    up = {"gram": triangle_size(width), "targets": sizes.held * width, "labels": held, "counts": held}
    return Cost(up, last={"head": sizes.C * width})


def variant(hyper: Hyper) -> Method:
    return replace(METHOD, cost=partial(cost, hyper=hyper))


METHOD = Method(
    "arXiv:2406.01116", Hyper, Server, Client, arrays=ARRAYS, cost=cost, sums=sums, variant=variant
)
