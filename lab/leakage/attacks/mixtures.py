"""Mixtures of Gaussians of each class: a part of few samples shows these samples."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protofleet.lab.leakage.finding import MembershipScores
from protofleet.lab.leakage.maths.membership import Scores
from protofleet.lab.leakage.scene import AnsweredTask, Scene
from protofleet.methods.maths.gaussian_mixtures import Mixture, log_densities, mixture_of

KIND: Final = "mixtures"


def membership(scene: Scene) -> list[MembershipScores]:
    """Return scores by the density of a sample in the mixture of its class."""
    task, extractor = scene.task_with(KIND, "labels"), scene.extractor
    members, others = scene.member_features, scene.other_features
    if task is None or extractor is None or members is None or others is None:
        return []
    assert scene.truth is not None and scene.never_sent is not None, "features without samples"
    mixtures = mixtures_in(task, scene.observed.plan.settings(), members.shape[1])
    scores = Scores(
        scene.device, *_densities(mixtures, members, scene.truth.samples.y),
        *_densities(mixtures, others, scene.never_sent.others.y),
    )  # fmt: skip
    return [MembershipScores("membership by the density", KIND, extractor.attacker, scores)]


def mixtures_in(task: AnsweredTask, settings: object, width: int) -> dict[int, Mixture]:
    """Return the mixture of each class in the answer; the settings of the method have its form."""
    parts, covariance = getattr(settings, "parts"), getattr(settings, "covariance")  # noqa: B009 - any Hyper
    rows = zip(task.answer["labels"].tolist(), task.answer[KIND].double(), strict=True)
    return {label: mixture_of(row, parts, width, covariance) for label, row in rows}


def _densities(
    mixtures: dict[int, Mixture], features: Tensor, y: Tensor
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the log-density of each sample whose class has a mixture, and the classes of these samples."""
    found = torch.full((len(features),), -torch.inf, dtype=torch.float64)
    for label, mixture in mixtures.items():
        chosen = y == label
        if bool(chosen.any()):
            found[chosen] = log_densities(features[chosen], mixture).logsumexp(dim=1)
    held = found.isfinite()
    return found[held].numpy(), y[held].numpy()
