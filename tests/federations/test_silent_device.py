"""A device that sends hellos and no updates delays the run by the patience once, in virtual time."""

import logging

import pytest

from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import replace_coordinator, shard, simulation

log = logging.getLogger(__name__)
SILENT = "device-3"
PATIENCE = 600.0


def federation(folder, silent_seconds):
    """Return a run of four devices with three seats; the work of the last one takes `silent_seconds`."""
    policy = RunPolicy(
        rounds=6, quorum=3, cohort=3, gather=4, patience_seconds=PATIENCE, straggler_factor=0.0
    )
    run = simulation(folder, "fedavg", policy=policy, shards={SILENT: shard(3)}, hyper={"epochs": 1})
    file = RoundsFile(folder / "rounds.jsonl")
    keep_journal(run.service.run, [file])
    run.run(until=lambda: SILENT in run.service.run.machine.roster)
    run.workers[SILENT].seconds = silent_seconds
    return run, file


@pytest.mark.slow
def test_a_silent_device_delays_six_rounds_by_one_patience(tmp_path):
    """Earlier, with cohort = quorum, each draw of the device cost one patience: 7,836 s for these six rounds."""
    run, file = federation(tmp_path, 1e9)
    run.run()
    assert run.service.finished and [line["round"] for line in file.records] == list(range(1, 8))
    log.warning("%.0f s of virtual time", run.clock.now)
    assert PATIENCE < run.clock.now < 2 * PATIENCE
    assert not any(SILENT in line["participants"] for line in file.records[1:])
    assert any(SILENT in phase["asked"] for line in file.records for phase in line["phases"])


def test_a_restarted_coordinator_waits_at_most_once_more_for_a_silent_device(tmp_path):
    run, file = federation(tmp_path, 1e9)
    run.run(until=lambda: bool(run.service.run.machine.silent.devices))
    before = run.clock.now
    replace_coordinator(run, file)
    assert not run.service.run.machine.silent.devices
    run.run()
    assert run.service.finished and [line["round"] for line in file.records] == list(range(1, 8))
    log.warning("%.0f s of virtual time after the restart", run.clock.now - before)
    assert run.clock.now - before < 1.5 * PATIENCE


@pytest.mark.slow
def test_a_device_that_is_slow_once_returns_to_the_rounds(tmp_path):
    run, file = federation(tmp_path, PATIENCE + 2.0)
    silent = run.service.run.machine.silent
    run.run(until=lambda: bool(silent.devices))
    run.workers[SILENT].seconds = 1.0
    run.run()
    assert run.service.finished and not silent.devices
    assert SILENT in file.records[-1]["participants"] and run.clock.now < 3 * PATIENCE
