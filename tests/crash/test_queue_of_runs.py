"""The runs of a queue end in the same way wherever the coordinator or one of the devices crashes.

`make crash ARGS="--queue"` has all points; here are some.
"""

import pytest

from protofleet.protocol.wire.names import COORDINATOR
from tests.crash.queue_points import FATES, QueueDeath, deaths_of, unbroken_queue
from tests.crash.queue_world import DEVICES, PARTIES, SCRIPT, WHOLE, queue_world
from tests.support.few_methods import few

STRIDE = {COORDINATOR: 171, DEVICES[1]: 73}


def test_a_queue_without_crashes_obeys_its_commands_and_each_run_has_its_usual_bits(tmp_path):
    found, _ = unbroken_queue()
    ends = dict.fromkeys(WHOLE, "finished") | {"never": "stopped", "long": "stopped", "last": "failed"}
    assert {run: (state, bool(closed)) for run, (state, _, closed) in found["rows"].items()} == {
        run: (state, True) for run, state in ends.items()
    }
    refused = {4, 8}  # A name that is taken, and a command on a run that is over.
    assert found["told"] == {n: "refused" if n in refused else "done" for n in range(len(SCRIPT))}
    assert len({tuple(found[f"snapshots of {run}"]) for run in WHOLE}) == len(WHOLE)
    for command in SCRIPT[:2]:
        alone = queue_world(tmp_path / command.run, script=(command,)).live().outcome()
        for what in ("snapshots", "rounds"):
            assert alone[f"{what} of {command.run}"] == found[f"{what} of {command.run}"]


def test_the_crash_points_of_a_queue_are_the_same_each_time(tmp_path):
    world = queue_world(tmp_path).live()
    assert {party: world.points[party].passed for party in PARTIES} == unbroken_queue()[1]


@pytest.mark.parametrize("party", few(PARTIES, 2))
def test_a_crash_in_a_queue_changes_no_state_no_reason_no_verdict_and_no_bit(party):
    fates = list(FATES)
    for number, death in enumerate(list(deaths_of(party, "killed"))[5 :: STRIDE[party]]):
        fate = fates[number % len(fates)] if party == COORDINATOR else "killed"
        death = QueueDeath(party, death.point, fate)
        assert death.differences() == [], f"{death} before '{death.step}'"
