"""Tests that a run whose method or mode does not allow a rule is refused with the reason and a fix."""

import pytest

import protofleet
from protofleet.cli.main import main
from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.robust.fit import accepted_rules, demand_covered, demand_robust_fit
from protofleet.coordinator.round.policy import Policy
from protofleet.coordinator.round.robust import RULES, Robust
from protofleet.coordinator.service_settings import ServiceSettings
from protofleet.methods.contract.averages import Averaged
from protofleet.methods.contract.catalog import load, names
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.contract.wants import TensorSpec
from protofleet.protocol.settings.reader import SettingsError, decode
from tests.support.few_methods import few_steps

BUFFERED = {"mode": "buffered", "buffer": 2}


def policy(**settings):
    more = settings.pop("policy", {})
    return Policy(robust=Robust(**settings), **more)


@pytest.mark.parametrize("setting", ["weights", "prototypes"])
@pytest.mark.parametrize("method", names())
def test_each_method_accepts_a_rule_or_refuses_it_with_a_fix(method, setting):
    plan = few_steps(method).plan()
    if setting in accepted_rules(plan.variant):
        demand_robust_fit(policy(**{setting: "trimmed"}), plan)
        return
    with pytest.raises(SettingsError) as raised:
        demand_robust_fit(policy(**{setting: "trimmed"}), plan)
    words = str(raised.value)
    assert words.startswith(f'policy.robust.{setting} is "trimmed", but {method} averages no {setting}')
    assert f'set {setting} = "mean", or take one of ' in words and "\n" not in words


@pytest.mark.parametrize("method", names())
def test_each_method_accepts_the_rule_mean(method):
    demand_robust_fit(policy(weights="mean", prototypes="mean"), few_steps(method).plan())
    demand_robust_fit(Policy(), few_steps(method).plan())


def test_fedproto_with_averaged_models_accepts_both_rules():
    plan = Plan("fedproto", 3, 2, network=Network("mlp"), hyper={"average_models": True})
    demand_robust_fit(policy(weights="cap", prototypes="clip_median"), plan)
    with pytest.raises(SettingsError, match="averages no weights"):
        demand_robust_fit(policy(weights="cap"), Plan("fedproto", 3, 2, network=Network("mlp")))


def test_methods_that_need_individual_updates_accept_no_rule():
    refusing = {name for name in names() if not accepted_rules(load(name))}
    assert {"fedplcc", "scaffold", "fedgram", "fednova", "fedheal"} <= refusing
    assert accepted_rules(load("fedpall")) == {"prototypes"}


@pytest.mark.parametrize("rule", ["median", "geometric"])
def test_rules_that_count_each_device_once_are_refused_in_buffered_rounds(rule):
    plan = Plan("fedavg", 3, 2, network=Network("mlp"))
    with pytest.raises(SettingsError, match='a late update could not count less; set mode = "synchronous"'):
        demand_robust_fit(policy(weights=rule, policy=BUFFERED), plan)
    for other in {*RULES} - {"median", "geometric"}:
        demand_robust_fit(policy(weights=other, policy=BUFFERED), plan)


@pytest.mark.parametrize("settings, words", [
    ({"weights": "krum"}, "weights is 'krum', it must be one of mean, cap, clip_median, trimmed, median"),
    ({"prototypes": "clip"}, "prototypes is 'clip', it must be one of mean, cap"),
    ({"liars": 0.5}, "liars is 0.5"),
    ({"liars": 0.0}, "liars is 0.0"),
])  # fmt: skip
def test_a_wrong_setting_is_refused_with_its_value_and_its_limit(settings, words):
    with pytest.raises(ValueError, match=words):
        Robust(**settings)


def test_the_property_rules_leaves_out_mean():
    assert not Robust().rules
    assert Robust(weights="cap", prototypes="mean").rules == {"weights": "cap"}


def test_a_phase_that_requests_an_array_outside_its_mean_is_refused_before_the_task_is_sent():
    ask = protofleet.Ask("train", {}, {"weights.a": TensorSpec((2,)), "steps": TensorSpec((1,))})
    with pytest.raises(SettingsError, match="but this phase also requests steps, which is not averaged"):
        demand_covered("mine", Averaged(("weights",)), ask)
    demand_covered("mine", Averaged(("weights", "steps")), ask)


REFUSED = 'policy.robust.weights is "cap", but fedproto averages no weights over its devices'
ROBUST = {"robust": {"weights": "cap"}}


def test_settings_of_a_coordinator_with_a_rule_that_the_method_refuses_are_refused():
    with pytest.raises(SettingsError, match=REFUSED):
        decode(
            CoordinatorSettings,
            {"name": "run", "rounds": 2, "classes": 3, "method": {"name": "fedproto"}, "policy": ROBUST},
        )


def test_a_submitted_run_with_a_rule_that_the_method_refuses_is_refused():
    service = ServiceSettings.of({"slots": 1})
    text = 'rounds = 2\nclasses = 3\n[method]\nname = "fedproto"\n[policy.robust]\nweights = "cap"\n'
    with pytest.raises(SettingsError, match=REFUSED):
        service.of_run("run", text)


def test_an_experiment_of_a_script_with_a_rule_that_the_method_refuses_is_refused():
    with pytest.raises(protofleet.SettingsError, match=REFUSED):
        protofleet.run({"name": "run", "rounds": 2, "method": {"name": "fedproto"}, "policy": ROBUST})


def test_a_misspelt_rule_is_refused_in_one_line_with_exit_code_2(tmp_path, capsys):
    (tmp_path / "run.toml").write_text(
        'name = "run"\nrounds = 2\n[method]\nname = "fedavg"\n[policy.robust]\nweights = "trim"\n'
    )
    assert main(["run", str(tmp_path / "run.toml")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert 'policy.robust.weights is "trim", but must be one of "mean", "cap", "clip_median"' in line
