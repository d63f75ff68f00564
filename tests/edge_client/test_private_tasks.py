"""A device whose privacy budget is used up does not train."""

from dataclasses import replace

import pytest

from protofleet.edge_client.job_runner import JobRunner
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.work_queue import Question
from protofleet.methods.contract.bridge import to_numpy
from protofleet.methods.contract.plan import Network
from protofleet.methods.parts.weights import first_weights
from protofleet.protocol.settings.dp import DpSettings
from protofleet.protocol.settings.reader import SettingsError
from tests.support.small_federation import plan, shard

MADE = replace(plan("fedavg", 2), network=Network("mlp", 8), dp=DpSettings("device", 8.0, 1e-4, 1.0, 2))
PERSONAL = "accuracy.test.personal"


class CountedJob:
    def __init__(self):
        self.done = 0

    def run(self, phase, number, received):
        self.done += 1
        return to_numpy(first_weights(MADE)), {PERSONAL: 0.9, "accuracy.test.global": 0.5}

    def state(self):
        return {}

    def restore(self, state):
        raise AssertionError("a job without state is not restored")


@pytest.fixture
def device(tmp_path):
    job, state = CountedJob(), DeviceState(tmp_path, durable=False)
    runner = JobRunner(lambda made: job, state, shard(0, 12), lambda: 1 << 16, lambda: 0.0)
    runner.begin(MADE, "run", 1)
    name = state.of("run").store.put(to_numpy(first_weights(MADE))).object
    return job, runner, state.of("run"), name


def question(number, name, phase="train"):
    return Question(f"{number:064x}", number, phase, name, 1, None)


def test_a_task_over_the_privacy_budget_is_refused_before_the_training(device):
    job, runner, state, name = device
    for number in (1, 2):
        runner.answer(job, question(number, name), "run")
    with pytest.raises(SettingsError, match="2 releases have epsilon 8, and one more would pass"):
        runner.answer(job, question(3, name), "run")
    assert job.done == 2
    assert [one.round for one in state.releases] == [1, 2]


def test_the_accuracy_of_the_trained_model_is_not_in_the_update(device):
    job, runner, _, name = device
    metrics = runner.answer(job, question(1, name), "run").metrics
    assert PERSONAL not in metrics
    assert metrics["accuracy.test.global"] == 0.5


@pytest.mark.parametrize("method, sent", [("fedavg", True), ("fedproto", False)])
def test_only_the_confusion_counts_of_a_global_model_are_sent(tmp_path, method, sent):
    class Restorable(CountedJob):
        def restore(self, state):
            pass

    state, made = DeviceState(tmp_path, durable=False), replace(MADE, method=method)
    runner = JobRunner(
        lambda plan: Restorable(),
        state,
        shard(0, 12),
        lambda: 1 << 16,
        lambda: 0.0,
        tells_confusion=lambda: True,
    )
    answer = runner.answer(runner.begin(made, "run", 1), question(1, b"", "evaluate"), "run")
    assert bool(len(state.of("run").store.load(bytes.fromhex(answer.object)))) == sent


def test_the_stored_update_has_noise_and_not_the_trained_weights(device):
    job, runner, state, name = device
    answer = runner.answer(job, question(1, name), "run")
    stored = state.store.load(bytes.fromhex(answer.object))
    worked = to_numpy(first_weights(MADE))
    floats = [key for key in worked if worked[key].dtype.kind == "f"]
    assert floats and all((stored[key] != worked[key]).mean() > 0.99 for key in floats)
