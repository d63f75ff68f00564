import math

import numpy as np
import pytest

from protofleet.lab.leakage.finding import ImageScores
from protofleet.lab.leakage.maths.recovery import clustered
from protofleet.lab.leakage.pooled import FAILS, row_of


def scores(seed, lift=3.0, control=0.0, device="a", count=40, classes=4):
    rng = np.random.default_rng(seed)
    y = np.arange(count) % classes
    values, wrong = 20 + lift + rng.normal(0, 1, count), 19 + control + rng.normal(0, 1, count)
    return ImageScores(
        "inversion",
        "features",
        "PSNR dB",
        "A2",
        device,
        values,
        y,
        np.full(count, 20.0),
        wrong,
        y,
        "shuffled pairs",
    )


def test_images_of_several_devices_are_pooled_over_clusters_of_device_and_class():
    parts = [scores(seed, lift=seed, device=str(seed)) for seed in range(3)]
    found = row_of(parts)
    clusters = np.concatenate([100 * place + one.classes for place, one in enumerate(parts)])
    assert found.figure == clustered(np.concatenate([one.values for one in parts]), clusters)
    assert found.device == "" and found.baseline == 20 and found.sound
    same = clustered(
        np.concatenate([one.values for one in parts]), np.concatenate([one.classes for one in parts])
    )
    assert found.figure != same, "the test would not notice clusters of only classes"


def test_a_row_is_not_sound_if_its_control_is_above_the_baseline():
    assert row_of([scores(0)], "a").sound
    assert not row_of([scores(0, control=3.0)], "a").sound


def test_the_note_of_a_failed_attack_warns_that_this_does_not_show_safety():
    assert FAILS in row_of([scores(0, lift=-2.0)]).note and FAILS not in row_of([scores(0)]).note


@pytest.mark.parametrize(("control", "sound"), [(0.0, True), (9.0, False)])
def test_one_image_has_a_figure_without_an_interval(control, sound):
    found = row_of([scores(0, control=control, count=1)], "a")
    assert found.figure.value > 20 and math.isnan(found.figure.low) and found.sound == sound
