"""Accuracy and loss, the same for every method, through its rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods.contract.base import ClientHalf, Samples
from protofleet.methods.contract.own_metrics import Metric, measured

BATCH: Final = 256  # whose losses are summed at once
# Fewer pass the network at once, as what its layers make would be most of a small device's memory: 25 MB of cnn23's.
# None passes with few others: for those, matrices are multiplied in another order, which changes the last bits.
PIECE: Final = 64


class Splits(Protocol):
    """Data of one device: what it learns from, what it chooses by, what it reports on."""

    @property
    def domain(self) -> str: ...
    @property
    def classes(self) -> int: ...
    @property
    def names(self) -> tuple[str, ...]:
        """Of the classes, in the order of their labels; none: nobody can tell."""
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
    """`accuracy.<split>.<view>` and `loss.<split>.<view>` of what the half predicts now.

    The half's other rules are views of their own: "personal-classifier" beside "personal". In `confusion` is counted
    what `view` takes the test samples of each class for. `metrics` are the run's own: `<metric>.<split>.<view>`.
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
    """All scores are put into `scored`, where there is one."""
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
