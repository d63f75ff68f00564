"""Weights that a device sends: membership by the loss of a sample, and the label distribution from the head's bias.

A network has a smaller loss on samples that it was trained on. The bias of a class in the head rises in training if
the device has many samples of the class. So counts need not be sent to be known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from protofleet.edge_client.data.shard import TensorSamples
from protofleet.lab.leakage.attacks.class_rows import label_distribution
from protofleet.lab.leakage.finding import Attacker, Finding, MembershipScores
from protofleet.lab.leakage.maths.membership import Scores
from protofleet.lab.leakage.scene import AnsweredTask, Scene
from protofleet.methods.contract.base import Ask, ClientHalf, Samples
from protofleet.methods.parts.local import in_batches

Numbers = NDArray[np.float64]
KIND: Final = "weights"
BIAS: Final = "weights.head.bias"
SHADOWS: Final = 3  # Devices with known samples that the attacker trains to learn the scale of the bias.
SKEW: Final = 0.5  # Parameter of the Dirichlet law of their label distributions.


def membership(scene: Scene) -> list[MembershipScores]:
    """Return scores by the loss of each sample under the network that the device has sent.

    If a part of the network stays on the device, only an attacker who has stolen the device has the whole network.
    """
    sides, found = scene.never_sent, predictor(scene)
    if sides is None or scene.truth is None or found is None:
        return []
    attacker, predict = found
    members, others = (-losses(predict, part) for part in (scene.truth.samples, sides.others))
    scores = Scores(scene.device, members, scene.truth.samples.y.numpy(), others, sides.others.y.numpy())
    return [MembershipScores("membership by the loss", KIND, attacker, scores)]


def losses(predict: Callable[[Tensor], Tensor], samples: Samples) -> Numbers:
    """Return the cross-entropy of each sample."""
    return F.cross_entropy(predict(samples.x).double(), samples.y, reduction="none").numpy()


def predictor(scene: Scene) -> tuple[Attacker, Callable[[Tensor], Tensor]] | None:
    """Return the prediction of the device's network, and the least attacker who has the whole network."""
    if (half := scene.sent_half) is not None and scene.head_is_sent:
        model = half.model
        return "A1", lambda x: in_batches(model, model, x)
    if scene.truth is not None and (own := scene.truth.half) is not None and scene.is_last:
        return "A3", lambda x: in_batches(own.model, own.predict, x)
    return None


def label_distributions(scene: Scene) -> list[Finding]:
    """Return the label distribution that the change of the head's bias shows.

    The change of a class's bias grows with the share of the class. The attacker learns the scale from shadow devices
    that train on never sent samples with known labels.
    """
    task = next((one for one in scene.tasks if one.has(BIAS) and BIAS in one.broadcast), None)
    sides = scene.never_sent
    if task is None or sides is None or scene.truth is None:
        return []
    classes = scene.observed.plan.classes
    if task.answer[BIAS].shape != (classes,):
        return []
    shadows = list(trained_shadows(scene, task, sides.auxiliary))
    if not shadows:
        return []
    slope = sum(float(s.change @ (s.shares - 1 / classes)) for s in shadows)
    slope /= max(sum(float(s.change @ s.change) for s in shadows), 1e-12)
    found = np.maximum(1 / classes + slope * change_of_bias(task), 0.0)
    name = "label distribution from the head's bias"
    return [label_distribution(scene, found, KIND, "A2", name)] if found.sum() > 0 else []


def change_of_bias(task: AnsweredTask) -> Numbers:
    """Return the change of the head's bias in the round, without its mean, which the softmax does not see."""
    change = (task.answer[BIAS] - task.broadcast[BIAS]).double()
    found: Numbers = (change - change.mean()).numpy()
    return found


@dataclass(frozen=True)
class Shadow:
    """A device of the attacker: the shares of its classes, and the change of its head's bias."""

    shares: Numbers
    change: Numbers


def trained_shadows(scene: Scene, task: AnsweredTask, auxiliary: Samples) -> Sequence[Shadow]:
    """Train devices of the attacker with the broadcast of the task, on samples whose labels are known."""
    plan, rng = scene.observed.plan, np.random.default_rng(0)
    labels, found = auxiliary.y.numpy(), list[Shadow]()
    for place in range(SHADOWS):
        weights = rng.dirichlet(np.full(plan.classes, SKEW))[labels]
        if not weights.sum():
            continue
        drawn = rng.choice(len(labels), size=task.examples, p=weights / weights.sum())
        chosen = torch.from_numpy(drawn)
        own = TensorSamples(auxiliary.x[chosen], auxiliary.y[chosen])
        half = plan.client_half(own, f"shadow-{place}")
        answer = trained_answer(half, task, scene.number)
        if BIAS not in answer:
            return []
        shares = np.bincount(labels[drawn], minlength=plan.classes) / len(drawn)
        found.append(
            Shadow(shares, change_of_bias(AnsweredTask(task.phase, task.broadcast, answer, task.examples)))
        )
    return found


def trained_answer(half: ClientHalf, task: AnsweredTask, number: int) -> dict[str, Tensor]:
    """Return the answer of a device of the attacker to this task."""
    half.begin(number)
    half.receive(dict(task.broadcast))
    return {name: value.clone() for name, value in half.run(Ask(task.phase, dict(task.broadcast))).items()}
