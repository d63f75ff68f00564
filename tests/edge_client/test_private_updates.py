"""Updates with noise, through the code that a device runs."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from protofleet.edge_client import private_updates
from protofleet.edge_client.conversation.hello import hello_of
from protofleet.edge_client.private_updates import (
    PrivateUpdates,
    demand_budget,
    demand_delta_fit,
    without_personal,
)
from protofleet.edge_client.state.file import RunEntry
from protofleet.methods.contract.dp_fit import mechanism_of
from protofleet.methods.contract.plan import Network
from protofleet.methods.contract.private_sums import SUMS
from protofleet.methods.parts.weights import first_weights
from protofleet.protocol.privacy import mechanism
from protofleet.protocol.privacy.ledger import spent_epsilon
from protofleet.protocol.privacy.noise import discrete_gaussian
from protofleet.protocol.settings.dp import DpSettings
from protofleet.protocol.settings.reader import SettingsError
from tests.support.small_federation import plan, shard

DELTA = 1e-5


def private_plan(method="fedavg", unit="device", epsilon=8.0, clip=1.0, rounds=3, delta=DELTA):
    network = Network("mlp", 8)
    return replace(plan(method, 1), network=network, dp=DpSettings(unit, epsilon, delta, clip, rounds))


def weights(value, size=6):
    return {"weights.a": np.full(size, value, np.float32), "weights.steps": np.array(3, np.int64)}


def update(made, payload, broadcast, ledger=(), samples=100, round=1):
    return PrivateUpdates(made).update("run", round, "train", payload, broadcast, samples, list(ledger))


def test_an_update_of_weights_is_the_broadcast_and_a_limited_difference_and_noise():
    made, broadcast = private_plan(epsilon=30.0, rounds=1), weights(1.0)
    updates = PrivateUpdates(made)
    rows = [updates.noisy(weights(41.0), broadcast, 100)[0]["weights.a"] for _ in range(200)]
    # The difference is 40 in each of 6 numbers, and it is limited to a length of 1.
    noise = made.dp.clip * mechanism_of(made.dp, 6).multiplier
    assert np.mean(rows, axis=0) == pytest.approx(
        np.full(6, 1 + 1 / math.sqrt(6)), abs=6 * noise / math.sqrt(200)
    )
    assert rows[0].dtype == np.float32


def test_whole_numbers_come_back_as_the_broadcast_has_them():
    broadcast = weights(1.0)
    payload = {**weights(2.0), "weights.steps": np.array(99, np.int64)}
    assert update(private_plan(), payload, broadcast).arrays["weights.steps"] == 3


def test_whole_numbers_that_are_not_in_the_broadcast_are_refused():
    with pytest.raises(SettingsError, match=r"weights\.steps, an array of whole numbers without noise"):
        update(private_plan(), weights(2.0), {"weights.a": weights(1.0)["weights.a"]})


def test_a_running_variance_with_noise_is_never_negative():
    made = replace(private_plan(epsilon=0.5, rounds=1), network=Network("cnn_bn"))
    broadcast = {name: value.numpy() for name, value in first_weights(made).items()}
    found = update(made, broadcast, broadcast).arrays
    variances = [value for name, value in found.items() if name.endswith("running_var")]
    assert variances and all((value >= 0).all() for value in variances)
    assert any((value == 0).any() for value in variances)


def test_the_same_work_gives_other_noise_and_one_release_each_time():
    made, broadcast = private_plan(), weights(1.0)
    one = update(made, weights(1.0), broadcast)
    two = update(made, weights(1.0), broadcast, [one.release])
    assert not np.array_equal(one.arrays["weights.a"], two.arrays["weights.a"])
    assert (one.release.attempt, two.release.attempt) == (1, 2)


def test_the_releases_of_a_budget_use_it_up_and_one_more_is_refused():
    made, broadcast = private_plan(rounds=3), weights(1.0)
    ledger = []
    for round in range(1, 4):
        demand_budget(made.dp, "run", ledger)
        ledger.append(update(made, weights(1.0), broadcast, ledger, round=round).release)
    assert spent_epsilon(ledger, DELTA) == pytest.approx(8.0, abs=1e-3)
    with pytest.raises(
        SettingsError, match="3 releases have epsilon 8, and one more would pass dp.epsilon = 8"
    ):
        demand_budget(made.dp, "run", ledger)
    with pytest.raises(SettingsError, match="the run continues without this device"):
        update(made, weights(1.0), broadcast, ledger, round=4)


def test_releases_of_another_run_do_not_count_for_the_budget_of_this_run():
    made = private_plan(rounds=1)
    ledger = [replace(update(made, weights(1.0), weights(1.0)).release, run="other")]
    demand_budget(made.dp, "run", ledger)


def test_an_update_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="not finite"):
        update(private_plan(), weights(math.nan), weights(1.0))


@pytest.mark.parametrize("samples, refused", [(99_999, False), (100_001, True)])
def test_a_delta_that_could_give_away_a_whole_sample_is_refused(samples, refused):
    dp = DpSettings("sample", 8.0, DELTA, 1.0, 1)
    if refused:
        with pytest.raises(SettingsError, match=r"has 100001 samples, so it must be at most 1e-05"):
            demand_delta_fit(dp, samples)
    else:
        demand_delta_fit(dp, samples)


def test_metrics_of_a_model_that_the_device_has_trained_stay_on_the_device():
    sent = {"accuracy.test.global": 0.5, "accuracy.test.personal": 0.9, "loss.validation.personal-own": 1.0,
            "seconds.work": 2.0}  # fmt: skip
    assert without_personal(sent) == {"accuracy.test.global": 0.5, "seconds.work": 2.0}


# The attack on the whole path of an update, from the work of a method to the arrays that are sent.

TRIALS = 10_000
# With so large a delta, the claim is near to what an attack can find in some thousand updates.
ATTACKED = {"epsilon": 1.0, "rounds": 1, "delta": 0.01}


def best_bound(present, absent):
    """Return a lower bound of epsilon with a confidence of 99.9 %; one half chooses the threshold."""
    half = len(present) // 2
    tried = np.quantile(present[:half], np.concatenate([np.linspace(0.05, 0.95, 19), [0.97, 0.98, 0.99]]))
    best = max(tried, key=lambda threshold: bound_at(threshold, present[:half], absent[:half]))
    return bound_at(best, present[half:], absent[half:])


def bound_at(threshold, present, absent):
    delta = ATTACKED["delta"]
    right, wrong = int((present > threshold).sum()), int((absent > threshold).sum())
    right_rate = stats.beta.ppf(0.0005, right, len(present) - right + 1) if right else 0.0
    wrong_rate = stats.beta.ppf(0.9995, wrong + 1, len(absent) - wrong)
    return math.log((right_rate - delta) / wrong_rate) if right_rate > delta else 0.0


def device_attack(trials):
    """Compare a device whose training has moved the weights as far as it can with a device that has changed none."""
    made, broadcast = private_plan(**ATTACKED), weights(0.0, size=2)
    moved = {**broadcast, "weights.a": np.array([50.0, 0.0], np.float32)}
    updates = PrivateUpdates(made)
    groups = [
        np.array([updates.noisy(payload, broadcast, 100)[0]["weights.a"][0] for _ in range(trials)])
        for payload in (moved, broadcast)
    ]
    return best_bound(*groups)


def sample_attack(trials):
    """Compare the sums with and without one sample whose features are as long as the clip."""
    made = private_plan("fedncm", "sample", clip=2.0, **ATTACKED)
    z, y = torch.zeros(20, 16, dtype=torch.float64), torch.arange(20) % 3
    z[:, 0] = 1.0
    outlier = torch.cat([z, torch.full((1, 16), 9.0, dtype=torch.float64)]), torch.cat([y, torch.tensor([0])])
    direction, groups = None, []
    for features, labels in (outlier, (z, y)):
        vector = made.sums.vector(features, labels).numpy()
        direction = vector if direction is None else direction - vector
        groups.append(vector)
    direction = direction / np.linalg.norm(direction)
    seen = Watched(made.sums)
    made.__dict__["sums"] = seen  # The plan keeps its sums there.
    updates = PrivateUpdates(made)
    for vector in groups:
        for _ in range(trials):
            updates.noisy({SUMS: vector}, {}, 20)
    projected = np.array(seen.released) @ direction
    return best_bound(projected[:trials], projected[trials:])


class Watched:
    """Sums that keep each released vector, from which the arrays of an update are computed."""

    def __init__(self, sums):
        self.numbers, self.sensitivity, self.released = sums.numbers, sums.sensitivity, []

    def payload(self, vector, samples):
        self.released.append(vector.numpy())
        return {}


@pytest.mark.parametrize("attack", [device_attack, sample_attack])
def test_the_claim_is_not_below_what_an_attack_on_updates_finds(attack):
    assert attack(TRIALS) <= 1.0


@pytest.mark.parametrize("attack", [device_attack, sample_attack])
def test_half_the_noise_is_found_by_the_same_attack(attack, monkeypatch):
    monkeypatch.setattr(mechanism, "discrete_gaussian", lambda sigma: discrete_gaussian(sigma / 2))
    assert attack(TRIALS) > 1.0


@pytest.mark.slow
@pytest.mark.parametrize("attack", [device_attack, sample_attack])
def test_a_long_attack_on_updates_stays_below_the_claim(attack):
    assert 0.4 < attack(10 * TRIALS) <= 1.0


def test_sums_that_are_not_limited_would_be_found(monkeypatch):
    monkeypatch.setattr(private_updates, "sums_in", lambda payload: np.asarray(payload[SUMS]) * 4)
    assert sample_attack(TRIALS) > 1.0


def test_a_device_states_no_counts_of_classes_in_a_run_with_noise():
    """These counts would be a release without noise."""
    made = (
        plan("fedgram", 1),
        replace(plan("fedgram", 1, form="gram"), dp=DpSettings("sample", 8.0, 1e-4, 3.0, 1)),
    )
    found = [hello_of("a", "", shard(0), one, RunEntry()).counts for one in made]
    assert found[0] and not found[1]
