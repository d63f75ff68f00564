"""Images and labels of a device whose update is one local step, or a few, of a small batch.

The difference of the weights before and after the steps is then a gradient, and the attacker has the network of the
gradient (lab/leakage/maths/gradients.py). If an attack finds no image, another attack may still find it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.edge_client.data.shard import TensorSamples
from protofleet.lab.leakage.attacks.images import Inversion, Pairs, Pixels, class_images, flat, image_scores
from protofleet.lab.leakage.attacks.sent_weights import BIAS, KIND, trained_answer
from protofleet.lab.leakage.finding import Attacker, Finding, Labels, Result, Unmet
from protofleet.lab.leakage.maths.gradients import (
    GradientOf,
    cosine_of,
    gradient_sent,
    inputs_of_first_layer,
    labels_from_bias,
    matched_images,
    nearest_candidates,
)
from protofleet.lab.leakage.maths.intervals import STRICT, clopper_pearson
from protofleet.lab.leakage.maths.membership import every_second
from protofleet.lab.leakage.maths.recovery import clustered, psnr
from protofleet.lab.leakage.scene import AnsweredTask, Scene
from protofleet.methods.contract.base import Payload, Samples
from protofleet.methods.maths.steps import effective_steps, steps_of
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.local import LocalHyper, in_batches, norms_of, train_norms
from protofleet.methods.parts.weights import sent_parameters, weights_of

CLOSED: Final = "inversion of the gradient, closed form"
OPTIMISED: Final = "inversion of the gradient, optimised"
LABELS: Final = "labels of the batch from the head's bias"
FEW_STEPS: Final = 4
MOST_IMAGES: Final = 8  # Images of a batch for the closed form and the labels.
MOST_OPTIMISED: Final = 4
MOST_PARAMETERS: Final = 2_000_000
GRADIENT: Final = 0.99  # Least cosine at which an update counts as a gradient of the cross-entropy.
CLEAR: Final = 30.0  # Least PSNR, in dB, of an image that looks like a copy.
COMPARED: Final = 200  # Most images of the control.
DRAWN: Final = 200  # Batches of labels that are drawn for the baseline and the control of labels.


@dataclass(frozen=True)
class FewSteps:
    """The few local steps of a device, and the network before them."""

    task: AnsweredTask
    hyper: LocalHyper
    model: Net
    steps: int

    @property
    def images(self) -> int:
        """Return the number of samples that the device states; all of them are in the batches of the steps."""
        return self.task.examples

    def gradient(self, answer: Payload) -> dict[str, Tensor]:
        """Return the mean gradient of each parameter between the broadcast and an answer."""
        weight = effective_steps(self.steps, self.hyper.momentum)
        names = {name: f"weights.{name}" for name in sent_parameters(self.model)}
        return {
            name: gradient_sent(
                self.task.broadcast[sent], answer[sent], self.hyper.lr, weight, self.hyper.weight_decay
            )
            for name, sent in names.items()
        }


def few_steps(scene: Scene, most_images: int, most_steps: int) -> FewSteps | str:
    """Return the local steps of the device, or the condition that its update does not meet."""
    plan = scene.observed.plan
    hyper, model = plan.settings(), plan.model()
    if not isinstance(hyper, LocalHyper):
        return "the device does not train by local SGD"
    if model.backbone_is_frozen:
        return "the backbone is frozen, so the first layers have no gradient"
    names = [f"weights.{name}" for name in sent_parameters(model)]
    task = next((one for one in scene.tasks if one.has(*names) and one.broadcast.keys() >= set(names)), None)
    if task is None:
        return "the device does not send the whole network that it has received"
    steps = steps_of(hyper.epochs, hyper.batch, task.examples)
    if not 1 <= steps <= most_steps:
        return f"the update is {steps} local steps (method.epochs, method.batch), and the attack is for {most_steps}"
    if task.examples > most_images:
        return f"the batch has {task.examples} samples, and the attack is for at most {most_images}"
    _load(model, task.broadcast)
    return FewSteps(task, hyper, model, steps)


@torch.no_grad()
def _load(model: Net, broadcast: Payload) -> None:
    for name, value in weights_of(model).items():
        if name in broadcast:
            value.copy_(broadcast[name])


def closed_form(scene: Scene) -> list[Result]:
    """Return how near the best candidate of a first linear layer is to each image of the device."""
    if scene.truth is None or scene.never_sent is None:
        return []
    found = few_steps(scene, MOST_IMAGES, FEW_STEPS)
    if isinstance(found, str):
        return [Unmet(CLOSED, KIND, found)]
    layer = first_layer(found.model, scene.observed.plan.input_shape.numbers)
    if layer is None:
        return [
            Unmet(
                CLOSED, KIND, "the first layer is not a linear layer with a bias over all numbers of a sample"
            )
        ]
    sent = found.gradient(found.task.answer)
    weight, bias = (sent[f"{layer}.{part}"].numpy() for part in ("weight", "bias"))
    candidates = inputs_of_first_layer(weight, bias)
    if not len(candidates):
        return [Unmet(CLOSED, KIND, "no unit of the first layer has a gradient")]
    inversion = against_candidates(scene, candidates)
    note = f"{found.images} images in {found.steps} local step(s); the best of {len(candidates)} candidates"
    return [
        *image_scores(scene, CLOSED, KIND, "A1", inversion, gates=False, note=note),
        clear_images(scene, inversion),
    ]


def first_layer(model: nn.Module, numbers: int) -> str | None:
    """Return the name of the first layer if it is linear over all numbers of a sample, and has a bias."""
    name, layer = next(
        (name, part)
        for name, part in model.named_modules()
        if any(True for _ in part.parameters(recurse=False))
    )
    fits = isinstance(layer, nn.Linear) and layer.bias is not None and layer.in_features == numbers
    return name if fits else None


def known_and_other(scene: Scene) -> tuple[Samples, Samples]:
    """Divide the samples that were never sent: those that the attacker has, and those of the control.

    A small batch has few classes, and the non-members have the same, so all samples are divided again by class.
    """
    assert scene.never_sent is not None, "an attack without other samples"
    parts = (scene.never_sent.others, scene.never_sent.auxiliary)
    x, y = (torch.cat([getattr(part, name) for part in parts]) for name in "xy")
    known = torch.from_numpy(every_second(y.numpy()))
    return TensorSamples(x[known], y[known]), TensorSamples(x[~known], y[~known])


def against_candidates(scene: Scene, candidates: Pixels) -> Inversion:
    """Return the best candidate for each image of the device, and as control for images that were never sent.

    An attacker without the upload also chooses the best of as many images, or the class mean.
    """
    assert scene.truth is not None, "an inversion without samples"
    known, others = known_and_other(scene)
    own, control = scene.truth.samples, of_classes(others, scene.truth.samples.y)
    pairs, wrong = (
        Pairs(nearest_candidates(candidates, flat(part)), flat(part), part.y.numpy())
        for part in (own, control)
    )
    means, images = class_images(known, scene.observed.plan.classes), flat(known)
    guesses = [
        np.vstack([means[label], images[known.y.numpy() == label][: len(candidates)]])
        for label in pairs.classes
    ]
    guess = [nearest_candidates(some, true[None]) for some, true in zip(guesses, pairs.true, strict=True)]
    return Inversion(pairs, np.vstack(guess), wrong, "images that were not in the batch")


def of_classes(samples: Samples, y: Tensor) -> Samples:
    """Return samples of these classes, at most COMPARED."""
    chosen = torch.isin(samples.y, y).nonzero().flatten()
    order = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0))[:COMPARED]
    return TensorSamples(samples.x[chosen[order]], samples.y[chosen[order]])


def clear_images(scene: Scene, inversion: Inversion) -> Finding:
    """Return the share of the device's images that were found almost exactly."""
    pairs, control = inversion.pairs, inversion.control
    hits, wrong, guessed = (
        psnr(found, true) > CLEAR
        for found, true in (
            (pairs.found, pairs.true), (control.found, control.true), (inversion.guess, pairs.true)
        )
    )  # fmt: skip
    off, base = clopper_pearson(int(wrong.sum()), len(wrong), STRICT), float(guessed.mean())
    return Finding(
        CLOSED, KIND, f"share of images above {CLEAR:.0f} dB", "A1", scene.device,
        clopper_pearson(int(hits.sum()), len(hits)), base, off, inversion.control_name, off.low <= base,
    )  # fmt: skip


def labels(scene: Scene) -> list[Result]:
    """Return the share of the labels of the batch that the head's bias shows."""
    if scene.truth is None or scene.never_sent is None:
        return []
    found = few_steps(scene, MOST_IMAGES, FEW_STEPS)
    if isinstance(found, str):
        return [Unmet(LABELS, KIND, found)]
    if (given := found_labels(scene, found)) is None:
        return [Unmet(LABELS, KIND, "the head has no bias")]
    own, classes = scene.truth.samples.y.numpy(), scene.observed.plan.classes
    drawn = np.random.default_rng(0).integers(0, classes, (2, DRAWN, len(own)))
    guesses = [_shared(one, own, classes) for one in drawn[0]]
    control = np.array([_shared(given, one, classes) for one in drawn[1]]) / len(own)
    off, base = clustered(control, np.arange(DRAWN), level=STRICT), float(np.mean(guesses)) / len(own)
    return [
        Finding(LABELS, KIND, "share of labels", attacker_with_labels(found), scene.device,
                clopper_pearson(_shared(given, own, classes), len(own)), base, off,
                "labels drawn at random", off.low <= base,
                note=f"{len(own)} labels; the baseline is labels drawn at random")
    ]  # fmt: skip


def found_labels(scene: Scene, found: FewSteps) -> Labels | None:
    """Return the labels of the batch, as the attacker finds them; None if the head has no bias."""
    gradient = found.gradient(found.task.answer).get(BIAS.removeprefix("weights."))
    if gradient is None:
        return None
    scores = in_batches(found.model, found.model, known_and_other(scene)[0].x)
    return labels_from_bias(
        gradient.numpy(), found.images, scores.double().softmax(dim=1).mean(dim=0).numpy()
    )


def attacker_with_labels(found: FewSteps) -> Attacker:
    """Return the least attacker who finds the labels: those of several images need samples of the domain."""
    return "A1" if found.images == 1 else "A2"


def _shared(one: Labels, other: Labels, classes: int) -> int:
    """Return how many labels two batches have in common."""
    counts = [np.bincount(labels, minlength=classes) for labels in (one, other)]
    return int(np.minimum(*counts).sum())


def optimised(scene: Scene) -> list[Result]:
    """Return how near images with the gradient of the update are to the images of the device."""
    if scene.truth is None or scene.never_sent is None:
        return []
    found = few_steps(scene, MOST_OPTIMISED, 1)
    reason = found if isinstance(found, str) else unfit(scene, found)
    if isinstance(found, str) or reason:
        return [Unmet(OPTIMISED, KIND, reason)]
    sent, y = found.gradient(found.task.answer), found_labels(scene, found)
    assert y is not None, "an update that fits has labels"
    shape = (found.images, *scene.observed.plan.input_shape.axes)
    matched = matched_images(gradient_of(found.model, torch.from_numpy(y)), list(sent.values()), shape)
    images = matched.images.reshape(found.images, -1).double().numpy()
    note = f"{found.images} images, one local step; the cosine of the gradients is {1 - matched.distance:.2f}"
    inversion = against_candidates(scene, images)
    return list(
        image_scores(scene, OPTIMISED, KIND, attacker_with_labels(found), inversion, gates=False, note=note)
    )


def unfit(scene: Scene, found: FewSteps) -> str:
    """Return why the update cannot be compared with gradients of the cross-entropy; "" if it can.

    The attacker trains its own device on random samples, and compares the update of this device with the gradient.
    """
    count = sum(value.numel() for value in found.model.parameters())
    if count > MOST_PARAMETERS:
        return f"the network has {count:,} parameters, and the attack is for at most {MOST_PARAMETERS:,}"
    if found_labels(scene, found) is None:
        return "the head has no bias, so the labels of the batch are not known"
    plan, generator = scene.observed.plan, torch.Generator().manual_seed(0)
    x = torch.rand(found.images, *plan.input_shape.axes, generator=generator) * 2 - 1
    y = torch.arange(found.images) % plan.classes
    answer = trained_answer(plan.client_half(TensorSamples(x, y), scene.device), found.task, scene.number)
    fit = cosine_of(list(found.gradient(answer).values()), gradient_of(found.model, y)(x))
    if fit >= GRADIENT:
        return ""
    return f"the update is not the gradient of the cross-entropy (cosine {fit:.2f} for known samples)"


def gradient_of(model: Net, y: Tensor) -> GradientOf:
    """Return the gradient of the cross-entropy of these labels, as a device computes it in training."""
    learned = dict(model.named_parameters())
    parameters = [learned[name] for name in sent_parameters(model)]

    def gradient(x: Tensor) -> list[Tensor]:
        model.train()
        train_norms(norms_of(model), len(y))
        return list(torch.autograd.grad(F.cross_entropy(model(x), y), parameters, create_graph=True))

    return gradient
