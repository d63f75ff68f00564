"""FeatureRows of features that a device sends, one for each of its samples.

If the rows were mixed with known class rows and masked, both are undone first (lab/leakage/maths/mixing.py). The rows
come in the order of the device's samples in every round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from protofleet.lab.leakage.attacks.images import class_images, flat, image_scores, inverted
from protofleet.lab.leakage.attacks.tables import table
from protofleet.lab.leakage.finding import Attacker, Finding, ImageScores, MembershipScores
from protofleet.lab.leakage.maths.intervals import STRICT, Figure
from protofleet.lab.leakage.maths.membership import Scores
from protofleet.lab.leakage.maths.mixing import unmixed
from protofleet.lab.leakage.maths.mutual_information import gaussian_control, mutual_information
from protofleet.lab.leakage.maths.recovery import (
    clustered,
    clustered_r2,
    cosine,
    nearest,
    r2,
    relative_error,
)
from protofleet.lab.leakage.scene import AnsweredTask, Scene

Numbers = NDArray[np.float64]
KIND = "features"
LARGEST_NULL = 0.3  # Nats that shuffled pairs may have.


@dataclass(frozen=True)
class FeatureRows:
    """The rows as they were sent, and the features that were recovered from them."""

    sent: Numbers
    recovered: Numbers
    means: (
        Numbers | None
    )  # Each row's class mean, as the device has sent it; None if it sends no class means.
    attacker: Attacker  # Least attacker who has the recovered features.
    share: float = math.nan  # The share of the own feature in a mixed row; NaN if the rows are not mixed.
    residual: float = math.nan
    kept: float = 1.0  # Share of the columns that are not masked.


def rows_in(scene: Scene, number: int | None = None) -> FeatureRows | None:
    """Return the rows of a round, or None if the device sends no rows of features."""
    tasks = scene.tasks if number is None else scene.tasks_of(number)
    task = next((one for one in tasks if one.has(KIND)), None)
    if task is None:
        return None
    rows = task.answer[KIND].double().numpy()
    before = next((one for one in tasks if one.has("prototypes", "labels")), None)
    if before is None or not task.has("labels") or "prototypes" not in task.broadcast:
        return FeatureRows(rows, rows, None, "A0")
    classes = scene.observed.plan.classes
    labels = task.answer["labels"].numpy()
    common, known = table(task.broadcast, classes, rows.shape[1])
    own, _ = table(before.answer, classes, rows.shape[1])
    found = unmixed(rows, labels, common, known, own)
    return FeatureRows(
        rows, found.features, own[labels], "A1", found.share, found.residual, float(found.kept.mean())
    )  # fmt: skip


def structure(scene: Scene) -> list[Finding]:
    """Return what the messages show without any sample: the share, the mask, and the order of the rows."""
    rows = rows_in(scene)
    if rows is None:
        return []
    found = []
    if not math.isnan(rows.share):
        note = f"relative error of the class means {rows.residual:.1e}; {rows.kept:.0%} of the columns are unmasked"
        found.append(
            Finding("share of the own feature", KIND, "alpha", "A1", scene.device, Figure(rows.share),
                    sound=rows.residual < 0.01, gates=True, note=note)
        )  # fmt: skip
    return found + linked(scene)


def linked(scene: Scene) -> list[Finding]:
    """Return how many rows of the last round are nearest to the row at the same place of an earlier round."""
    labels = [_labels(scene.tasks_of(number)) for number in scene.rounds]
    known = [one for one in labels if one is not None]
    if len(known) < 2 or any(len(one) != len(known[0]) for one in known):
        return []
    first, last = known[0], known[-1]
    same = float((first == last).mean())
    mixed = np.random.default_rng(0).permutation(last)
    return [
        Finding("rows at the same place in two rounds", KIND, "share of equal labels", "A1", scene.device,
                Figure(same), baseline=float((first == mixed).mean()),
                note="the rows come in the order of the samples, so they can be linked over rounds")
    ]  # fmt: skip


def _labels(tasks: list[AnsweredTask]) -> NDArray[np.int64] | None:
    return next((one.answer["labels"].numpy() for one in tasks if one.has(KIND, "labels")), None)


def recovery(scene: Scene) -> list[Finding]:
    """Return how close the recovered features are to the true ones."""
    rows = rows_in(scene)
    if rows is None or scene.truth is None or scene.member_features is None:
        return []
    if (true := scene.member_features.numpy()).shape != rows.sent.shape:
        return []
    clusters = scene.truth.samples.y.numpy()
    base = r2(rows.means, true) if rows.means is not None else 0.0
    naive = _explained("the upload as the feature", "A0", rows.sent, true, clusters, base, scene.device)
    if rows.attacker == "A0":
        return [naive]
    return [naive, _explained("features won back", "A1", rows.recovered, true, clusters, base, scene.device)]


def _explained(
    attack: str, attacker: Attacker, found: Numbers, true: Numbers, clusters: NDArray[np.int64], base: float,
    device: str,
) -> Finding:  # fmt: skip
    figure = clustered_r2(found, true, clusters)
    shuffled = np.random.default_rng(0).permutation(len(true))
    control = clustered_r2(found[shuffled], true, clusters, level=STRICT)
    note = f"cosine {cosine(found, true):.3f}, relative error {relative_error(found, true):.3f}"
    return Finding(
        attack, KIND, "R2", attacker, device, figure, base, control, "shuffled pairs", control.low <= max(base, 0.0),
        gates=True, note=note,
    )  # fmt: skip


def information(scene: Scene) -> list[Finding]:
    """Return a lower bound of the information that the upload has about the true features."""
    given = rows_and_features(scene)
    if given is None or scene.truth is None:
        return []
    rows, _, members, _ = given
    x, y = torch.from_numpy(members), torch.from_numpy(rows.sent)
    classes = scene.truth.samples.y.numpy()
    bound = mutual_information(x, y, clusters=classes)
    shuffled = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    null = mutual_information(x, y[shuffled], clusters=classes)
    true, gaussian = gaussian_control(len(x))
    words = (
        "saturated: it says only that the information is large" if bound.saturated else "a loose lower bound"
    )
    note = (
        f"{words}; at most {bound.cap:.2f} can be found; of {true:.2f} nats of as many Gaussian pairs it finds "
        f"{gaussian.nats:.2f}; it gates nothing"
    )
    return [
        Finding("information in the upload", KIND, "nats, at least", "A0", scene.device, bound.figure, 0.0,
                null.figure, "shuffled pairs", null.nats < LARGEST_NULL and gaussian.nats <= true, note=note)
    ]  # fmt: skip


def membership(scene: Scene) -> list[MembershipScores]:
    """Return scores by the distance to the nearest recovered feature."""
    given = rows_and_features(scene)
    if given is None or scene.truth is None or scene.never_sent is None:
        return []
    rows, attacker, members, others = given
    scores = Scores(
        scene.device, -distances(members, rows.recovered), scene.truth.samples.y.numpy(),
        -distances(others, rows.recovered), scene.never_sent.others.y.numpy(),
    )  # fmt: skip
    return [MembershipScores("membership by the nearest row", KIND, attacker, scores)]


def rows_and_features(scene: Scene) -> tuple[FeatureRows, Attacker, Numbers, Numbers] | None:
    """Return the rows, the least attacker who has their network, and the features of members and non-members.

    Return None if the rows are not the features of the device's samples, in their order.
    """
    rows, extractor = rows_in(scene), scene.extractor
    members, others = scene.member_features, scene.other_features
    if rows is None or extractor is None or members is None or others is None:
        return None
    if members.shape != rows.sent.shape:
        return None
    return rows, max(extractor.attacker, rows.attacker), members.numpy(), others.numpy()


def distances(rows: Numbers, candidates: Numbers) -> Numbers:
    """Return the distance of each row to the nearest candidate."""
    found: Numbers = torch.cdist(torch.from_numpy(rows), torch.from_numpy(candidates)).min(1).values.numpy()
    return found


def retrieval(scene: Scene) -> list[Finding]:
    """Return how often a recovered row is nearest to the feature of its own sample, among never sent samples too."""
    given = rows_and_features(scene)
    if given is None or scene.truth is None:
        return []
    rows, attacker, members, others = given
    candidates, clusters = np.vstack([members, others]), scene.truth.samples.y.numpy()
    found = [_retrieved("retrieval by the upload", attacker, rows.sent, candidates, clusters, scene.device)]
    if rows.attacker != "A0":
        name = "retrieval by features won back"
        found.append(_retrieved(name, attacker, rows.recovered, candidates, clusters, scene.device))
    return found


def _retrieved(
    attack: str, attacker: Attacker, rows: Numbers, candidates: Numbers, clusters: NDArray[np.int64], device: str
) -> Finding:  # fmt: skip
    chosen = nearest(rows, candidates)
    hits = (chosen == np.arange(len(rows))).astype(np.float64)
    shuffled = np.random.default_rng(0).permutation(len(rows))
    control = clustered((chosen[shuffled] == np.arange(len(rows))).astype(np.float64), clusters, level=STRICT)
    chance = 1 / len(candidates)
    return Finding(
        attack, KIND, "top-1", attacker, device, clustered(hits, clusters), chance, control, "shuffled pairs",
        control.low <= 1 / len(rows), gates=True, note=f"among {len(candidates)} samples",
    )  # fmt: skip


def inversion(scene: Scene) -> list[ImageScores]:
    """Return how well a linear map, fitted on other samples, makes the samples from recovered rows."""
    given, to_pixels = rows_and_features(scene), scene.pixels_of_features
    if given is None or to_pixels is None or scene.truth is None or scene.never_sent is None:
        return []
    rows, attacker, _, _ = given
    means = class_images(scene.never_sent.auxiliary, scene.observed.plan.classes)
    found = inverted(
        to_pixels(rows.recovered), flat(scene.truth.samples), scene.truth.samples.y.numpy(), means
    )
    note = "the baseline is the class mean of other images"
    return image_scores(scene, "ridge inversion", KIND, max("A2", attacker), found, gates=True, note=note)
