"""Losses in which the scores of one network are the target of another network."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def divergence(teacher: Tensor, student: Tensor, *, elements: bool = False) -> Tensor:
    """Return KL(softmax(teacher) || softmax(student)) for [B, C]: the mean over the batch of sums over classes.

    With `elements`, the result is the mean over all B C numbers, as in HtFLlib and by default in torch. This mean
    is C times smaller.
    """
    total = F.kl_div(
        student.log_softmax(dim=1), teacher.log_softmax(dim=1), reduction="batchmean", log_target=True
    )
    return total / student.shape[1] if elements else total


def non_target_divergence(teacher: Tensor, student: Tensor, y: Tensor) -> Tensor:
    """Return the divergence of student from teacher over all classes except each sample's label.

    The probabilities of the other classes do not sum to 1, and are not scaled to 1.
    """
    p, q = teacher.log_softmax(dim=1), student.log_softmax(dim=1)
    others = F.one_hot(y, p.shape[1]) == 0
    return (p.exp() * (p - q) * others).sum() / max(len(y), 1)
