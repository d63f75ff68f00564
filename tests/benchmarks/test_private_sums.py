"""Tests of the program that measures the cost of noise; without noise, its accuracies are those of a federation."""

from pathlib import Path

import pytest

from benchmarks.programs.private_sums import measured
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile
from protofleet.lab.local.centralised import shards_of
from protofleet.lab.local.experiment import read_experiment
from protofleet.lab.simulation.federation import Simulation
from protofleet.protocol.storage.disk import Disk

EXPERIMENT = """
name = "small"
rounds = 1
method = { name = "fedgram", form = "gram", least_samples = 1 }
network = { name = "mlp", embedding_size = 8 }
data = { source = "digits", samples = 40, test_samples = 20, validation = 0.25, size = 16 }
devices = { clients = { mnist = 1, optdigits = 1 } }
"""


def test_the_accuracy_without_noise_is_that_of_a_federation_and_both_noises_are_measured(
    tmp_path,
):
    (tmp_path / "small.toml").write_text(EXPERIMENT)
    experiment = read_experiment(Path(tmp_path / "small.toml"), [])
    found = measured(experiment, [30.0], 1e-3, draws=1, repeats=1, lams=[])
    run = Simulation(experiment.plan, shards_of(experiment), experiment.effective_policy, tmp_path / "run")
    file = RoundsFile(tmp_path / "rounds.jsonl", Disk(False))
    keep_journal(run.service.run, [file])
    run.run()
    (accuracy,) = file.records[-1]["accuracy"].values()
    assert found["no noise"] == [pytest.approx(50 * sum(accuracy.values()), abs=1e-4)]
    assert {*found} == {"no noise", "local 30", "shared 30"}
