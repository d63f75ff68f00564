"""The bytes before coding in rounds.jsonl, in the summary, in the log and in the metrics of a run with a codec."""

import logging
from dataclasses import replace

import pytest

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.observe.log_lines import LogLines
from protofleet.coordinator.observe.metrics import Metrics
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile
from protofleet.coordinator.observe.summary import summarise
from protofleet.protocol.settings.codec import CodecStage
from tests.federations.test_deltas import STAGES, UINT4, coded
from tests.support.few_methods import few
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import replace_coordinator

# Each method sends all its broadcasts in two rounds and the last evaluation.
POLICY = RunPolicy(rounds=2, quorum=3, cohort=0, patience_seconds=20.0, grace_seconds=3.0, settle_seconds=1.0)
SAMPLED = replace(POLICY, rounds=3, quorum=1, cohort=1, evaluate_every=1, straggler_factor=0.0)
EXACT = CodecStage(against="broadcast", pack=True)
BOTH = STAGES | {
    "fedpall": ({"features": UINT4, "prototypes": UINT4}, STAGES["fedpall"][1]),
    # The number of its prototypes depends on the weights, so nothing may be rounded here.
    "fedplcc": ({"weights": EXACT, "prototypes": EXACT}, {}),
}


def observed(folder, method, stages=None, sinks=(), policy=POLICY):
    run, file = coded(folder, method, stages, policy=policy), RoundsFile(folder / "rounds.jsonl")
    keep_journal(run.service.run, [file, *sinks])
    return run, file


def records(folder, method, stages=None, policy=POLICY):
    run, file = observed(folder, method, stages, policy=policy)
    run.run()
    assert not run.service.run.link.meter.rejected
    return file.records


@pytest.mark.parametrize("method", few(BOTH, 4))
def test_the_bytes_before_coding_equal_the_bytes_of_a_run_without_a_codec(tmp_path, method):
    plain = records(tmp_path / "plain", method)
    found = records(tmp_path / "coded", method, BOTH[method])
    assert [line["uncoded"] for line in found] == [line["payload"] for line in plain]
    assert all(line["uncoded"] == {} for line in plain)
    sent, before = (sum(sum(line[key]["up"].values()) for line in found) for key in ("payload", "uncoded"))
    assert 0 < sent <= before and (sent < before or not BOTH[method][0])


def test_a_model_that_is_broadcast_for_an_evaluation_and_a_round_is_counted_once(tmp_path):
    """With stochastic rounding, the two broadcasts of the same model are different objects."""
    stages = {}, {"weights": CodecStage("int8", "broadcast", rounding="stochastic")}
    plain = records(tmp_path / "plain", "fedavg", policy=SAMPLED)
    found = records(tmp_path / "coded", "fedavg", stages, SAMPLED)
    assert [line["participants"] for line in found] == [line["participants"] for line in plain]
    assert any(line["evaluation"] for line in plain)
    assert [line["uncoded"] for line in found] == [line["payload"] for line in plain]


@pytest.mark.parametrize(
    "method", [m if m == "fedavg" else pytest.param(m, marks=pytest.mark.slow) for m in BOTH]
)
def test_a_coordinator_that_restarts_in_each_round_counts_the_same_bytes(tmp_path, method):
    whole = records(tmp_path / "whole", method, BOTH[method])
    run, file = observed(tmp_path / "run", method, BOTH[method])
    for number in range(1, run.plan.rounds + 2):
        run.run(
            until=lambda n=number: run.service.run.machine.round >= n and run.service.run.machine.answered
        )
        replace_coordinator(run, file)
    run.run()
    assert [line["uncoded"] for line in file.records] == [line["uncoded"] for line in whole]
    assert all(line["resumed"] for line in file.records)


def test_the_summary_adds_up_the_rounds_and_is_empty_without_a_codec(tmp_path):
    settings = CoordinatorSettings(name="test", rounds=2, classes=3, method={"name": "fedavg"}, size=16)
    for stages in (None, STAGES["fedavg"]):
        run, file = observed(tmp_path / str(bool(stages)), "fedavg", stages)
        run.run()
        found = summarise(run.service.run.view, settings, file.records, "test")["uncoded"]
        if stages is None:
            assert found == {}
            continue
        weights = file.records[0]["uncoded"]["down"]["weights"]
        # Three devices in two rounds; a broadcast in each round, and one for the last evaluation.
        assert found == {"up": {"weights": 6 * weights}, "down": {"weights": 3 * weights}}


def test_the_log_line_of_a_round_has_uncoded_bytes_only_in_a_run_with_a_codec(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    for stages in (None, STAGES["fedavg"]):
        caplog.clear()
        run, _ = observed(tmp_path / str(bool(stages)), "fedavg", stages, [LogLines("global", lambda: 2)])
        run.run()
        lines = [r.getMessage() for r in caplog.records if "devices answered, " in r.getMessage()]
        assert len(lines) == 3
        assert all(("(uncoded up " in line) == bool(stages) for line in lines), lines


def test_the_metrics_count_the_bytes_before_coding(tmp_path):
    run, file = observed(tmp_path, "fedavg", STAGES["fedavg"])
    metrics = Metrics(run.service.run.view)
    run.service.run.observers.clear()
    keep_journal(run.service.run, [file, metrics])
    run.run()
    for way in ("up", "down"):
        labels = {"direction": way, "kind": "weights", "method": "fedavg"}
        found = metrics.registry.get_sample_value("protofleet_uncoded_bytes_total", labels)
        assert found == sum(line["uncoded"][way].get("weights", 0) for line in file.records) > 0
