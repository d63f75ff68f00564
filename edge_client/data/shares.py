"""The division of data among clients. Each client makes all shares with the same seed, and uses its own share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protofleet.edge_client.data.domain import Indices, Labels
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.sampling import balanced, stratified
from protofleet.edge_client.data.stable_random import StableRandom

# A Dirichlet draw must give each client at least this many training samples. Other projects use the same number.
MIN_SAMPLES_IF_SKEWED: Final = 10
ATTEMPTS: Final = 100

Share = tuple[Indices, Indices]  # indices of the training samples and of the test samples
# The arguments are training labels, test labels, the number of shares, beta, and the source of random numbers.
Partitioner = Callable[[Labels, Labels, int, float, StableRandom], list[Share]]
Subsampler = Callable[[Labels, int, StableRandom], Indices]


@dataclass(frozen=True)
class Split:
    """A way to divide data among clients.

    `subsample` chooses some samples of a share and keeps the mix of classes that `partition` has made.
    """

    partition: Partitioner
    subsample: Subsampler


def same_mix(train: Labels, test: Labels, parts: int, beta: float, rng: StableRandom) -> list[Share]:
    """Return shares with the same mix of classes.

    Every client gets the whole test set of the domain, so every client measures the whole domain.
    """
    order = rng.permutation(len(train))
    order = order[np.argsort(train[order], kind="stable")]
    tested = np.arange(len(test))
    return [(order[i::parts], tested) for i in range(parts)]


def shuffled(train: Labels, test: Labels, parts: int, beta: float, rng: StableRandom) -> list[Share]:
    """Return shares of training samples, drawn at random from all classes; each client has the whole test set."""
    order, tested = rng.permutation(len(train)), np.arange(len(test))
    return [(order[i::parts], tested) for i in range(parts)]


def dirichlet(train: Labels, test: Labels, parts: int, beta: float, rng: StableRandom) -> list[Share]:
    """Divide each class among the clients in proportions drawn from Dirichlet(beta).

    The test samples of a class are divided in the same proportions, so that each client is tested on the mix of
    classes that it learns from. If any client gets too few samples, the proportions are drawn again. If there
    are no test samples, the test sets are empty.
    """
    classes = int(np.concatenate([train, test]).max()) + 1
    tested = min(len(test), 1)  # Smallest number of test samples of a client.
    sizes = [np.bincount(labels, minlength=classes) for labels in (train, test)]
    if len(train) >= MIN_SAMPLES_IF_SKEWED * parts and len(test) >= tested * parts:
        for _ in range(ATTEMPTS):
            cuts = _cumulative_shares(classes, parts, beta, rng)
            ends = [_partition_ends(cuts, counts) for counts in sizes]
            if _smallest(ends[0]) >= MIN_SAMPLES_IF_SKEWED and _smallest(ends[1]) >= tested:
                return list(
                    zip(_split_classes(train, ends[0], rng), _split_classes(test, ends[1], rng), strict=True)
                )
    raise DataError(
        f"{len(train)} training and {len(test)} test samples cannot be split among {parts} clients with beta "
        f"{beta}: in each of {ATTEMPTS} draws, a client had fewer than {MIN_SAMPLES_IF_SKEWED} training "
        "samples or no test samples; take a larger beta, fewer parts or more data"
    )


def _cumulative_shares(classes: int, parts: int, beta: float, rng: StableRandom) -> NDArray[np.float64]:
    """Return the cumulative shares of the clients in each class, [classes, parts].

    The entry [c, i] is the fraction of class c that the clients 0 to i get together.

    The last bit of a logarithm may differ between machines. This moves about one in 10^12 of the limits between two
    clients.
    """
    logs = np.array([[rng.log_gamma_draw(beta) for _ in range(parts)] for _ in range(classes)])
    weights = np.exp(logs - logs.max(1, keepdims=True))
    sums = weights.cumsum(1)
    return np.asarray(sums / sums[:, -1:], np.float64)


def _partition_ends(cuts: NDArray[np.float64], counts: Labels) -> Indices:
    """Return the end index of each client's samples within each class, [classes, parts]."""
    return np.floor(cuts * counts[:, None] + 0.5).astype(np.int64)


def _smallest(ends: Indices) -> int:
    return int(np.diff(ends, axis=1, prepend=0).sum(0).min())


def _split_classes(labels: Labels, ends: Indices, rng: StableRandom) -> list[Indices]:
    order = rng.permutation(len(labels))
    rows = [np.split(order[labels[order] == c], row[:-1]) for c, row in enumerate(ends)]
    return [np.concatenate(pieces) for pieces in zip(*rows, strict=True)]


SPLITS: Final[Mapping[str, Split]] = {
    "domain": Split(same_mix, balanced),
    "dirichlet": Split(dirichlet, stratified),
    "iid": Split(shuffled, stratified),
}
