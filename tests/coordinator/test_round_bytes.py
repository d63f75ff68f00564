"""The bytes of a round that are computed before the run, with and without a codec."""

from dataclasses import replace

import pytest

from protofleet.coordinator.round_bytes import (
    JOIN,
    MESSAGES,
    Arrays,
    RoundCost,
    demand_one_round,
    describe_budget,
    round_bytes,
)
from protofleet.methods.contract.base import Method
from protofleet.methods.contract.plan import Network, Plan
from protofleet.protocol.settings.budget import BudgetSettings
from protofleet.protocol.settings.size import ByteSize

NETWORK = Network("cnn_bn")


def plan(method, codec):
    return Plan(method, 10, 12, size=16, network=NETWORK).with_codec(codec)


def budget(size):
    return BudgetSettings(bytes_per_device=ByteSize(size))


def test_the_expected_size_of_a_round_with_a_sparse_codec_is_known_before_the_run():
    plain, coded = round_bytes(plan("fedavg", "off")), round_bytes(plan("fedavg", "small"))
    assert coded.arrays is Arrays.COUNTED and 30 < plain.training / coded.training < 36
    words = describe_budget(budget(1_000_000), plan("fedavg", "small"), coded)
    assert words == (
        "a round transfers about 90.3 kB for each device; budget.bytes_per_device 1.0 MB holds 10 of 12 rounds"
    )


def test_a_method_with_one_task_per_device_needs_the_budget_of_one_round():
    words = describe_budget(budget(1_000_000), plan("fedncm", "off"), round_bytes(plan("fedncm", "off")))
    assert words.endswith("budget.bytes_per_device 1.0 MB holds 1 of 1 rounds")


def test_a_limit_below_one_round_with_a_sparse_codec_is_refused():
    demand_one_round(budget(200_000), plan("fedavg", "small"))
    with pytest.raises(ValueError, match=r"bytes_per_device is 100\.0 kB, but to join, one round and the"):
        demand_one_round(budget(100_000), plan("fedavg", "small"))


def test_a_maximum_is_shown_if_the_size_depends_on_the_values_and_only_the_messages_must_fit():
    coded = round_bytes(plan("fedproto", "small"))
    assert coded.arrays is Arrays.AT_MOST and coded.training < round_bytes(plan("fedproto", "off")).training
    words = describe_budget(budget(50_000), plan("fedproto", "small"), coded)
    assert "a round transfers at most 5.2 kB" in words and words.endswith("holds at least 8 of 12 rounds")
    demand_one_round(budget(7_000), plan("fedproto", "small"))
    with pytest.raises(ValueError, match="bytes_per_device is 6"):
        demand_one_round(budget(6_000), plan("fedproto", "small"))


def of_run(size):
    return BudgetSettings(bytes=ByteSize(size))


@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_a_limit_of_the_whole_run_below_one_round_of_a_quorum_is_refused(method):
    of_round = round_bytes(plan(method, "off"))
    least = 3 * (JOIN + of_round.training)
    demand_one_round(of_run(least), plan(method, "off"), quorum=3)
    with pytest.raises(ValueError, match=r"budget\.bytes is .* for policy\.quorum = 3 devices with"):
        demand_one_round(of_run(least - 1), plan(method, "off"), quorum=3)
    demand_one_round(of_run(least - 1), plan(method, "off"), quorum=2)


def test_a_limit_of_the_whole_run_must_hold_only_the_messages_if_the_size_depends_on_the_values():
    of_round, least = round_bytes(plan("fedproto", "small")), 2 * (JOIN + MESSAGES)
    demand_one_round(of_run(least), plan("fedproto", "small"), quorum=2)
    with pytest.raises(
        ValueError, match=r"budget\.bytes is 10\.2 kB, but to join and one round transfer 10\.2 kB"
    ):
        demand_one_round(of_run(least - 1), plan("fedproto", "small"), quorum=2)
    words = describe_budget(of_run(least), plan("fedproto", "small"), of_round, devices=2)
    assert words.endswith("budget.bytes 10.2 kB holds at least 0 of 12 rounds of 2 devices")


def test_the_words_before_a_run_state_how_many_rounds_of_all_devices_its_limit_holds():
    of_round = round_bytes(plan("fedavg", "off"))
    limit = 3 * JOIN + 3 * 7 * of_round.training
    for size, rounds in ((limit, 7), (limit - 1, 6)):
        words = describe_budget(of_run(size), plan("fedavg", "off"), of_round, devices=3)
        assert words.endswith(f"holds {rounds} of 12 rounds of 3 devices")


@pytest.mark.parametrize("codec", ["off", "small"])
def test_arrays_that_are_sent_only_in_the_last_evaluation_count_only_there(codec):
    of_round, head = round_bytes(plan("fedncm", codec)), 10 * 256 * 4 + 10 * 8
    assert MESSAGES + head < of_round.evaluation < MESSAGES + head + 2_000
    if codec == "off":
        rows = 10 * 256 * 4 + 2 * 10 * 8
        assert MESSAGES + rows < of_round.training < MESSAGES + rows + 2_000


def test_a_measured_round_replaces_a_maximum_size_but_not_a_counted_size():
    largest, counted = RoundCost(1000, 500, Arrays.AT_MOST), RoundCost(1000, 500)
    assert (largest.one_more(0), largest.one_more(300)) == (1000, 300)
    assert (counted.one_more(0), counted.one_more(300), counted.one_more(1200)) == (1000, 1000, 1200)


@pytest.mark.parametrize("codec", [None, "small"])
def test_a_method_without_a_cost_has_only_the_bytes_of_its_messages(codec, monkeypatch):
    of = plan("fedavg", codec)
    monkeypatch.setattr(Method, "under", lambda self, hyper: replace(self, cost=None))
    assert round_bytes(of) == RoundCost(MESSAGES, MESSAGES, Arrays.UNKNOWN)
    assert "the size of a round is not known before the first round, because" in describe_budget(
        budget(9_000), of, round_bytes(of)
    )
