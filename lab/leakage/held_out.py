"""Samples that were never sent: for the comparison with a device's samples, and as images that an attacker has.

A comparison is fair only if both sides have the same domain and the same mix of classes, and if no sample is on both
sides. Samples are compared by their content, because a source may hold the same image twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protofleet.edge_client.data.shard import TensorSamples
from protofleet.methods.contract.base import Samples

Indices = NDArray[np.int64]

LEAST_OTHERS: Final = 1_000  # Non-members that are taken first, because a rate of 1 % needs them.
MOST_OTHERS: Final = 2_000
MOST_AUXILIARY: Final = 1_500


@dataclass(frozen=True)
class NeverSent:
    """Samples of the device's domain that no device has used."""

    others: Samples  # Non-members, with the class mix of the device.
    auxiliary: Samples  # Samples that an attacker from A2 on has; none of them is among `others`.


def content_hashes(x: Tensor) -> list[bytes]:
    """Return the SHA-256 of the numbers of each sample."""
    return [hashlib.sha256(one.contiguous().numpy().tobytes()).digest() for one in x]


def unused(
    candidates: Sequence[bytes], used: Collection[bytes], twins: Mapping[bytes, Collection[bytes]]
) -> Indices:
    """Return the places of candidates that are not used, each content once.

    `twins` has the other forms of a content, such as the same digit on another background. A candidate with a used
    twin is left out too.
    """
    taken, found = set(used), list[int]()
    for place, content in enumerate(candidates):
        if content in taken or any(twin in used for twin in twins.get(content, ())):
            continue
        taken.add(content)
        found.append(place)
    return np.array(found, dtype=np.int64)


def same_mix(labels: Indices, counts: Sequence[int], most: int, rng: np.random.Generator) -> Indices:
    """Return the places of at most about `most` labels whose mix is that of `counts`, drawn at random."""
    held = {label: count for label, count in enumerate(counts) if count}
    places = {label: rng.permutation(np.flatnonzero(labels == label)) for label in held}
    ratio = min(
        [most / max(1, sum(held.values())), *(len(places[label]) / count for label, count in held.items())]
    )
    chosen = [places[label][: round(ratio * count)] for label, count in held.items()]
    return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *chosen]))


def never_sent(samples: Samples, held_out: Samples, seed: int = 0) -> NeverSent:
    """Divide the samples that no device has used into non-members and auxiliary samples."""
    hashes = content_hashes(held_out.x)
    fresh = unused(hashes, set(content_hashes(samples.x)), {})
    labels = held_out.y.numpy()[fresh].astype(np.int64)
    rng = np.random.default_rng(seed)
    counts = torch.bincount(samples.y).tolist()
    most = min(MOST_OTHERS, max(LEAST_OTHERS + len(counts), len(fresh) // 2))
    others = same_mix(labels, counts, most, rng)
    rest = rng.permutation(np.setdiff1d(np.arange(len(fresh)), others))[:MOST_AUXILIARY]
    return NeverSent(*(_chosen(held_out, fresh[places]) for places in (others, rest)))


def _chosen(samples: Samples, places: Indices) -> TensorSamples:
    found = torch.from_numpy(places)
    return TensorSamples(samples.x[found], samples.y[found])
