"""Tests that all runs of a coordinator share one budget of blocks in flight, in the order of the offers."""

from __future__ import annotations

from protofleet.lab.simulation.network import NetworkConditions
from protofleet.protocol.link.block_budget import BUDGET
from protofleet.protocol.link.coordinator_run import CoordinatorRunLink
from protofleet.protocol.storage.store import ObjectStore
from tests.protocol.ends import Ends, weights

HUGE = 2_000_000  # Numbers of an update whose blocks are more than a window.
SLOW = NetworkConditions(delay=0.1)


def two_runs(folder):
    """Return ends whose devices a to c are in one run, and whose devices d to f are in another run."""
    ends = Ends(folder, "abcdef", SLOW)
    blue = CoordinatorRunLink(
        ends.links["coordinator"], "blue", lambda d: ObjectStore(folder / f"blue-{d}", False)
    )
    blue.answers.admission_controller = ends.gate
    ends.links["coordinator"].add(blue)
    for device in "def":
        ends.links[device].run = "blue"
    return ends, blue


def test_two_runs_together_have_no_more_blocks_in_flight_than_the_budget(tmp_path):
    ends, blue = two_runs(tmp_path)
    most = []

    def in_flight():
        fetches = [*ends.coordinator.answers.fetches.values(), *blue.answers.fetches.values()]
        most.append(sum(len(fetch.asked) for fetch, _ in fetches))
        return False

    for device in "abcdef":
        ends.update(device, weights(HUGE, ord(device)))
    ends.run(until=in_flight)
    heard = [(received.sender, received.run) for received in ends.heard["coordinator"]]
    assert sorted(heard) == [*((d, "") for d in "abc"), *((d, "blue") for d in "def")]
    assert max(most) == BUDGET


def test_an_update_that_waits_for_the_budget_begins_when_another_run_is_closed(tmp_path):
    ends, blue = two_runs(tmp_path)
    for device in "defabc":
        ends.update(device, weights(HUGE, ord(device)))
    ends.run(until=lambda: len(ends.coordinator.answers.fetches) == 3)
    begun = [device for device, (fetch, _) in ends.coordinator.answers.fetches.items() if fetch.begun]
    assert begun == ["a"], "four windows are the whole budget"
    ends.links["coordinator"].remove(blue, ends.clock.now)
    assert all(fetch.begun for fetch, _ in ends.coordinator.answers.fetches.values())
    assert not blue.answers.fetches
