"""Accuracy and loss, computed from the scores of a method's rules in the same way for every method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods.contract.base import ClientHalf, Samples
from protofleet.methods.contract.own_metrics import Metric, measured

BATCH: Final = 256  # samples whose losses are added in one step
# The network computes scores for about this number of samples in one step. With a whole batch, the outputs of the
# layers would take most of a small device's memory: 25 MB for cnn23. A batch is divided evenly, so that no piece has
# only a few samples. With only a few samples, torch would multiply matrices in another order, which changes the last
# bits of the result.
PIECE: Final = 64


class Splits(Protocol):
    """The data of one device: for training, for validation and for the test."""

    @property
    def domain(self) -> str: ...
    @property
    def classes(self) -> int: ...
    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the classes in the order of their labels; empty if the names are unknown."""
        ...

    @property
    def train(self) -> Samples: ...
    @property
    def validation(self) -> Samples: ...
    @property
    def test(self) -> Samples: ...


def evaluate(
    half: ClientHalf, data: Splits, view: str, confusion: Tensor | None = None,
    metrics: Mapping[str, Metric] | None = None,
) -> dict[str, float]:  # fmt: skip
    """Return `accuracy.<split>.<view>` and `loss.<split>.<view>` for the present model of the half.

    The main rule for predictions has the name `view`. If the half has other rules, each of them has its own view, for
    example "personal-classifier" in addition to "personal". If the matrix `confusion` is given, `evaluate` adds the
    test samples to this matrix, by their class and by the class that the main rule predicts. `metrics` are the run's
    own metrics; their values are returned as `<metric>.<split>.<view>`.
    """
    others = {f"{view}-{name}": rule for name, rule in half.other_rules().items()}
    rules = {view: half.rule(), **others}
    found: dict[str, float] = {"samples.test": float(len(data.test.y))}
    for split, samples in {"test": data.test, "validation": data.validation}.items():
        if not len(samples.y):
            continue
        for name, rule in rules.items():
            wanted = confusion if (split, name) == ("test", view) else None
            scored: list[Tensor] | None = [] if metrics else None
            accuracy, loss = measure(half, rule, samples, wanted, scored)
            found[f"accuracy.{split}.{name}"], found[f"loss.{split}.{name}"] = accuracy, loss
            if metrics and scored:
                own = measured(metrics, torch.cat(scored), samples.y)
                found |= {f"{metric}.{split}.{name}": value for metric, value in own.items()}
    return found


@torch.no_grad()
def measure(
    half: ClientHalf, rule: nn.Module, samples: Samples, confusion: Tensor | None = None,
    scored: list[Tensor] | None = None,
) -> tuple[float, float]:  # fmt: skip
    """Return the accuracy and the mean loss of one rule; append all scores to the list `scored` if it is given."""
    mode = half.model.training
    half.model.eval()
    right, loss = 0, 0.0
    for start in range(0, len(samples.y), BATCH):
        x, y = samples.x[start : start + BATCH], samples.y[start : start + BATCH]
        pieces = x.tensor_split(max(1, len(x) // PIECE))
        scores = torch.cat([half.scores(piece.contiguous(), rule) for piece in pieces])
        predicted = scores.argmax(1)
        if scored is not None:
            scored.append(scores)
        right += int((predicted == y).sum())
        if confusion is not None:
            classes = len(confusion)
            counts = (y * classes + predicted).bincount(minlength=classes * classes)
            confusion += counts.view(classes, classes).to(confusion)
        loss += float(F.cross_entropy(scores, y, reduction="sum"))
    half.model.train(mode)
    return right / len(samples.y), loss / len(samples.y)
