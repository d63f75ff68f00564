"""Rows of one device, and of several devices together, from the scores of an attack."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from protofleet.lab.leakage.finding import Finding, ImageScores, Labels, MembershipScores
from protofleet.lab.leakage.maths.intervals import STRICT, Figure
from protofleet.lab.leakage.maths.membership import membership
from protofleet.lab.leakage.maths.recovery import clustered

Scored = MembershipScores | ImageScores
FAILS = "fails by this measure: this attack did not find the images, which does not show that they are safe"


def row_of(group: Sequence[Scored], device: str = "") -> Finding:
    """Return the row of these devices under one attack; `device` is "" if they are several."""
    members = [one for one in group if isinstance(one, MembershipScores)]
    images = [one for one in group if isinstance(one, ImageScores)]
    return membership_row(members, device) if members else images_row(images, device)


def membership_row(group: Sequence[MembershipScores], device: str) -> Finding:
    """Return the row of a membership attack."""
    one, result = group[0], membership([each.scores for each in group])
    rate, wrong = result.true_positives, result.false_positives
    few = "TPR at 1 % FPR not measured: it needs 1,000 samples that were never sent"
    words = f"TPR {rate.value:.2f} [{rate.low:.2f}, {rate.high:.2f}] at FPR {wrong.value:.3f}"
    return Finding(
        one.attack, one.kind, one.measure, one.attacker, device, result.auc, 0.5, result.control,
        "never sent against never sent", result.sound, gates=True, note=few if math.isnan(rate.value) else words,
    )  # fmt: skip


def images_row(group: Sequence[ImageScores], device: str) -> Finding:
    """Return the row of images that an attack has made.

    The control must not be certainly above the baseline. One cluster has no interval, so its value counts.
    """
    one = group[0]
    values, control, baseline = (
        np.concatenate([getattr(each, name) for each in group]) for name in ("values", "control", "baseline")
    )
    figure = finite(clustered(values, clusters_of([each.classes for each in group])))
    off = finite(clustered(control, clusters_of([each.control_classes for each in group]), level=STRICT))
    base = float(baseline.mean())
    least = off.value if math.isnan(off.low) else off.low
    notes = [one.note, FAILS if figure.value <= base else ""]
    return Finding(
        one.attack, one.kind, one.measure, one.attacker, device, figure, base, off, one.control_name, least <= base,
        gates=one.gates, note="; ".join(filter(None, notes)),
    )  # fmt: skip


def finite(figure: Figure) -> Figure:
    """Return the figure without its interval if the interval says nothing."""
    return figure if math.isfinite(figure.high - figure.low) else Figure(figure.value)


def clusters_of(classes: Sequence[Labels]) -> Labels:
    """Return a number for each (device, class) cluster; `classes` has the classes of each device's images."""
    most = 1 + max(int(one.max(initial=0)) for one in classes)
    return np.concatenate([place * most + one for place, one in enumerate(classes)])
