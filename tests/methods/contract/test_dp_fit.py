"""The methods whose updates can have differential privacy, and the reasons for which others are refused."""

from dataclasses import replace

import pytest
import torch

from protofleet.coordinator.private_fit import demand_dp_policy
from protofleet.coordinator.round.policy import Policy, Stop
from protofleet.methods.contract.catalog import load, names
from protofleet.methods.contract.dp_fit import misfit
from protofleet.methods.contract.plan import Network, read_plan
from protofleet.protocol.settings.codec import CodecSettings, CodecStage
from protofleet.protocol.settings.dp import DpSettings
from protofleet.protocol.settings.reader import SettingsError, decode
from tests.support.small_federation import plan

SAMPLE = {"fed3r", "fedncm"}
GRAM = {"form": "gram"}
DEVICE = {"fedadagrad", "fedadam", "fedavg", "fedavgm", "fedlsa", "fedprox", "fedsr", "fedyogi", "moon"}
ROWS = {"feddistill", "fedhp", "fedproto", "fedsa"}


def dp(unit="device", rounds=3, **more):
    return DpSettings(unit, 8.0, 1e-5, 1.0, rounds, **more)


def private(method, unit="device", rounds=3, **hyper):
    return replace(plan(method, 3, **hyper), network=Network("mlp", 8), dp=dp(unit, rounds))


def test_only_methods_with_features_independent_of_the_samples_protect_a_sample():
    assert {name for name in names() if not misfit(load(name), "sample")} == SAMPLE


def test_fedgram_with_factors_cannot_have_noise_and_the_error_names_the_form_gram():
    with pytest.raises(
        SettingsError, match='fedgram sends no sums over its samples; set method.form = "gram"'
    ):
        private("fedgram", "sample")
    assert not misfit(private("fedgram", "sample", **GRAM).variant, "sample")


def test_only_methods_with_averaged_weights_or_rows_of_classes_protect_a_device():
    assert {name for name in names() if not misfit(load(name), "device")} == DEVICE | ROWS


@pytest.mark.parametrize("method", ["fedpall", "fedproto", "fedsa", "fedhp", "fedplcc", "fedavg"])
def test_noise_for_samples_is_refused_for_methods_that_train_on_the_samples(method):
    with pytest.raises(SettingsError) as found:
        private(method, "sample")
    text = str(found.value)
    assert text.startswith(f'dp.unit is "sample", but {method} ')
    assert "noise on its updates hides no sample" in text
    assert text.endswith('take one of the methods fed3r, fedgram (with method.form = "gram"), fedncm')
    assert "\n" not in text


@pytest.mark.parametrize(
    ("method", "reason"),
    [("fedpall", "rows of classes of which only the mean is used"), ("fedtgp", "of which only the mean is used"),
     ("fednh", "one dp.clip cannot limit both"), ("tinyproto", "number of samples of each class"),
     ("fedbn", "reports the accuracy"), ("fedgram", "sends the number of samples of each class")],
)  # fmt: skip
def test_a_method_whose_updates_cannot_protect_a_device_is_refused_with_the_reason(method, reason):
    with pytest.raises(SettingsError, match=reason):
        private(method)


def test_a_run_with_noise_that_sends_no_accuracy_cannot_stop_by_accuracy():
    stop = Policy(stop=Stop(accuracy=0.9))
    demand_dp_policy(stop, private("fedavg"))
    demand_dp_policy(Policy(), private("fedproto"))
    with pytest.raises(SettingsError, match="which is not sent; leave policy.stop or dp out"):
        demand_dp_policy(stop, private("fedproto"))


def test_devices_do_not_state_their_counts_in_a_run_with_noise():
    assert plan("fedhp", 3).states_counts and not private("fedhp").states_counts


def test_noise_is_refused_for_settings_with_which_a_method_reports_personal_models():
    with pytest.raises(SettingsError, match="the accuracy of the model that a device has trained"):
        replace(plan("fedavg", 3, final_fit=True), dp=dp())


def test_a_run_with_more_rounds_than_dp_rounds_is_refused_with_both_numbers():
    with pytest.raises(SettingsError, match=r"dp\.rounds is 2, but the run has 3 rounds"):
        private("fedavg", rounds=2)


def test_a_method_that_asks_each_device_once_needs_only_one_release():
    assert private("fedncm", "sample", rounds=1).dp.rounds == 1


def test_dp_settings_without_a_number_of_rounds_are_refused():
    with pytest.raises(SettingsError, match="rounds"):
        decode(DpSettings, {"unit": "device", "epsilon": 8.0, "delta": 1e-5, "clip": 1.0}, "dp")


@pytest.mark.parametrize(
    ("key", "value"), [("epsilon", 0.0), ("epsilon", 31.0), ("delta", 0.0), ("clip", -1.0), ("unit", "row")]
)
def test_a_dp_setting_out_of_its_bounds_is_refused_by_its_name(key, value):
    table = {"unit": "device", "epsilon": 8.0, "delta": 1e-5, "clip": 1.0, "rounds": 3, key: value}
    with pytest.raises(SettingsError, match=rf"dp\.{key}"):
        decode(DpSettings, table, "dp")


def test_a_codec_that_rounds_is_refused_together_with_dp():
    codec = CodecSettings({"weights": CodecStage("ternary", "broadcast", keep=4)}, {})
    with pytest.raises(SettingsError, match="dp and codec are both set"):
        replace(private("fedavg"), codec=codec)


def test_a_delta_above_one_divided_by_the_number_of_devices_is_refused():
    made = private("fedavg")
    made.demand_fleet_fit(100_000)
    with pytest.raises(SettingsError, match=r"dp\.delta is 1e-05, but the run has 100001 devices"):
        made.demand_fleet_fit(100_001)


def test_a_plan_without_dp_has_the_bytes_of_earlier_versions():
    assert b'"dp"' not in plan("fedavg", 3).encode()


def test_a_plan_with_dp_is_the_same_after_encoding_and_reading():
    made = private("fedavg")
    assert read_plan(made.encode()) == made
    assert made.digest != replace(made, dp=None).digest


def test_one_sample_changes_the_sums_of_a_method_by_at_most_their_sensitivity():
    generator = torch.Generator().manual_seed(1)
    for made in (*(private(name, "sample") for name in sorted(SAMPLE)), private("fedgram", "sample", **GRAM)):
        sums = made.sums
        z = torch.randn(40, 16, generator=generator, dtype=torch.float64) * 30
        for one, label in zip(z, range(40), strict=True):
            part = sums.vector(one.unsqueeze(0), torch.tensor([label % 3]))
            assert len(part) == sums.numbers
            assert float(part.norm()) <= sums.sensitivity * (1 + 1e-12)
