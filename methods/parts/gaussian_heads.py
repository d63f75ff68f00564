"""The statistics, the head and the rule of each Gaussian classifier: naive Bayes, linear and quadratic discriminants.

A device sends its class means, and one more array, which each classifier defines: `sent`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch import Tensor, nn

from protofleet.methods.contract.base import Payload, Reply
from protofleet.methods.contract.liveness import report_progress
from protofleet.methods.contract.received import demand_arrays
from protofleet.methods.contract.wants import Dim
from protofleet.methods.maths.gaussians import (
    class_covariances,
    linear_discriminants,
    log_priors,
    pooled_covariance,
    shrunk,
    variances,
    whiteners,
)
from protofleet.methods.maths.grams import gram, symmetric_of, triangle_of, triangle_size, upper_of
from protofleet.methods.maths.means import class_means
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.feature_means import (
    ROOM,
    class_squares,
    linear_rule,
    own_squares,
    problem_with_squares,
    samples,
    spec,
    total_means,
)
from protofleet.methods.parts.rules import Gaussians
from protofleet.methods.parts.statistics import server_log

Solve: TypeAlias = Callable[[Sequence[Reply], Tensor, Tensor, float], Payload]


@dataclass(frozen=True)
class GaussianHead:
    """A Gaussian classifier on features of D numbers.

    In the functions, z [N, D] are features and y [N] their classes, and means [C, D] and counts [C] are those of the
    classes, on one device or over all devices.
    """

    sent: str  # Name of the array that a device sends in addition to its class means.
    shape: Callable[[int], tuple[Dim, ...]]  # Shape of this array for D.
    down: Callable[[int], Mapping[str, int]]  # Arrays of the head, and their numbers for each class, for D.
    describe: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # z, y, means, counts -> array `sent`
    solve: Solve  # replies, means, counts, shrinkage -> head; rows of unknown classes have no meaning.
    problem: Callable[
        [Payload, float], str
    ]  # answer, largest squared norm of a feature -> reason to refuse, or ""
    rule: Callable[[Payload, Net, bool], nn.Module]  # head, network, whether features are normalised -> rule


# Naive Bayes


def mean_squares(z: Tensor, y: Tensor, means: Tensor, counts: Tensor) -> Tensor:
    return class_means(z.square(), y, len(means))[0][counts > 0]


def naive_bayes(replies: Sequence[Reply], means: Tensor, counts: Tensor, shrinkage: float) -> Payload:
    squares, _ = total_means(replies, len(means), "squares")
    return {"means": means, "variances": variances(means, squares), "priors": log_priors(counts)}


def problem_with_mean_squares(answer: Payload, most: float) -> str:
    squares = answer["squares"].double()
    if bool((squares * (1 + ROOM) < answer["means"].double().square()).any()):
        gap = float((squares - answer["means"].double().square()).min())
        return f"squares has a number {-gap:g} below the square of the mean"
    if len(squares) and (total := float(squares.sum(dim=1).max())) > (limit := most * (1 + ROOM)):
        return f"squares has a row with a sum of {total:g}, above {limit:g}"
    return ""


def naive_bayes_rule(head: Payload, model: Net, normalised: bool) -> Gaussians:
    rows, width = model.classes, model.embedding_size
    demand_arrays(head, {"means": spec(model, rows, width), "variances": spec(model, rows, width),
                         "priors": spec(model, rows)})  # fmt: skip
    known = head["variances"][:, 0] > 0
    deviations = torch.where(known.unsqueeze(1), head["variances"], 1.0).sqrt()
    offsets = head["priors"] - deviations.log().sum(dim=1)
    return gaussians(head, 1 / deviations, offsets, known, normalised)


# Linear discriminants


def scatter(z: Tensor, y: Tensor, means: Tensor, counts: Tensor) -> Tensor:
    return triangle_of(gram(z - means[y]) / max(1, len(z)))


def linear(replies: Sequence[Reply], means: Tensor, counts: Tensor, shrinkage: float) -> Payload:
    covariance = shrunk(pooled_covariance(total_scatter(replies, means), counts), shrinkage)
    return {"head": linear_discriminants(means, covariance, counts)}


def total_scatter(replies: Sequence[Reply], means: Tensor) -> Tensor:
    """Return the scatter of all samples about the class means of all devices, [D, D]."""
    size = means.shape[1]
    found = means.new_zeros(size, size)
    for reply in replies:
        report_progress()
        each, gaps = samples(reply), reply.payload["means"].double() - means[reply.payload["labels"]]
        own = symmetric_of(reply.payload["scatter"].double(), size)
        found += each.sum() * own + class_squares(gaps, each)
    return found


def problem_with_scatter(answer: Payload, most: float) -> str:
    within = symmetric_of(answer["scatter"].double(), answer["means"].shape[1])
    return problem_with_squares("scatter", within, within, within + own_squares(answer), most)


def linear_discriminant_rule(head: Payload, model: Net, normalised: bool) -> nn.Module:
    return linear_rule(head, model, bias=True, normalised=normalised)


# Quadratic discriminants


def scatters(z: Tensor, y: Tensor, means: Tensor, counts: Tensor) -> Tensor:
    held = (counts > 0).nonzero().flatten().tolist()
    rows = [triangle_of(gram(z[y == label] - means[label]) / counts[label]) for label in held]
    return torch.stack(rows) if rows else z.new_zeros(0, triangle_size(z.shape[1]))


def quadratic(replies: Sequence[Reply], means: Tensor, counts: Tensor, shrinkage: float) -> Payload:
    covariances = shrunk(class_covariances(total_scatters(replies, means), counts), shrinkage)
    triangles = triangle_of(whiteners(covariances))
    return {"means": means, "whiteners": triangles, "priors": log_priors(counts)}


def warn_of_few(number: int, counts: Tensor, size: int) -> None:
    """Log the classes that have fewer samples in the fleet than the numbers of a feature, in round `number`."""
    if few := ((counts > 0) & (counts < size)).nonzero().flatten().tolist():
        server_log.warning(
            "round %d: the classes %s have fewer samples than the %d numbers of a feature, which is too few for "
            'method.head = "qda"; "lda" needs fewer', number, ", ".join(map(str, few)), size,
        )  # fmt: skip


def total_scatters(replies: Sequence[Reply], means: Tensor) -> Tensor:
    """Return the scatter of the samples of each class about its mean over all devices, [C, D, D]."""
    classes, size = means.shape
    found = means.new_zeros(classes, size, size)
    for reply in replies:
        rows = zip(
            reply.payload["labels"].tolist(), samples(reply), reply.payload["means"].double(),
            reply.payload["scatter"].double(), strict=True,
        )  # fmt: skip
        for label, each, mean, triangle in rows:
            report_progress()
            gap = mean - means[label]
            found[label] += each * (symmetric_of(triangle, size) + torch.outer(gap, gap))
    return found


def problem_with_scatters(answer: Payload, most: float) -> str:
    for mean, triangle in zip(answer["means"].double(), answer["scatter"].double(), strict=True):
        report_progress()
        within = symmetric_of(triangle, len(mean))
        whole = within + torch.outer(mean, mean)
        if problem := problem_with_squares("scatter", within, within, whole, most):
            return problem
    return ""


def quadratic_discriminant_rule(head: Payload, model: Net, normalised: bool) -> Gaussians:
    rows, width = model.classes, model.embedding_size
    demand_arrays(head, {"means": spec(model, rows, width), "priors": spec(model, rows),
                         "whiteners": spec(model, rows, triangle_size(width))})  # fmt: skip
    scales = upper_of(head["whiteners"].detach(), width)
    lengths = scales.diagonal(dim1=1, dim2=2)
    known = lengths[:, 0] > 0
    offsets = head["priors"] + torch.where(known.unsqueeze(1), lengths, 1.0).log().sum(dim=1)
    return gaussians(head, scales, offsets, known, normalised)


def gaussians(head: Payload, scales: Tensor, offsets: Tensor, known: Tensor, normalised: bool) -> Gaussians:
    found = torch.where(known, offsets, -math.inf)
    return Gaussians(head["means"], scales, found, normalised=normalised)


HEADS: Final[Mapping[str, GaussianHead]] = {
    "nb": GaussianHead(
        "squares", lambda size: ("held", size),
        lambda size: {"means": size, "variances": size, "priors": 1},
        mean_squares, naive_bayes, problem_with_mean_squares, naive_bayes_rule,
    ),
    "lda": GaussianHead(
        "scatter", lambda size: (triangle_size(size),), lambda size: {"head": size + 1},
        scatter, linear, problem_with_scatter, linear_discriminant_rule,
    ),
    "qda": GaussianHead(
        "scatter", lambda size: ("held", triangle_size(size)),
        lambda size: {"means": size, "whiteners": triangle_size(size), "priors": 1},
        scatters, quadratic, problem_with_scatters, quadratic_discriminant_rule,
    ),
}  # fmt: skip
