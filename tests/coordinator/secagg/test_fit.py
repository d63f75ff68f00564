"""Settings with which masked sums cannot work, or would protect no device, are refused in one line with a fix."""

from dataclasses import replace

import pytest

from protofleet.coordinator.round.policy import Policy, Stop
from protofleet.coordinator.round.robust import Robust
from protofleet.coordinator.secagg.fit import demand_secagg_fit
from protofleet.methods.contract.averages import Averaged
from protofleet.methods.contract.catalog import load
from protofleet.methods.contract.plan import Network, Plan, read_plan, secagg_misfit
from protofleet.protocol.settings.dp import DpSettings
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.settings.secagg import SecaggSettings

SETTINGS = SecaggSettings()
POLICY = Policy(quorum=3)


def plan(method="fedavg", secagg=SETTINGS, **more):
    return Plan(method, 3, 2, network=Network("mlp"), secagg=secagg, **more)


@pytest.mark.parametrize("method, words", [
    ("fedplcc", "would protect nothing: fedplcc uses the updates of single devices"),
    ("fedpall", "the phase mix of fedpall uses the updates of single devices"),
    ("fedgen", "needs the number of samples of each class"),
    ("fedtgp", "would protect nothing"),
])  # fmt: skip
def test_a_method_for_which_a_sum_protects_no_device_is_refused(method, words):
    with pytest.raises(SettingsError, match=words) as error:
        plan(method)
    assert "leave secagg out, or take one of" in str(error.value) and "\n" not in str(error.value)


def test_a_method_with_two_averaged_phases_in_a_round_is_refused():
    one = load("fedavg")
    two = replace(one, averaged={**one.averaged, "again": one.averaged["train"]})
    problem = secagg_misfit(two, "twice")
    assert "twice has 2 averaged phases in a round (train, again)" in problem
    assert "leave secagg out, or take one of" in problem and "\n" not in problem
    assert not secagg_misfit(one, "fedavg")


@pytest.mark.parametrize("method, hyper", [("fedgram", {"form": "gram"}), ("fed3r", {}), ("fedncm", {})])
def test_sums_over_samples_without_noise_are_refused_with_the_settings_of_noise(method, hyper):
    reason = f"{method} sends sums over samples: without noise, a sum of few devices still shows whether a sample is"
    with pytest.raises(SettingsError, match=reason) as error:
        plan(method, hyper=hyper)
    assert str(error.value).endswith('add [dp] with unit = "sample", or leave secagg out')


@pytest.mark.parametrize("method, hyper", [("fedgram", {"form": "gram"}), ("fed3r", {}), ("fedncm", {})])
def test_sums_over_samples_with_noise_are_one_array_of_their_phase(method, hyper):
    dp = DpSettings("sample", 8.0, 1e-5, 1.0, 2)
    found = plan(method, hyper=hyper, dp=dp)
    assert found.summed_phases == {"describe": Averaged(("sums",), by="devices")}
    assert found.kinds.of("sums.masked") == "sums"
    assert plan(method, hyper=hyper, dp=dp, secagg=None).kinds.of("sums.masked") == "control"
    demand_secagg_fit(replace(POLICY, cohort=512), found)
    with pytest.raises(SettingsError, match="secagg.bits is 24, .* no room for a single sample"):
        demand_secagg_fit(replace(POLICY, cohort=512), replace(found, secagg=SecaggSettings(bits=24)))


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedlsa", "fedproto", "fedsa", "fednh", "fedhp"])
def test_methods_of_weights_and_of_prototypes_accept_masked_sums(method):
    assert [*plan(method).summed_phases] == ["train"]
    assert not plan(method, secagg=None).summed_phases


@pytest.mark.parametrize("codec", ["small", "smallest", "medium"])
def test_a_codec_that_rounds_is_refused_together_with_masked_sums(codec):
    with pytest.raises(SettingsError, match="leave codec out, and use secagg.bits = 24 or 16"):
        plan().with_codec(codec)


def test_a_run_of_masked_sums_uses_no_codec():
    assert plan().with_codec(None).coding is None
    assert plan(secagg=None).with_codec(None).coding is not None


@pytest.mark.parametrize("change, words", [
    ({"mode": "buffered", "buffer": 3}, 'set mode = "synchronous"'),
    ({"cohort": 4, "spares": 1}, "set spares = 0"),
    ({"robust": Robust(prototypes="median")}, "leave policy.robust or secagg out"),
    ({"quorum": 2}, "raise policy.quorum to at least 3"),
    ({"stop": Stop(accuracy=0.9)}, 'set metrics = "each", or leave policy.stop out'),
    ({"cohort": 512}, "fewer than 6 bits behind the point"),
])  # fmt: skip
def test_a_policy_that_needs_single_updates_is_refused(change, words):
    small = plan(secagg=SecaggSettings(bits=16, limit=8.0))
    with pytest.raises(SettingsError, match=words) as error:
        demand_secagg_fit(replace(POLICY, **change), small)
    assert "\n" not in str(error.value)
    demand_secagg_fit(POLICY, small)
    demand_secagg_fit(replace(POLICY, **change), plan(secagg=None))


@pytest.mark.parametrize("change, words", [
    ({"bits": 20}, "bits is 20, it must be one of 16, 24, 32"),
    ({"metrics": "sum"}, "metrics is 'sum', it must be one of off, each"),
    ({"bits": 16, "limit": 60_000.0}, "use more bits, a smaller limit"),
])  # fmt: skip
def test_wrong_settings_are_refused_with_their_value_and_a_fix(change, words):
    with pytest.raises(ValueError, match=words):
        SecaggSettings(**change)


@pytest.mark.parametrize("bits", [16, 24, 32])
@pytest.mark.parametrize("devices", [3, 20, 100])
@pytest.mark.parametrize("limit", [0.1, 1.0, 3.7])
def test_the_fraction_is_the_largest_for_which_the_sum_cannot_overflow(bits, devices, limit):
    found = SecaggSettings(bits=bits, limit=limit).fraction(devices)

    def fits(fraction):
        return devices * -(-(limit * 2**fraction) // 1) * 2 + 1 <= 2**bits

    assert fits(found) and (found == 30 or not fits(found + 1))


def test_a_plan_without_masked_sums_has_the_bytes_of_earlier_versions():
    assert b"secagg" not in plan(secagg=None).encode()
    told = plan(secagg=SecaggSettings(bits=24))
    assert read_plan(told.encode()) == told and b'"secagg"' in told.encode()
