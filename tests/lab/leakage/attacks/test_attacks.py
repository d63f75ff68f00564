import math

import pytest

from protofleet.lab.leakage.finding import NO_TRUTH
from protofleet.lab.leakage.measure import LeakageQuery, measured
from protofleet.lab.leakage.observed import Observed
from protofleet.methods.maths.adversary import mixing_share
from tests.lab.leakage.observations import TRAINED, figures

pytestmark = pytest.mark.slow
DEVICES = ("mfeat", "optdigits")


@pytest.fixture(scope="module")
def fedpall():
    return figures("fedpall", rounds=2, **TRAINED)


def test_the_mixing_share_of_fedpall_is_found_exactly_on_every_device(fedpall):
    observed, _, found = fedpall
    for device in DEVICES:
        h, half = observed.plan.settings(), observed.truths[device].half
        true = mixing_share(h.alpha_low, h.alpha_high, h.alpha_round, half.generator("alpha"))
        one = found["share of the own feature", device]
        assert one.figure.value == pytest.approx(true, abs=1e-4) and one.sound and one.attacker == "A1"


def test_the_features_of_fedpall_are_recovered(fedpall):
    for device in DEVICES:
        won, naive = (fedpall[2][name, device] for name in ("features won back", "the upload as the feature"))
        assert won.figure.value >= 0.95 and won.sound
        assert won.figure.value > naive.figure.value and won.figure.value > won.baseline
        assert fedpall[2]["retrieval by features won back", device].figure.value > 0.97


def test_an_attacker_without_the_network_gets_no_images_and_the_reason_is_stated(fedpall):
    observed = fedpall[0]
    found = measured(observed, LeakageQuery(observed.devices, "A1"))
    assert {one.attacker for one in found.findings} <= {"A0", "A1"}
    reasons = {one.attack: one.unmeasured for one in found.missing}
    assert "A3" in reasons["inversion of rows"] and "A3" in reasons["membership by the nearest row"]


def test_rows_of_the_last_round_are_in_the_order_of_the_first_round(fedpall):
    assert fedpall[2]["rows at the same place in two rounds", "mfeat"].figure.value == 1


def test_only_attacks_without_samples_give_figures_if_there_is_no_ground_truth(fedpall):
    observed = fedpall[0]
    kept = Observed(observed.plan, "kept", observed.exchanges, observed.counts)
    found = measured(kept, LeakageQuery(kept.devices, "A3"))
    names = {one.attack for one in found.findings if not one.unmeasured}
    assert "share of the own feature" in names and "smallest class" in names
    assert not any("membership" in name or "inversion" in name for name in names)
    assert {one.unmeasured for one in found.missing} == {NO_TRUTH}
    stated = [one for one in found.findings if one.attack == "label distribution, as stated"]
    assert stated and all("no ground truth: not measured" in one.note for one in stated)
    assert all(math.isnan(one.figure.value) for one in stated)


def test_the_part_off_a_factor_shows_which_samples_are_members():
    _, found, rows = figures("fedgram", rank=96, samples=192, width=256)
    pooled = rows["membership by the part off the factor", ""]
    assert pooled.figure.value >= 0.99 and pooled.sound and pooled.attacker == "A1"
    assert all(one.sound for one in found.findings)


def test_a_gram_matrix_shows_members_if_it_has_more_numbers_than_samples():
    assert figures("fed3r", width=256)[2]["membership by the leverage", ""].figure.value > 0.9


def test_a_class_mean_of_few_samples_shows_members_better_than_one_of_many():
    few, many = (figures("fedncm", samples=samples, least_samples=1)[2] for samples in (20, 400))
    name = "membership by the class row", ""
    assert few[name].figure.value > many[name].figure.value + 0.1
    assert few[name].figure.value > 0.7 and few[name].sound


def test_weights_show_members_by_their_loss_and_the_labels_by_the_bias():
    _, _, rows = figures("fedavg", rounds=2, epochs=6, batch=16, lr=0.05)
    loss = rows["membership by the loss", ""]
    assert loss.attacker == "A1" and loss.sound and loss.figure.low > 0.5
    labels = rows["label distribution from the head's bias", "mfeat"]
    assert labels.attacker == "A2" and labels.figure.value < 0.3


def test_a_method_that_sends_nothing_gives_no_figure():
    assert figures("singleset", **TRAINED)[1].findings == []
