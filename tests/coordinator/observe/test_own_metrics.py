"""A metric of a plug-in that is not a finite number is left out of all means with a warning."""

import logging
from dataclasses import replace

import pytest

from protofleet.coordinator.observe.log_lines import LogLines
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile, read_rounds
from protofleet.lab.local.display.progress import ProgressDisplay
from protofleet.lab.simulation.federation import Simulation
from protofleet.lab.simulation.network import NetworkConditions
from protofleet.methods.plugins import file
from protofleet.methods.plugins.allowed import PlugIns
from tests.support.small_federation import POLICY, plan, shard

METRICS = """
def hollow(scores, labels):
    return float("nan")


def whole(scores, labels):
    return 0.5


METRICS = {"hollow": hollow, "whole": whole}
"""


class Shown:
    """An observer that keeps the lines that `protofleet run` shows without a terminal."""

    def __init__(self):
        self.display, self.lines = ProgressDisplay(3), []

    def entry(self, what, details):
        self.lines.append(self.display.describe({"event": what, **details}))

    def round_ended(self, record):
        pass


@pytest.fixture
def made(tmp_path):
    (tmp_path / "mine.py").write_text(METRICS)
    source, _ = file.from_file(tmp_path / "mine.py", allowed=None)
    return replace(plan("fedavg", POLICY.rounds), plugins={"metrics": source.sha256})


def test_a_metric_that_is_not_finite_is_reported_once_by_devices_and_coordinator(made, tmp_path, caplog):
    shards, shown = {f"device-{i}": shard(i) for i in range(3)}, Shown()
    allowed = PlugIns((str(tmp_path / "mine.py"),), tuple(made.plugins.values()))
    run = Simulation(made, shards, POLICY, tmp_path / "world", NetworkConditions(), 0, plugins=allowed)
    keep_journal(
        run.service.run, [RoundsFile(tmp_path / "rounds.jsonl"), LogLines("global", lambda: 3), shown]
    )
    with caplog.at_level(logging.WARNING):
        run.run()
    words = (
        "metric hollow is no finite number on device-0, device-1, device-2 in round 1: it is left out of the means; "
        "`protofleet check FILE` tries it"
    )
    said = [record.getMessage() for record in caplog.records if "hollow" in record.getMessage()]
    assert [line for line in said if line.startswith("metric hollow is no finite number")] == [words]
    assert [line for line in shown.lines if "hollow" in line] == [words]
    own = "metric hollow is nan in round 1, phase train (hollow.test.global); this value is left out"
    assert said.count(own) == 3 and len(said) == 4
    figures = [line["figures"] for line in read_rounds(tmp_path / "rounds.jsonl")]
    assert all(found["whole.global.mean"] == 0.5 and "hollow.global.mean" not in found for found in figures)
