"""How clients share data. All of them draw the same shares and each takes its own, without a word between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protofleet.edge_client.data.domain import Indices, Labels
from protofleet.edge_client.data.draws import Draws
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.sampling import balanced, stratified

LEAST_SKEWED: Final = 10  # training samples that a Dirichlet draw must leave everyone, as is the custom
ATTEMPTS: Final = 100

Share = tuple[Indices, Indices]  # of the training samples and of the test samples
Deal = Callable[[Labels, Labels, int, float, Draws], list[Share]]  # train, test, parts, beta, draws

Thin = Callable[[Labels, int, Draws], Indices]


@dataclass(frozen=True)
class Split:
    """`thin` cuts a share down to so many samples: a skew that was asked for is kept."""

    deal: Deal
    thin: Thin


def same_mix(train: Labels, test: Labels, parts: int, beta: float, draws: Draws) -> list[Share]:
    """Every share has the same mix of classes. All have the whole test set: it measures the domain."""
    order = draws.order(len(train))
    order = order[np.argsort(train[order], kind="stable")]
    return [(order[i::parts], np.arange(len(test))) for i in range(parts)]


def shuffled(train: Labels, test: Labels, parts: int, beta: float, draws: Draws) -> list[Share]:
    """Shares drawn without a look at the class. All have the whole test set."""
    order = draws.order(len(train))
    return [(order[i::parts], np.arange(len(test))) for i in range(parts)]


def dirichlet(train: Labels, test: Labels, parts: int, beta: float, draws: Draws) -> list[Share]:
    """Each class goes to the clients in proportions drawn from Dirichlet(beta), and its test samples in the
    same ones: everybody is tested on what it learns from. A draw that starves somebody is drawn again. Without
    test samples nobody gets any."""
    classes = int(np.concatenate([train, test]).max()) + 1
    tested = min(len(test), 1)  # at least, for everybody
    sizes = [np.bincount(labels, minlength=classes) for labels in (train, test)]
    if len(train) >= LEAST_SKEWED * parts and len(test) >= tested * parts:
        for _ in range(ATTEMPTS):
            cuts = _cuts(classes, parts, beta, draws)
            ends = [_ends(cuts, counts) for counts in sizes]
            if _least(ends[0]) >= LEAST_SKEWED and _least(ends[1]) >= tested:
                return list(zip(_cut(train, ends[0], draws), _cut(test, ends[1], draws), strict=True))
    raise DataError(
        f"{len(train)} training and {len(test)} test samples cannot be dealt to {parts} clients with beta "
        f"{beta}: in {ATTEMPTS} draws somebody always had fewer than {LEAST_SKEWED} for training or none for "
        "the test; take a larger beta, fewer parts or more data"
    )


def _cuts(classes: int, parts: int, beta: float, draws: Draws) -> NDArray[np.float64]:
    """[classes, parts]: the share of clients 0 .. i together. A logarithm's last bit, which may differ between
    machines, would move a sample once in some 10^12 cuts."""
    logs = np.array([[draws.log_gamma_draw(beta) for _ in range(parts)] for _ in range(classes)])
    weights = np.exp(logs - logs.max(1, keepdims=True))
    sums = weights.cumsum(1)
    return np.asarray(sums / sums[:, -1:], np.float64)


def _ends(cuts: NDArray[np.float64], counts: Labels) -> Indices:
    """[classes, parts]: where each client's samples end in the row of its class."""
    return np.floor(cuts * counts[:, None] + 0.5).astype(np.int64)


def _least(ends: Indices) -> int:
    return int(np.diff(ends, axis=1, prepend=0).sum(0).min())


def _cut(labels: Labels, ends: Indices, draws: Draws) -> list[Indices]:
    order = draws.order(len(labels))
    rows = [np.split(order[labels[order] == c], row[:-1]) for c, row in enumerate(ends)]
    return [np.concatenate(pieces) for pieces in zip(*rows, strict=True)]


SPLITS: Final[Mapping[str, Split]] = {
    "domain": Split(same_mix, balanced),
    "dirichlet": Split(dirichlet, stratified),
    "iid": Split(shuffled, stratified),
}
