"""A coordinator that is killed in the pause between two rounds continues with the rest of the pause."""

import time

import pytest

from protofleet.coordinator.round.policy import Policy
from tests.hostile.federation import Federation

PAUSE = 16.0
PACED = Policy(quorum=2, gather=2, straggler_factor=0.0, pause_seconds=PAUSE)
NEXT = "protofleet_round_next_timestamp_seconds"


@pytest.mark.slow
def test_a_coordinator_that_is_killed_in_a_pause_begins_the_next_round_at_the_planned_time(tmp_path):
    with Federation(tmp_path, "a", "b", policy=PACED, rounds=2) as f:
        coordinator = f.coordinator()
        for name in ("a", "b"):
            f.raw(name)
        due = f.wait_until(lambda: f.answers() and f.metrics()[NEXT], "the pause")
        f.wait_until(lambda: time.time() > due - PAUSE / 2, "half of the pause")
        coordinator.kill()
        coordinator = f.coordinator()
        f.wait_until(lambda: any(e["round"] == 2 for e in f.events("asked")), "round 2", PAUSE)
        assert due <= time.time() < due + PAUSE / 2, "a pause that began again would be longer"
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        assert [line["kind"] for line in f.rounds()] == ["training", "training", "evaluation"]
