"""Images that a small network makes from features or class rows. It learns on images that no device has sent."""

from __future__ import annotations

from typing import Final

import numpy as np

from protofleet.lab.leakage.attacks.class_rows import OF_MEANS, held_rows
from protofleet.lab.leakage.attacks.feature_rows import KIND, rows_and_features
from protofleet.lab.leakage.attacks.images import class_images, flat, image_scores, inverted
from protofleet.lab.leakage.finding import Attacker, ImageScores
from protofleet.lab.leakage.maths.decoder import fitted_decoder
from protofleet.lab.leakage.scene import LEAST_FITTED, Scene

SHOWN: Final = "the baseline is the class mean of other images"
ABILITY: Final = (
    f"from the true features of images that no device has sent, and the network has not seen; {SHOWN}"
)


def least(scene: Scene) -> Attacker | None:
    """Return the least attacker who has the network that makes the features, and other images."""
    return None if scene.extractor is None else max("A2", scene.extractor.attacker)


def of_rows(scene: Scene) -> list[ImageScores]:
    """Return how near the images from recovered rows are to the device's, and those from features never sent."""
    given, sides, features = rows_and_features(scene), scene.never_sent, scene.auxiliary_features
    if given is None or scene.truth is None or sides is None or features is None:
        return []
    if len(features) < LEAST_FITTED:
        return []
    rows, attacker, _, others = given
    decode = fitted_decoder(features.numpy(), flat(sides.auxiliary))
    means = class_images(sides.auxiliary, scene.observed.plan.classes)
    cases = (
        ("decoder network", rows.recovered, scene.truth.samples, SHOWN),
        ("decoder network, images never sent", others, sides.others, ABILITY),
    )
    return [
        score
        for attack, made_from, samples, note in cases
        for score in image_scores(
            scene, attack, KIND, max("A2", attacker),
            inverted(decode(made_from), flat(samples), samples.y.numpy(), means), gates=False, note=note,
        )
    ]  # fmt: skip


def of_class_rows(scene: Scene) -> list[ImageScores]:
    """Return how near the images from class rows are to the mean images of the device's classes."""
    held, sides = held_rows(scene), scene.never_sent
    if held is None or sides is None:
        return []
    classes = sides.auxiliary.y.numpy().astype(np.int64)
    decode = fitted_decoder(held.features.numpy(), flat(sides.auxiliary), classes)
    return image_scores(
        scene, "decoder network of the class row", held.name, held.attacker,
        held.inversion(decode(held.rows.numpy())), gates=False, note=OF_MEANS,
    )  # fmt: skip
