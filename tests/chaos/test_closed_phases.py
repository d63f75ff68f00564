"""The answers that the audit reads from the spool are the answers that the server half got.

This is true also if any process was killed in between.
"""

from dataclasses import replace
from functools import partial

from protofleet.coordinator.observe.observers import Events, keep_journal
from protofleet.coordinator.round.events import Stage
from tests.chaos.audit import given_in
from tests.chaos.closed_phases import closed_phases, note_closed_phases
from tests.support.small_federation import POLICY, simulation


def watched(folder, **more):
    """Return a run whose closed phases are noted and whose events are printed."""
    note_closed_phases(folder / "coordinator")
    run = simulation(folder, "fedpall", **more)
    keep_journal(run.service.run, [Events()])
    return run


def restart_coordinator(run):
    run.kill("coordinator")
    run.boot_coordinator()
    run.service.run.observers.clear()
    keep_journal(run.service.run, [Events()])


def collects(run, number, phase):
    machine = run.service.run.machine
    return (machine.round, machine.asked, machine.stage) == (number, phase, Stage.COLLECTING)


def test_each_phase_is_noted_once_with_the_answers_that_the_server_half_got(tmp_path, capsys):
    run = watched(tmp_path)
    for number in (1, 2, 3):
        run.run(until=partial(collects, run, number, "mix"))
        restart_coordinator(run)
    run.run()
    run.service.run.spool.close()
    (log := tmp_path / "coordinator.log").write_text(capsys.readouterr().out)
    closed, given = closed_phases(tmp_path / "coordinator"), given_in(log)
    assert [(c.round, c.phase) for c in closed] == [
        *((number, phase) for number in (1, 2, 3) for phase in ("train", "mix")), (4, "evaluate"),
    ]  # fmt: skip
    assert all(len(c.answers) == 3 and not c.reopened for c in closed)
    assert [c for c in closed if c not in given] == [c for c in given if c not in closed] == []
    assert len(given) == len(closed) + 3, "each replay was given its train once more"


def test_the_phases_of_a_repeated_round_are_noted_as_reopened_and_closed_again(tmp_path):
    run = watched(tmp_path, policy=replace(POLICY, patience_seconds=30.0))
    run.run(until=partial(collects, run, 2, "mix"))
    run.kill("device-1")
    run.run(until=lambda: run.service.run.machine.attempt == 1)
    run.boot_device("device-1")
    run.run()
    run.service.run.spool.close()
    found = [(c.phase, c.reopened) for c in closed_phases(tmp_path / "coordinator") if c.round == 2]
    assert found == [("train", False), ("train", True), ("train", False), ("mix", False)]
