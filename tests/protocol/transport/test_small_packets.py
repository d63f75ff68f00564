"""Tests with real processes and a model of 1 MB at a broker with packets of 5,120 bytes, the smallest usable size."""

import pytest

from protofleet.coordinator.round.policy import Policy
from protofleet.methods.contract.plan import Network
from tests.hostile.federation import Federation

LEAST = ["max_packet_size 5120"]
MEGABYTE = Network("mlp", feature_size=1300)
ALONE = Policy(quorum=1, settle_seconds=0.5)
pytestmark = pytest.mark.slow


def test_a_model_of_one_megabyte_is_sent_in_the_smallest_packets(tmp_path):
    with Federation(tmp_path, "a", "b", broker=LEAST, network=MEGABYTE, rounds=2) as federation:
        coordinator = federation.coordinator()
        devices = [federation.device(name) for name in ("a", "b")]
        assert federation.wait_for_end(coordinator) == 0, federation.last_words()
        rounds = federation.rounds()
        assert [federation.wait_for_end(device) for device in devices] == [0, 0]
    assert rounds[0]["payload"]["up"]["weights"] / 2 > 1e6
    assert [len(line["participants"]) for line in rounds[:2]] == [2, 2]


def test_a_device_without_the_form_manifest_is_refused_with_the_packet_limit_to_set(tmp_path):
    with Federation(
        tmp_path, "a", "old", broker=LEAST, network=MEGABYTE, rounds=1, policy=ALONE
    ) as federation:
        coordinator = federation.coordinator()
        federation.raw("old")
        words = "it does not know manifest, without which it cannot take part: the broker accepts"
        federation.wait_until(lambda: words in federation.log_of(coordinator), "the refusal")
        line = next(line for line in federation.log_of(coordinator).splitlines() if words in line)
        federation.device("a")
        assert federation.wait_for_end(coordinator) == 0, federation.last_words()
    assert "packets of 5120 bytes" in line and "raise the broker's limit to 21" in line


def test_a_model_with_too_many_blocks_for_a_manifest_is_refused_before_the_run(tmp_path):
    huge = Network("mlp", feature_size=6000)
    with Federation(tmp_path, "a", broker=LEAST, network=huge, rounds=1) as federation:
        coordinator = federation.coordinator()
        assert federation.wait_for_end(coordinator) != 0
        log = federation.log_of(coordinator)
    assert "raise its limit to 6144 or more" in log and "Traceback" not in log
