"""Slow attacks of `protofleet leakage --thorough` on small federations."""

import numpy as np
import pytest

from protofleet.lab.leakage.attacks import gradient_inversion
from protofleet.lab.leakage.attacks.gradient_inversion import CLOSED, OPTIMISED, against_candidates
from protofleet.lab.leakage.attacks.images import image_scores
from protofleet.lab.leakage.measure import LeakageQuery, measured
from protofleet.lab.leakage.pooled import FAILS, row_of
from protofleet.lab.leakage.repeated import repeated
from protofleet.lab.leakage.scene import scenes
from tests.lab.leakage.observations import TRAINED, small

ONE_STEP = {"epochs": 1, "batch": 4, "lr": 0.1}


def thorough(method, attacker="A3", **settings):
    """Return the findings of each device by attack, measure and device, and the reasons by attack."""
    observed = repeated(small(method, **settings)).observed
    found = measured(observed, LeakageQuery(observed.devices, attacker, thorough=True))
    figures = {(one.attack, one.measure, one.device): one for one in [*found.findings, *found.pooled]}
    return figures, {one.attack: one.unmeasured for one in found.missing}


@pytest.fixture(scope="module")
def one_step():
    return scene_of("mlp")


def scene_of(network):
    """Return the scene of a device that has sent one local step of two images."""
    observed = repeated(small("fedavg", samples=2, network=network, devices=("mnist",), **ONE_STEP)).observed
    return scenes(observed, observed.devices)["mnist"]


def test_images_of_one_local_step_are_found_from_a_first_linear_layer(one_step):
    psnr, ssim, clear = gradient_inversion.closed_form(one_step)
    psnr, ssim = row_of([psnr], "mnist"), row_of([ssim], "mnist")
    assert psnr.figure.value > psnr.baseline + 10 and psnr.sound and psnr.attacker == "A1" and not psnr.gates
    assert ssim.figure.value > 0.9 > ssim.baseline + 0.2 and ssim.sound
    assert clear.figure.value == 1 and clear.control.value == 0


def test_random_candidates_score_no_better_than_the_control(one_step):
    """The best of many candidates looks better than a single one, so the control must also choose among many."""
    noise = np.random.default_rng(0).uniform(-1, 1, (32, 3 * 16 * 16))
    found = image_scores(
        one_step, CLOSED, "weights", "A1", against_candidates(one_step, noise), gates=False, note=""
    )  # fmt: skip
    row = row_of(found[:1], "mnist")
    assert row.figure.value == pytest.approx(row.control.value, abs=0.5) and FAILS in row.note


def test_labels_of_one_local_step_are_found_from_the_bias_of_the_head(one_step):
    (found,) = gradient_inversion.labels(one_step)
    assert found.figure.value == 1 and found.control.high < 0.7 and found.sound and found.attacker == "A2"


@pytest.mark.slow
def test_images_of_one_local_step_are_found_by_optimisation(one_step):
    psnr, ssim = (row_of([one], "mnist") for one in gradient_inversion.optimised(one_step))
    assert psnr.figure.value > psnr.baseline and psnr.sound and psnr.attacker == "A2" and not psnr.gates
    assert ssim.figure.value > ssim.baseline + 0.2 and ssim.sound


def test_a_convolutional_first_layer_has_no_closed_form():
    found = scene_of("cnn4")
    (closed,) = gradient_inversion.closed_form(found)
    assert "first layer is not a linear layer" in closed.reason
    assert gradient_inversion.labels(found)[0].figure.value == 1


@pytest.mark.parametrize(
    ("method", "settings", "reason"),
    [
        ("fedavg", {"samples": 40, **TRAINED}, "the update is 2 local steps"),
        ("fedavg", {"samples": 20, **TRAINED}, "the batch has 20 samples"),
        ("lgfedavg", {"samples": 2, **ONE_STEP}, "does not send the whole network"),
    ],
)
def test_the_reason_names_the_condition_of_the_inversion_that_is_not_met(method, settings, reason):
    found, reasons = thorough(method, network="mlp", devices=("mfeat",), **settings)
    assert reason in reasons[OPTIMISED]
    assert not any(attack == OPTIMISED for attack, *_ in found)


@pytest.mark.slow
def test_a_decoder_network_makes_images_from_the_features_of_fedpall():
    found, _ = thorough("fedpall", rounds=2, **TRAINED)
    for attack in (
        "decoder network",
        "decoder network, images never sent",
        "decoder network of the class row",
    ):
        for measure in ("PSNR dB", "SSIM"):
            one = found[attack, measure, "mfeat"]
            assert one.figure.low > one.baseline and one.sound and one.attacker == "A3" and not one.gates
    assert found["ridge inversion", "SSIM", "mfeat"].gates


@pytest.mark.slow
def test_a_slow_attack_of_a_stronger_attacker_is_not_run_and_the_reason_is_stated():
    found, reasons = thorough("fedproto", attacker="A2", devices=("mfeat",), **TRAINED)
    assert "A3" in reasons["decoder network of class rows"]
    assert not any("decoder" in attack for attack, *_ in found)
