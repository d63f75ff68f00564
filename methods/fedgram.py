"""FedGram: ridge regression on frozen features, from a rounded low-rank factor of each device's second moments.

device i   rows x = (phi, 1), n_i of them; Y is 1 for the sample's class and -1 for the others; C classes, W = D + 1
           F_i: the first r singular values of X_i / sqrt(n_i) times their directions; tail_i: the sum of the other
           squared ones / W; B_i = X_i'Y_i / n_i; rows of F_i and B_i' rounded at random to 8 bits, each with a scale
server     G = sum_i n_i (F_i'F_i + tail_i I), B = sum_i n_i B_i, head = (G + lam c I)^-1 B, sent in float16

phi is the network as the run begins. This method has no paper. Its relatives are Fed3R and AFL, which send G in full
precision. For features of norm sqrt(D), c is about W / 513. The arrays are means over samples, so that their norms do
not grow; the rounding is that of the sums. It is part of the method: named codecs do not round these arrays again.

  lam     By default, the one from 0.1 to 10,000 with the smallest squared error on devices that are left out of the
          head, one after another, or in 20 groups. If G_i is the part of device i in G, a head H has the error
          tr(H'G_i H) - 2 n_i tr(H'B_i) + n_i C, so devices send nothing for it. With one device, lam is 1.
  bits    8. With 4 bits, leaving devices out has chosen penalties that are far too large, also with exact errors, and
          has cost 5 to 8 points. A choice by validation samples, which 4 bits need, is not implemented.

  form    "factor" as above. With "gram", devices send X_i'X_i / n_i as it is, and no counts: B shows them. Only then
          can noise protect the samples ([dp]), because the sums of a release are linear in the samples, and a factor
          is not. With noise, G = sum_i n_i G_i has negative eigenvalues, which are set to 0. The penalty is then at
          least half of the largest eigenvalue of the noise alone, and `lam` is not chosen by leaving devices out.

With "factor", devices state their numbers of samples of each class when they join, as in TinyProto, because the
arrays have no counts. So the coordinator learns the label distribution, which B shows too. F is a sketch of the
samples: with r = 96, membership of a sample in a device's data could be read from it almost surely. The method saves
bytes, and hides nothing without noise. Random features and a personal head are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from protofleet.methods.contract.base import Method, Payload, Reply, seeded
from protofleet.methods.contract.cost import Cost, Numbers, Sizes
from protofleet.methods.contract.received import demand_arrays
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.grams import gram, symmetric_of, triangle_size, with_constant
from protofleet.methods.maths.left_out import Moments, factor, ridge
from protofleet.methods.nets.base import Net
from protofleet.methods.parts import whole_moments
from protofleet.methods.parts.class_sums import (
    ClassSums,
    ReleasedSums,
    noise_edge,
    problem_with_noisy_products,
    solvable,
)
from protofleet.methods.parts.feature_means import dtype_of, linear_rule
from protofleet.methods.parts.local import demand, demand_one_of
from protofleet.methods.parts.rounded_moments import (
    GRID,
    MomentsOf,
    chosen_penalty,
    moment_wants,
    moments,
    problem_with_moments,
    rounded_moments,
    total,
)
from protofleet.methods.parts.statistics import (
    StatisticsClient,
    StatisticsHyper,
    StatisticsServer,
    server_log,
    with_stated_counts,
)
from protofleet.protocol.settings.bounds import LARGEST_FACTOR, Within

LARGEST_HALF = 65_504.0  # The largest float16.
Form: TypeAlias = Literal["factor", "gram"]
Penalty = Annotated[float, Within(0, LARGEST_FACTOR, above=True)]


@dataclass(frozen=True)
class Hyper(StatisticsHyper):
    rank: Annotated[int, Within(1, 65_536)] = 24
    """Number of rows (r) of the factor that a device sends."""
    bits: Annotated[int, Within(1, 8)] = 8
    """Bits of a number of the factor; only 8 is possible, because fewer bits spoil the choice of `lam`."""
    lam: Penalty | None = None
    """Penalty (lambda) on the head; if left out, it is chosen by leaving devices out of the head, or with `[dp]` by
    the noise.
    """
    form: Form = "factor"
    """Form of the second moments, `factor` (of `rank` rows, rounded) or `gram` (all numbers, which `[dp]` needs)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("form", self.form, get_args(Form))
        reason = "with fewer bits, leaving devices out chooses penalties that are far too large"
        demand("bits", self.bits, self.bits == 8, f"8, because {reason}")

    def rows(self, width: int) -> int:
        """Return the number of rows of the factor, for samples of this width."""
        return min(self.rank, width)


class Server(StatisticsServer):
    hyper: Hyper

    def wants(self) -> Mapping[str, TensorSpec]:
        if self.hyper.form == "gram":
            return whole_moments.whole_wants(self.model)
        width = self.model.embedding_size + 1
        return moment_wants(self.hyper.rows(width), self.model.classes, width)

    def kept(self, replies: Iterable[Reply]) -> Iterable[Reply]:
        if self.hyper.form == "gram":
            return whole_moments.with_sent_counts(replies, self.hyper.least_samples)
        return with_stated_counts(replies, self.cohort, self.hyper.least_samples)

    def refusal(self, reply: Reply) -> str:
        width = self.model.embedding_size + 1
        most = width if self.hyper.normalised else math.inf
        if self.noise is not None:
            whole = symmetric_of(reply.payload["gram"].double(), width)
            return problem_with_noisy_products(whole, self.noise, float(reply.payload["samples"]), most)
        if self.hyper.form == "gram":
            return whole_moments.problem_with_whole(reply.payload, most)
        return problem_with_moments(reply.payload, math.sqrt(most))

    def solve(self, replies: Sequence[Reply]) -> Payload:
        labels = torch.cat([reply.payload["labels"] for reply in replies])
        if not (known := labels.bincount(minlength=self.model.classes) > 0).any():
            return {}
        whole = total(replies, self.of)
        if self.noise is None:
            head = ridge(whole, (self.hyper.lam or self.chosen(replies, whole)) * whole.unit)
        else:
            head = self.among_noise(whole, noise_edge(self.noise, len(whole.gram), len(replies)))
        head = head.T.clamp(-LARGEST_HALF, LARGEST_HALF)
        return {"head": torch.where(known.unsqueeze(1), head, 0.0).half()}

    @property
    def of(self) -> MomentsOf:
        """Return the function that computes the sums over the samples of an answer."""
        return whole_moments.moments if self.hyper.form == "gram" else moments

    def among_noise(self, whole: Moments, edge: float) -> Tensor:
        """Return the head from sums whose noise has eigenvalues up to `edge`."""
        more = max(0.0, (self.hyper.lam or 0.0) * whole.unit - edge / 2)
        return ridge(replace(whole, gram=solvable(whole.gram, edge)), more)

    def chosen(self, replies: Sequence[Reply], whole: Moments) -> float:
        if (best := chosen_penalty(replies, whole, self.of)) == GRID[-1]:
            server_log.warning(
                "round %d: leaving devices out chooses lam = %g, the largest of those that are tried; a larger "
                "method.lam, or a larger method.rank, may be better", self.number, best,
            )  # fmt: skip
        return best


class Client(StatisticsClient):
    hyper: Hyper

    def statistics(self, z: Tensor, y: Tensor) -> Payload:
        x, size = with_constant(z), max(1, len(z))
        is_class = y == torch.arange(self.model.classes, device=y.device).unsqueeze(1)
        signs = torch.where(is_class, 1.0, -1.0).to(x.dtype)
        if self.hyper.form == "gram":
            return whole_moments.whole_moments(self.model, gram(x), signs @ x, len(z))
        rows, tail = factor(x / math.sqrt(size), self.hyper.rows(x.shape[1]))
        # The rounding is the same in every round, so an answer that is computed again has the same bits.
        generator = seeded(self.seed, self.device, "rounding")
        return rounded_moments(rows, tail, signs @ x / size, len(z), generator)

    def receive(self, payload: Payload) -> None:
        if payload:
            shape = (self.model.classes, self.model.embedding_size + 1)
            demand_arrays(payload, {"head": TensorSpec(shape, "float16")})
            wide = {"head": payload["head"].to(dtype_of(self.model))}
            self.head = linear_rule(wide, self.model, bias=True, normalised=self.hyper.normalised)


def cost(sizes: Sizes, hyper: Hyper | None = None) -> Cost:
    """Return the cost of a round; the head goes down only in the last evaluation."""
    hyper, width = hyper or Hyper(), sizes.D + 1
    if hyper.form == "gram":
        up = {"gram": triangle_size(width), "targets": sizes.C * width, "samples": 1}
        return Cost(up, last={"head": Numbers(sizes.C * width, 2 * sizes.C * width)})
    rows = hyper.rows(width)
    factors, targets = (Numbers(count * width, count * width) for count in (rows, sizes.C))
    up = {"factor": factors, "targets": targets, "scales": rows + sizes.C, "tail": 1, "samples": 1}
    return Cost(up, last={"head": Numbers(sizes.C * width, 2 * sizes.C * width)})


def sums(hyper: Hyper, model: Net, clip: float) -> ReleasedSums:
    """Return the sums whose release with noise protects each sample; phi does not depend on the samples."""
    classes = ClassSums(clip, model.classes, model.embedding_size, products=True)
    return ReleasedSums(classes, partial(whole_moments.whole_moments_of_sums, model))


def variant(hyper: Hyper) -> Method:
    made = replace(METHOD, cost=partial(cost, hyper=hyper))
    if hyper.form == "factor":
        return made
    return replace(made, needs_counts=False, arrays=("gram", "targets", "samples", "head"), sums=sums)


METHOD = Method(
    "no paper", Hyper, Server, Client, needs_counts=True, sums_with='method.form = "gram"',
    arrays=("factor", "targets", "scales", "tail", "samples", "head"), cost=cost, variant=variant,
)  # fmt: skip
