"""A party that starts behaves the same at each position of `Connected` among its first items."""

from dataclasses import replace

import pytest

from protofleet.protocol.wire.names import COORDINATOR
from tests.simulator.test_rounds import CALM, as_soon_as, decisions, judged, judging

__all__ = ["judged"]  # This is a fixture.
READ_LATE = 20.0  # Seconds in which every device sends more than one hello.
# Items that wait after that time; `Connected` is tested at each position.
COORDINATOR_ITEMS, DEVICE_ITEMS = 12, 6
QUORUM_OF_TWO = {"policy": replace(CALM, quorum=2, settle_seconds=0.0), "bad_seconds": 0.0, "starts": True}


class Behind:
    """Dice that put `Connected` after this number of waiting items."""

    def __init__(self, number):
        self.number, self.waited = number, 0

    def randrange(self, items):
        self.waited = items
        return min(self.number, items - 1)


def started_again(place, order):
    """Kill a party in the second round, and let its next process read its inbox in this order."""

    def before(f):
        def again():
            f.kill(place)
            f.clock.after(1.0, f"{place} is switched on", boot)

        def boot():
            f.boot(place)
            f.processes[place].read_late(READ_LATE, order)

        as_soon_as(f, lambda: (2, 0, "train") in f.history.closed, again)

    return before


def first_middle_and_last(items):
    """Return all positions for `parametrize`; only `make test-all` runs the positions between these three."""
    kept = {0, items // 2, items - 1}
    return [n if n in kept else pytest.param(n, marks=pytest.mark.slow) for n in range(items)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the decisions of the same run in which no process is killed."""
    with judging(tmp_path_factory.mktemp("undisturbed")) as run:
        return decisions(run(1, **QUORUM_OF_TWO))


@pytest.mark.parametrize("number", first_middle_and_last(COORDINATOR_ITEMS))
def test_a_coordinator_resumes_at_each_position_of_connected_among_its_first_items(
    judged, undisturbed, number
):
    order = Behind(number)
    run = judged(1, started_again(COORDINATOR, order), **QUORUM_OF_TWO)
    assert order.waited == COORDINATOR_ITEMS, "every position is tested"
    assert decisions(run) == undisturbed


@pytest.mark.parametrize("number", first_middle_and_last(DEVICE_ITEMS))
def test_a_device_keeps_its_promises_at_each_position_of_connected_among_its_items(judged, number):
    order = Behind(number)
    run = judged(1, started_again("d0", order), policy=replace(CALM, quorum=5), bad_seconds=15.0)
    assert order.waited == DEVICE_ITEMS, "every position is tested"
    assert [save.round for save in run.history.saves] == list(range(1, CALM.rounds + 3))
