"""One enrolled device that is there before all others: it neither ends the coordinator nor turns anybody away."""

from __future__ import annotations

import time

import pytest

from coordinator.config import Rules
from coordinator.copies import LISTEN_SECONDS
from tests.hostile import wire
from tests.hostile.federation import Federation

pytestmark = pytest.mark.slow


def test_a_device_that_is_there_alone_and_answers_a_round_to_come_ends_no_coordinator(tmp_path):
    policy = Rules(quorum=2, gather=2, settle_seconds=0.5, patience_seconds=6.0)
    with Federation(tmp_path, "bad", "one", "two", rounds=2, policy=policy) as f:
        coordinator = f.coordinator()
        bad = f.raw("bad", work=lambda task: None)
        bad.wait("welcome")
        seen = 'protofleet_older_copies_total{device="bad",whose="coordinator"}'
        bad.say("update", {"examples": 1, "metrics": {}, "arrays": wire.EMPTY}, (999, "train", b""))
        f.wait_until(lambda: f.metrics().get(seen), "what it says to be counted")
        time.sleep(min(LISTEN_SECONDS, policy.patience_seconds) + 3.0)
        assert coordinator.child.poll() is None, coordinator.last_word()
        assert "know more of this run" not in f.log_of(coordinator), "one speaks for nobody else"
        bad.stop()
        real = [f.device("one"), f.device("two")]
        assert f.wait_for_end(coordinator) == 0 and [f.wait_for_end(device) for device in real] == [0, 0]
