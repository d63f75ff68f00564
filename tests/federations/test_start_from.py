"""A run starts with the newest whole snapshot of another run, also after a crash. A misfit is refused."""

import sqlite3
from dataclasses import replace

import pytest
import torch

from protofleet.coordinator.server.first_state import start_with
from protofleet.coordinator.spool.origin import Origin, link_snapshot, saved_states
from protofleet.coordinator.spool.spool import Spool
from protofleet.coordinator.start_from import start_from
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.store import DamagedError
from tests.coordinator.queue.world import KilledError, KillingDisk
from tests.support.small_federation import POLICY, plan, simulation

TWO = replace(POLICY, rounds=2)


@pytest.fixture(scope="module")
def red(tmp_path_factory):
    """Return a run of two rounds that is over, in the folder `red`."""
    return simulation(tmp_path_factory.mktemp("runs") / "red", "fedavg", policy=TWO).run()


def copied(red, runs):
    """Copy the coordinator's folder of `red`, and return the files of its snapshots, the newest first."""
    folder, now = runs / "red" / "coordinator", red.folder / "coordinator"
    for file in now.glob("snapshots/*"):
        (folder / "snapshots").mkdir(parents=True, exist_ok=True)
        (folder / "snapshots" / file.name).write_bytes(file.read_bytes())
    with red.service.run.spool.index.disk.fresh(folder / "spool.sqlite") as fresh:
        red.service.run.spool.index.db.execute("VACUUM INTO ?", (str(fresh),))
    names = dict.fromkeys(name for _, name in saved_states(folder).snapshots)
    return [folder / "snapshots" / f"{name}.body" for name in names]


def state(run):
    return {name: value.clone() for name, value in run.service.run.server_runner.server.state().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(value, other[key]) for key, value in one.items())


def test_a_run_starts_with_the_state_of_the_other_run_until_its_first_snapshot(tmp_path, red):
    origin = start_from(red.folder.parent, "red", "blue", red.plan, PlugIns())
    assert (origin.run, origin.round) == ("red", 2)
    blue = red.folder.parent / "blue"
    assert not same(state(simulation(tmp_path / "fresh", "fedavg", policy=TWO)), state(red))
    spool = Spool(blue / "coordinator")
    spool.start_run("fedavg", red.plan.encode().decode(), 0)
    spool.start_from(origin)
    spool.close()
    run = simulation(blue, "fedavg", policy=TWO)
    assert same(state(run), state(red)) and run.service.run.view.origin == origin
    run.run(until=lambda: run.service.run.machine.round == 2)
    learned = state(run)
    run.kill("coordinator")
    run.service.run.spool.close()
    run.boot_coordinator()
    assert same(state(run), learned) and not same(learned, state(red))
    with pytest.raises(SettingsError, match="has begun already, so it cannot start from red"):
        start_from(red.folder.parent, "red", "blue", red.plan, PlugIns())


def test_a_link_to_a_snapshot_can_be_repeated_after_a_crash_at_any_step(tmp_path, red):
    copied(red, tmp_path)
    steps, source, made = ("make", "link", "sync"), tmp_path / "red" / "coordinator", []
    for point in range(1, 9):
        target = tmp_path / str(point) / "coordinator"
        try:
            link_snapshot(source, target, "red", KillingDisk({point}, steps))
        except KilledError:
            made.append(point)
        origin = link_snapshot(source, target, "red", Disk(durable=False))
        files = [path.name for path in (target / "start").iterdir()]
        assert files == [f"{origin.object}.body"] and origin.round == 2
    assert len(made) > 3


def test_the_newest_whole_snapshot_is_used_and_a_missing_one_is_reported(tmp_path, red):
    newest, *older = copied(red, tmp_path)
    newest.write_bytes(b"nothing")
    with sqlite3.connect(tmp_path / "red" / "coordinator" / "spool.sqlite") as db:
        db.execute("DROP TABLE total")  # An earlier version made the folder.
    db.close()
    assert start_from(tmp_path, "red", "blue", red.plan, PlugIns()).object == older[0].stem
    for file in older:
        file.write_bytes(b"nothing")
    with pytest.raises(SettingsError, match="all snapshots in .* are damaged"):
        start_from(tmp_path, "red", "green", red.plan, PlugIns())
    for name, words in (("grey", "grey has no snapshot"), ("../red", "is no name")):
        with pytest.raises(ValueError, match=words):
            start_from(tmp_path, name, "green", red.plan, PlugIns())
    spool = Spool(tmp_path / "lost", durable=False)
    spool.start_from(Origin("red", 2, "00" * 32))
    with pytest.raises(DamagedError, match="the snapshot of red in .* is missing or damaged"):
        spool.first_state()


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (plan("fedprox", 2), "red has the method fedavg, and this run has fedprox"),
        (
            replace(plan("fedavg", 2), classes=4),
            r"head\.weight of its network has the shape \(3, \d+\), and this run needs \(4, \d+\)",
        ),
    ],
)
def test_another_method_or_another_network_is_refused_with_its_name_and_shapes(tmp_path, red, made, words):
    copied(red, tmp_path)
    with pytest.raises(SettingsError, match=words):
        start_from(tmp_path, "red", "blue", made, PlugIns())


def test_a_state_that_does_not_fit_the_server_half_is_refused_with_its_shapes(red):
    given = state(red)
    wider = {name: torch.zeros(*value.shape, 2) for name, value in given.items()}
    first = min(given)
    shape = tuple(given[first].shape)
    with pytest.raises(SettingsError) as caught:
        start_with(red.plan.server_half(), wider, "the state of red after round 2")
    assert str(caught.value) == (
        "the state of red after round 2 does not fit this run: "
        f"the array {first} has the shape {(*shape, 2)}, and this run needs {shape}"
    )
    with pytest.raises(SettingsError, match="the array more with the shape .* is not part of the state"):
        start_with(red.plan.server_half(), {**given, "more": torch.zeros(1)}, "the state of red")
