import pytest

from protofleet.lab.api.experiments import experiment_from
from protofleet.lab.leakage.repeated import repeated, unrepeatable
from protofleet.protocol.settings.reader import SettingsError
from tests.lab.leakage.observations import TRAINED, small

# Settings that a repetition in one process would not follow -> a word of the reason.
OTHER = {
    "codec": ({"codec": "small"}, "codec"),
    "cohort": ({"policy": {"cohort": 1}}, "policy.cohort"),
    "networks": ({"devices": {"clients": {"optdigits": 2}, "networks": ["mlp", "cnn4"]}}, "devices.networks"),
    "robust": ({"policy": {"robust": {"weights": "trimmed"}}}, "policy.robust"),
}


def experiment(**more):
    return experiment_from(
        {
            "name": "other", "rounds": 1, "method": {"name": "fedproto" if "devices" in more else "fedavg"},
            "data": {"source": "digits", "size": 16}, "network": {"name": "mlp", "embedding_size": 32},
            "devices": {"clients": {"optdigits": 2}}, **more,
        },
        None,
    )  # fmt: skip


@pytest.mark.parametrize("key", OTHER)
def test_a_run_that_cannot_be_repeated_is_refused_with_the_setting(key):
    settings, word = OTHER[key]
    assert word in unrepeatable(experiment(**settings))
    with pytest.raises(SettingsError, match="cannot be repeated in one process"):
        repeated(experiment(**settings))


def test_a_run_whose_robust_rules_are_all_the_mean_can_be_repeated():
    table = {"robust": {"weights": "mean", "prototypes": "mean"}}
    assert unrepeatable(experiment(policy=table)) == ""


@pytest.mark.slow
def test_a_repetition_keeps_the_first_and_last_round_and_the_accuracies_of_all_rounds():
    """The last phase of FedPall measures nothing, and must not delete the accuracies of the first one."""
    found = repeated(small("fedpall", rounds=3, **TRAINED))
    assert {(one.number, one.phase) for one in found.observed.exchanges} == {
        (number, phase) for number in (1, 3) for phase in ("train", "mix")
    }
    assert all(one.accuracy["personal"].keys() == {"mfeat", "optdigits"} for one in found.rounds)
    assert {
        one.number for one in repeated(small("fedpall", rounds=2, **TRAINED), [2]).observed.exchanges
    } == {2}
