"""Accuracy and loss, the same for every method, through `predict`."""

from __future__ import annotations

from typing import Final, Protocol

import torch
import torch.nn.functional as F

from methods.base import ClientHalf, Samples

BATCH: Final = 256


class Splits(Protocol):
    """Data of one device: what it learns from, what it chooses by, what it reports on."""

    @property
    def domain(self) -> str: ...
    @property
    def classes(self) -> int: ...
    @property
    def train(self) -> Samples: ...
    @property
    def validation(self) -> Samples: ...
    @property
    def test(self) -> Samples: ...


def evaluate(half: ClientHalf, data: Splits, view: str) -> dict[str, float]:
    """`accuracy.<split>.<view>` and `loss.<split>.<view>` of what the half predicts now."""
    found: dict[str, float] = {}
    for split, samples in {"test": data.test, "validation": data.validation}.items():
        if len(samples.y):
            accuracy, loss = _measure(half, samples)
            found[f"accuracy.{split}.{view}"], found[f"loss.{split}.{view}"] = accuracy, loss
    return found


@torch.no_grad()
def _measure(half: ClientHalf, samples: Samples) -> tuple[float, float]:
    mode = half.model.training
    half.model.eval()
    right, loss = 0, 0.0
    for start in range(0, len(samples.y), BATCH):
        x, y = samples.x[start : start + BATCH], samples.y[start : start + BATCH]
        scores = half.predict(x)
        right += int((scores.argmax(1) == y).sum())
        loss += float(F.cross_entropy(scores, y, reduction="sum"))
    half.model.train(mode)
    return right / len(samples.y), loss / len(samples.y)
