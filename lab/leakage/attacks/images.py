"""Samples as rows of pixels, and the closeness of images that an attack has made to the true ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from protofleet.lab.leakage.finding import Attacker, ImageScores, Labels
from protofleet.lab.leakage.maths.recovery import psnr
from protofleet.lab.leakage.maths.ssim import ssim
from protofleet.lab.leakage.scene import Scene
from protofleet.methods.contract.base import Samples

Pixels: TypeAlias = NDArray[np.float64]
Closeness: TypeAlias = Callable[[Pixels, Pixels], NDArray[np.float64]]  # Two sets of N images -> N values.


def flat(samples: Samples) -> Pixels:
    """Return each sample as one row."""
    return samples.x.reshape(len(samples.x), -1).double().numpy()


def class_images(samples: Samples, classes: int) -> Pixels:
    """Return the mean sample of each class; a class without samples gets the mean of all samples."""
    pixels, labels = flat(samples), samples.y.numpy()
    every = pixels.mean(0)
    return np.stack([pixels[labels == k].mean(0) if (labels == k).any() else every for k in range(classes)])


@dataclass(frozen=True)
class Pairs:
    """Images that an attack has made, with the true images, as rows of pixels."""

    found: Pixels
    true: Pixels
    classes: Labels


@dataclass(frozen=True)
class Inversion:
    """The images of an attack, images of an attacker without the upload, and pairs that do not belong together."""

    pairs: Pairs
    guess: Pixels  # For each true image, the image of an attacker who has not seen the upload.
    control: Pairs
    control_name: str


def inverted(found: Pixels, true: Pixels, classes: Labels, means: Pixels) -> Inversion:
    """Return the inversion of samples, with shuffled pairs as its control; `means` has an image of each class."""
    shuffled = np.random.default_rng(0).permutation(len(found))
    control = Pairs(found[shuffled], true, classes)
    return Inversion(Pairs(found, true, classes), means[classes], control, "shuffled pairs")


def image_scores(
    scene: Scene, attack: str, kind: str, attacker: Attacker, inversion: Inversion, *, gates: bool, note: str
) -> list[ImageScores]:
    """Return the PSNR of each image, and the SSIM if the samples are pictures."""
    pairs, control = inversion.pairs, inversion.control
    return [
        ImageScores(
            attack, kind, measure, attacker, scene.device, close(pairs.found, pairs.true), pairs.classes,
            close(inversion.guess, pairs.true), close(control.found, control.true), control.classes,
            inversion.control_name, gates, note,
        )
        for measure, close in measures_of(scene).items()
    ]  # fmt: skip


def measures_of(scene: Scene) -> dict[str, Closeness]:
    """Return the measures of closeness for samples of this shape."""
    found: dict[str, Closeness] = {"PSNR dB": psnr}
    shape = scene.observed.plan.input_shape.axes
    if len(shape) == 3:
        found["SSIM"] = lambda one, other: ssim(one.reshape(-1, *shape), other.reshape(-1, *shape))
    return found
