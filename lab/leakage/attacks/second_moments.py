"""Second moments of features: a low-rank factor, a Gram matrix or a scatter about class means.

If a device has fewer samples than a feature has numbers, its second moments span exactly its samples. A sample of the
device has no part outside of this span, and other samples have one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from protofleet.lab.leakage.attacks.tables import table
from protofleet.lab.leakage.finding import Finding, MembershipScores
from protofleet.lab.leakage.maths.intervals import Figure
from protofleet.lab.leakage.maths.membership import Scores
from protofleet.lab.leakage.scene import AnsweredTask, Scene
from protofleet.methods.maths.grams import symmetric_of, triangle_size, with_constant
from protofleet.methods.maths.rounded_rows import rows_of

PENALTY: Final = 1e-3  # Penalty on a leverage, as a share of the mean of the diagonal.
SMALLEST: Final = 1e-6  # Singular values below this share of the largest one are rounding.
Score = Callable[[Tensor, Tensor], Tensor]  # Features [N, D] and their classes -> scores [N].


def membership(scene: Scene) -> list[MembershipScores]:
    """Return scores by how well the second moments of the device explain a sample."""
    extractor, members, others = scene.extractor, scene.member_features, scene.other_features
    if (
        extractor is None
        or members is None
        or others is None
        or scene.truth is None
        or scene.never_sent is None
    ):
        return []
    for kind, attack, make in SCORES:
        task = scene.task_with(kind)
        score = make(task, members.shape[1], scene.observed.plan.classes) if task else None
        if score is not None:
            y, other_y = scene.truth.samples.y, scene.never_sent.others.y
            scores = Scores(
                scene.device, score(members, y).numpy(), y.numpy(), score(others, other_y).numpy(),
                other_y.numpy(),
            )  # fmt: skip
            return [MembershipScores(attack, kind, extractor.attacker, scores)]
    return []


def off_the_factor(task: AnsweredTask, width: int, classes: int) -> Score | None:
    """Return a score from the length of a sample's part outside of the span of the factor's rows."""
    if not task.has("factor", "scales.factor"):
        return None
    rows = factor_of(task)
    _, values, directions = torch.linalg.svd(rows, full_matrices=False)
    span = directions[values > SMALLEST * values[0]]

    def score(features: Tensor, labels: Tensor) -> Tensor:
        x = with_constant(features) if rows.shape[1] == features.shape[1] + 1 else features
        outside = x - x @ span.T @ span
        found: Tensor = -outside.norm(dim=1) / x.norm(dim=1)
        return found

    return score if rows.shape[1] in (width, width + 1) else None


def factor_of(task: AnsweredTask) -> Tensor:
    """Return the rows of the factor in float64."""
    return rows_of(task.answer["factor"], task.answer["scales.factor"])


def by_gram(task: AnsweredTask, width: int, classes: int) -> Score | None:
    """Return a score from the leverage of a sample under the Gram matrix."""
    numbers = task.answer["gram"].double().reshape(-1)
    size = next((n for n in (width, width + 1) if triangle_size(n) == len(numbers)), 0)
    if not size:
        return None
    inverse = _inverse(symmetric_of(numbers, size))

    def score(features: Tensor, labels: Tensor) -> Tensor:
        x = with_constant(features) if size == width + 1 else features
        found: Tensor = -((x @ inverse) * x).sum(dim=1)
        return found

    return score


def by_scatter(task: AnsweredTask, width: int, classes: int) -> Score | None:
    """Return a score from the leverage of a sample's distance to the class mean that the device has sent."""
    numbers = task.answer["scatter"].double().reshape(-1)
    if triangle_size(width) != len(numbers) or not task.has("means", "labels"):
        return None
    inverse = _inverse(symmetric_of(numbers, width))
    means, known = table(task.answer, classes, width, "means")
    rows, held = torch.from_numpy(means), torch.from_numpy(known)

    def score(features: Tensor, labels: Tensor) -> Tensor:
        x = features - rows[labels]
        found = -((x @ inverse) * x).sum(dim=1)
        # A class that was not sent has no members, so its samples get the lowest score.
        return torch.where(held[labels], found, found.min())

    return score


def _inverse(matrix: Tensor) -> Tensor:
    scale = float(matrix.diagonal().mean())
    found: Tensor = torch.linalg.inv(matrix + PENALTY * scale * torch.eye(len(matrix), dtype=matrix.dtype))
    return found


SCORES: Final = (
    ("factor", "membership by the part off the factor", off_the_factor),
    ("gram", "membership by the leverage", by_gram),
    ("scatter", "membership by the leverage in the scatter", by_scatter),
)


def structure(scene: Scene) -> list[Finding]:
    """Return what a factor and its targets show without any sample: the rank, and the counts of the classes."""
    task = scene.task_with("factor", "scales.factor")
    if task is None:
        return []
    values = torch.linalg.svdvals(factor_of(task))
    rank = int((values > 1e-3 * values[0]).sum())
    note = f"of {len(values)} rows; a rank below the number of rows is the number of samples"
    found = [
        Finding("rank of the factor", "factor", "rank", "A0", scene.device, Figure(float(rank)), note=note)
    ]
    return [*found, *_counts(scene, task)]


def _counts(scene: Scene, task: AnsweredTask) -> list[Finding]:
    """Return the counts that the constant feature of the targets shows: its sum is 2 n_k - n."""
    if not task.has("targets", "scales.targets", "samples"):
        return []
    number = float(task.answer["samples"])
    last = rows_of(task.answer["targets"], task.answer["scales.targets"])[:, -1] * number
    found = ((last + number) / 2).round().clamp(min=0)
    note = "from the constant feature of the targets: " + ", ".join(f"{count:g}" for count in found.tolist())
    if scene.truth is None:
        return [Finding("counts from the constant", "targets", "counts", "A1", scene.device, note=note,
                        unmeasured="no ground truth: not measured")]  # fmt: skip
    true = torch.bincount(scene.truth.samples.y, minlength=scene.observed.plan.classes)
    exact = float((found == true).double().mean())
    return [Finding("counts from the constant", "targets", "share of exact counts", "A1", scene.device,
                    Figure(exact), gates=True, note=note)]  # fmt: skip
