"""The arrays in which a device sends its second moments as a whole, and what they add up to.

All arrays are means over the samples of the device. W is the width of a sample, whose last number is 1, and C the
number of classes. The targets are 1 for the class of the sample and -1 for the others, so the products with the last
number of the samples show the counts of the classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from protofleet.methods.contract.base import Payload, Reply
from protofleet.methods.contract.liveness import report_progress
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.grams import symmetric_of, triangle_of, triangle_size
from protofleet.methods.maths.left_out import Moments
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.class_sums import NoisySums
from protofleet.methods.parts.feature_means import ROOM, dtype_of, problem_with_squares, spec


def whole_wants(model: Net) -> Mapping[str, TensorSpec]:
    """Return the specifications of `whole_moments`."""
    width = model.embedding_size + 1
    return {
        "gram": spec(model, triangle_size(width)),
        "targets": spec(model, model.classes, width),
        "samples": TensorSpec((1,), "int32", low=0, of_examples=True, capped=False),
    }


def whole_moments(model: Net, gram: Tensor, targets: Tensor, samples: int) -> dict[str, Tensor]:
    """Return the arrays for sums of products [W, W] and of products with the targets [C, W]."""
    size, dtype = max(1, samples), dtype_of(model)
    return {
        "gram": triangle_of(gram / size).to(dtype), "targets": (targets / size).to(dtype),
        "samples": torch.tensor([samples], dtype=torch.int32),
    }  # fmt: skip


def whole_moments_of_sums(model: Net, noisy: NoisySums, samples: int) -> dict[str, Tensor]:
    """Return the arrays for sums with noise. They are linear in the sums, so the arrays of devices can be added."""
    assert noisy.products is not None, "the released sums have products"
    # The constant feature is 1, so its products are sums and counts. The number of samples is no secret.
    rows = torch.cat([noisy.sums, noisy.counts.unsqueeze(1)], dim=1)
    total = torch.cat([noisy.sums.sum(dim=0), noisy.counts.new_tensor([samples])])
    gram = torch.cat([torch.cat([noisy.products, total[:-1].unsqueeze(0)]), total.unsqueeze(1)], dim=1)
    return whole_moments(model, gram, 2 * rows - total, samples)


def moments(reply: Reply) -> Moments:
    """Return the sums over the samples of a device, of which no more count than the examples of the Reply."""
    report_progress()
    payload = reply.payload
    targets, samples = payload["targets"].double(), float(min(int(payload["samples"]), reply.examples))
    gram = symmetric_of(payload["gram"].double(), targets.shape[1])
    return Moments(samples * gram, samples * targets.T, samples)


def problem_with_whole(payload: Payload, most: float) -> str:
    """Return why no samples of a squared length of at most `most` can have these arrays; "" if they can."""
    gram = symmetric_of(payload["gram"].double(), payload["targets"].shape[1])
    if problem := problem_with_squares("gram", gram, gram, gram, most):
        return problem
    # The square of a mean of x y, with y of 1 or -1, is at most the mean of the squares of x.
    limits = gram.diagonal().clamp(min=0).sqrt() + ROOM
    beyond = (payload["targets"].double().abs() - limits).amax(dim=0)
    place = int(beyond.argmax())
    largest = float(payload["targets"][:, place].abs().max())
    return f"targets has {largest:g}, above {float(limits[place]):g}" if beyond[place] > 0 else ""


def with_sent_counts(replies: Iterable[Reply], least: int) -> Iterator[Reply]:
    """Add to each answer the arrays `labels` and `counts`, without classes with fewer than `least` samples."""
    for reply in replies:
        targets, samples = reply.payload["targets"].double(), int(reply.payload["samples"])
        counts = ((targets[:, -1] + 1) / 2 * samples).round().clamp(0, samples).long()
        held = counts >= max(1, least)
        arrays = {"labels": held.nonzero().squeeze(1), "counts": counts[held]}
        yield replace(reply, payload={**reply.payload, **arrays})
