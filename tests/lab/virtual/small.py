"""A small experiment and small profiles, for the tests of virtual time."""

from __future__ import annotations

from pathlib import Path

from protofleet.lab.local.experiment import Experiment, read_experiment
from protofleet.lab.virtual.profiles import ReadProfiles, read_profiles

EXPERIMENT = """
name = "small"
rounds = 2
classes = 10
method = { name = "fedavg", lr = 0.05, batch = 8, epochs = 1 }
network = { name = "mlp", feature_size = 16 }
[data]
source = "digits"
domain = "optdigits"
samples = 40
test_samples = 20
[devices]
count = 3
"""
PROFILES = """
[boards.pi]
share = 1
step_seconds = 0.1
watts = 5
[lines.lte]
share = 1
up = 8
down = 8
delay = 0.05
watts = 1
price = 2
"""


def experiment(folder: Path, *assignments: str) -> Experiment:
    path = folder / "small.toml"
    path.write_text(EXPERIMENT)
    return read_experiment(path, list(assignments))


def profiles(folder: Path, text: str = PROFILES) -> ReadProfiles:
    path = folder / "boards.toml"
    path.write_text(text)
    return read_profiles(path)
