"""After a crash at any point after the restore of a backup, the run continues, and no generations are mixed."""

import pytest

from protofleet.protocol.wire.names import COORDINATOR
from tests.crash.queue_world import DEVICES
from tests.crash.restored_world import RUN, restored_world, virtual


def play(folder, deadly=None):
    """Continue from a backup that is a round behind the devices; return the outcome and the points of these steps."""
    world = restored_world(folder, deadly=deadly or {})
    with virtual(world):
        world.begin()
        world.submit("fedper", rounds=4)
        world.until_round(2)
        backup = world.back_up()
        world.until_round(3)
        first = {name: len(world.points[name].passed) for name in (COORDINATOR, DEVICES[1])}
        world.put_back(backup)
        world.until(lambda: world.rows().get(RUN, {}).get("state") == "paused")
        assert world.order("resume", new_generation=True, keep_halves=True)["verdict"] == "done"
        world.until(lambda: any(run == f"{RUN}.2" for _, run, *_ in world.asked))
        last = {name: len(world.points[name].passed) for name in first}
        world.until(lambda: world.rows().get(RUN, {}).get("over"))
        row = world.rows()[RUN]
        outcome = row["state"], row["generation"], world.mixed(), {run for _, run, *_ in world.asked}
        deaths = sum(world.points[name].deaths for name in first)
    return outcome, {name: (first[name] + 1, last[name]) for name in first}, deaths


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return play(tmp_path_factory.mktemp("whole"))


def test_a_restored_run_without_crashes_has_two_names_on_the_wire(whole):
    assert whole[0] == ("finished", 2, [], {RUN, f"{RUN}.2"})


@pytest.mark.slow
@pytest.mark.parametrize("party", [COORDINATOR, DEVICES[1]])
@pytest.mark.parametrize("part", range(4))
def test_a_crash_after_a_backup_is_restored_does_not_change_the_outcome(whole, tmp_path, party, part):
    outcome, points, _ = whole
    start, end = points[party]
    found = {}
    for point in range(start + part, end + 1, 4):
        found[point], _, deaths = play(tmp_path / str(point), {party: frozenset({point})})
        assert deaths == 1
    assert {point: one for point, one in found.items() if one != outcome} == {}
