"""The records, the summary, the metrics and the events of a run agree with what happened in it."""

import errno
import gc
import json
import math
import tracemalloc
import urllib.request
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.devices.last_wills import OUTCOMES
from protofleet.coordinator.observe.curves import best, curve, measurements, totals
from protofleet.coordinator.observe.metrics import Metrics
from protofleet.coordinator.observe.observers import Events, keep_journal
from protofleet.coordinator.observe.record import RoundRecord
from protofleet.coordinator.observe.rounds_file import RoundsFile, copy_of, read_rounds
from protofleet.coordinator.observe.summary import summarise
from protofleet.coordinator.round.events import Stage, Stopped
from protofleet.coordinator.spool.index import row_checksum
from protofleet.coordinator.spool.traffic import read_traffic
from protofleet.federation.brokers.ports import free_port
from protofleet.protocol.storage.disk import Disk
from protofleet.runtime.metrics_page import Endpoint, MetricsError, exposed
from tests.support.small_federation import POLICY, simulation

A_RECEIPT = 300  # bytes


class Moments:
    def __init__(self):
        self.seen = []

    def entry(self, what, details):
        self.seen.append((what, details))

    def round_ended(self, record):
        self.seen.append(("round", record))


def observed(folder, method="fedavg", sinks=(), **more):
    run = simulation(folder / "world", method, **more)
    rounds = RoundsFile(folder / "rounds.jsonl")
    keep_journal(run.service.run, [rounds, *sinks])
    return run, rounds


def test_a_restarted_coordinator_whose_run_has_finished_reports_it_to_observers(tmp_path):
    """Until `protofleet run` gets this event, it treats the end of a device as a failure."""
    run, _ = observed(tmp_path)
    run.run()
    run.kill("coordinator")
    run.boot_coordinator()
    moments = Moments()
    keep_journal(run.service.run, [moments])
    run.run()
    assert ("finished", {"rounds": 3}) in moments.seen


def settings():
    return CoordinatorSettings(name="test", rounds=3, classes=3, method={"name": "fedavg"}, size=16)


def test_the_file_has_a_line_for_each_round_and_one_for_the_final_evaluation(tmp_path):
    run, rounds = observed(tmp_path)
    run.run()
    found = read_rounds(tmp_path / "rounds.jsonl")
    assert [(line["round"], line["kind"]) for line in found] == [
        (1, "training"), (2, "training"), (3, "training"), (4, "evaluation"),
    ]  # fmt: skip
    assert all(line["participants"] == ["device-0", "device-1", "device-2"] for line in found)
    assert found[0]["accuracy"]["global"]["domain-1"] < found[-1]["accuracy"]["global"]["domain-1"] == 1.0
    assert found[0]["phases"][0]["answered"] and found[0]["phases"][0]["seconds"] >= 1.0


def test_the_bytes_of_all_rounds_add_up_to_the_bytes_that_the_link_counted(tmp_path):
    run, rounds = observed(tmp_path)
    run.run()
    meter = run.service.run.link.meter
    sums = totals(rounds.records, "payload")
    assert {(way, kind): size for way in sums for kind, size in sums[way].items()} == meter.payload
    weights = sum(
        v.nbytes for v in run.agents["device-0"].run.job.half.model.state_dict().values() for v in [v.numpy()]
    )
    assert rounds.records[0]["payload"]["up"]["weights"] == 3 * weights
    assert rounds.records[0]["fedavg"] == {"up": 3 * weights, "down": weights}


def test_the_bytes_of_a_fedavg_run_equal_the_computed_bytes_of_fedavg(tmp_path):
    """Without this, every method would seem to save bytes."""
    run, rounds = observed(tmp_path)
    run.run()
    assert run.service.run.plan.method == "fedavg"
    assert [one["kind"] for one in rounds.records][-2:] == ["training", "evaluation"]
    for record in rounds.records:
        sent = {way: record["payload"].get(way, {}).get("weights", 0) for way in ("up", "down")}
        assert record["fedavg"] == sent, "the last evaluation too, for which the model is broadcast once more"


def test_a_resumed_run_writes_no_round_twice_and_marks_the_resumed_round(tmp_path):
    run, _ = observed(tmp_path)
    run.clock.run(lambda: run.service.run.machine.round == 2 and run.service.run.machine.answered)
    run.boot_coordinator()
    keep_journal(run.service.run, [RoundsFile(tmp_path / "rounds.jsonl")])
    run.run()
    found = read_rounds(tmp_path / "rounds.jsonl")
    assert [line["round"] for line in found] == [1, 2, 3, 4]
    assert [line["resumed"] for line in found] == [False, True, False, False]
    assert len(found[1]["accuracy"]["global"]) == 3  # it has updates from before the restart


def resumed_at(tmp_path, moment, method="fedavg"):
    """Return the lines of two runs: one without a stop, and one whose coordinator dies at `moment` and restarts."""
    found = []
    for name in ("whole", "broken"):
        run, _ = observed(folder := tmp_path / name, method)
        if name == "broken":
            run.clock.run(lambda: moment(run.service.run.machine))
            run.kill("coordinator")
            run.boot_coordinator()
            rounds = RoundsFile(folder / "rounds.jsonl")
            keep_journal(run.service.run, [rounds])
        run.run()
        found.append(read_rounds(folder / "rounds.jsonl"))
    return found


def test_a_round_whose_coordinator_died_after_the_last_update_has_the_bytes_of_an_unbroken_round(tmp_path):
    whole, broken = resumed_at(
        tmp_path, lambda m: m.round == 2 and m.stage is Stage.COMPUTING and m.answered == set(m.cohort)
    )
    for way, kinds in whole[1]["payload"].items():
        assert broken[1]["payload"][way] == kinds, way
        # The last turn sent a receipt after its commit, and the bytes of this message were not saved.
        assert sum(broken[1]["wire"][way].values()) >= sum(whole[1]["wire"][way].values()) - A_RECEIPT
    assert broken[1]["resumed"] and broken[1]["seconds"] >= whole[1]["seconds"]
    assert [line["payload"] for line in broken[2:]] == [line["payload"] for line in whole[2:]]


def test_each_update_of_a_resumed_round_is_counted(tmp_path):
    whole, broken = resumed_at(tmp_path, lambda m: m.round == 2 and len(m.answered) == 2)
    assert broken[1]["payload"]["up"]["weights"] >= whole[1]["payload"]["up"]["weights"]
    assert totals(broken, "payload")["up"]["weights"] >= totals(whole, "payload")["up"]["weights"]


def test_traffic_is_saved_every_minute_while_no_update_is_accepted(tmp_path):
    run, _ = observed(tmp_path, policy=replace(POLICY, patience_seconds=1e6))
    run.clock.run(lambda: run.service.run.machine.asked == "train")
    run.workers["device-2"].alive = False  # so the round stays open
    run.clock.run(lambda: len(run.service.run.machine.answered) == 2)
    before = sum(run.service.run.link.meter.wire.values())
    run.clock.run(lambda: run.clock.now > 1000)
    (row,) = run.service.run.spool.index.db.execute("SELECT counts FROM crossed WHERE round = 1")
    noted = read_traffic(row[0])
    now = sum(run.service.run.link.meter.wire.values())
    assert before < sum(noted.wire.values()) <= now and noted.seconds > 900


def test_an_incomplete_last_line_is_left_out(tmp_path):
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"round": 1}\n{"round": 2}\n{"rou')
    assert [line["round"] for line in read_rounds(path)] == [1, 2]


def test_a_line_with_a_flipped_bit_is_never_read_as_a_record(tmp_path, caplog):
    run, rounds = observed(tmp_path)
    run.run()
    path, honest = tmp_path / "rounds.jsonl", rounds.records
    whole = path.read_bytes()
    for at in range(0, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert len(read_rounds(path)) >= 2 and all(record in honest for record in read_rounds(path)), at
    RoundsFile(path)
    assert "was damaged and was repaired; the file now has 3 lines" in caplog.text
    assert path.read_bytes() in whole and len(read_rounds(path)) == 3


def test_a_lost_line_is_restored_from_the_copy_and_a_warning_names_lines_that_both_files_lack(
    tmp_path, caplog
):
    run, _ = observed(tmp_path)
    run.run()
    path = tmp_path / "rounds.jsonl"
    honest = path.read_bytes()
    lines = honest.splitlines(keepends=True)
    path.write_bytes(lines[0].replace(b'"round": 1', b'"round": 7') + lines[3])
    RoundsFile(path, until=5)
    assert path.read_bytes() == copy_of(path).read_bytes() == honest
    assert "lacked the lines of rounds [1, 2, 3]; the lines are taken from the copy" in caplog.text
    path.write_bytes(b"".join(lines[1:]))
    copy_of(path).write_bytes(b"".join(lines[:1] + lines[2:]).replace(b'"attempt": 0', b'"attempt": 1'))
    RoundsFile(path, until=5)
    assert path.read_bytes() == copy_of(path).read_bytes() == b"".join(lines[1:])
    assert "lacks the lines of rounds [1], and the copy of the file lacks these" in caplog.text


@pytest.mark.parametrize("left", ["", "damaged", "one line"])
def test_a_missing_or_damaged_or_old_copy_is_written_again(tmp_path, left):
    """An earlier version wrote no copy, and a coordinator that dies between the writes leaves it a line behind."""
    run, _ = observed(tmp_path)
    run.run()
    path = tmp_path / "rounds.jsonl"
    honest = path.read_bytes()
    if left:
        copy_of(path).write_bytes(honest.splitlines(keepends=True)[0] if left == "one line" else honest[::-1])
    else:
        copy_of(path).unlink()
    RoundsFile(path, until=5)
    assert path.read_bytes() == copy_of(path).read_bytes() == honest


def test_lines_of_an_earlier_version_without_a_checksum_are_read(tmp_path):
    (tmp_path / "rounds.jsonl").write_text('{"round": 1, "kind": "training"}\n{"rounc": 2}\n')
    (table,) = read_rounds(tmp_path / "rounds.jsonl")
    expected = asdict(RoundRecord(1, 0, "training"))
    for name in ("energy", "measured", "evaluation"):  # such a version wrote none of these
        del expected[name]
    assert table == expected


def test_the_summary_names_its_view_and_chooses_the_best_model_by_validation_only(tmp_path):
    run, rounds = observed(tmp_path)
    run.run()
    found = summarise(run.service.run.view, settings(), rounds.records, "1.0")
    assert found["reports"] == "global" and found["security"] == "sealed"
    assert found["accuracy"]["final"]["mean"] == 1.0
    assert len(curve(rounds.records, "global", "accuracy")) == 4
    assert found["rounds"] == found["rounds_done"] == 3
    json.dumps(found)
    measured = zip((1, 2, 3), (0.9, 0.5, 0.7), (0.1, 0.8, 0.8), strict=True)
    lines = [
        {"round": r, "accuracy": {"global": {"a": test}}, "validation": {"global": {"a": validation}}}
        for r, test, validation in measured
    ]
    assert best(measurements(lines, "global"))["point"] == 1


def test_the_summary_of_a_run_that_diverged_has_the_number_of_its_completed_rounds(tmp_path):
    run, rounds = observed(tmp_path)
    run.clock.run(lambda: len(rounds.records) == 2)
    for number in (0, 1, 2):
        found = summarise(run.service.run.view, settings(), rounds.records[:number], "1.0")
        assert (found["rounds"], found["rounds_done"]) == (3, number)


def test_the_summary_uses_the_view_of_the_settings_of_the_run(tmp_path):
    run, rounds = observed(tmp_path, hyper={"final_fit": True})
    run.run()
    found = summarise(run.service.run.view, settings(), rounds.records, "1.0")
    assert found["reports"] == "personal" and found["accuracy"] == found["views"]["personal"]


def test_values_that_are_not_finite_are_left_out_of_lines_of_an_earlier_version(tmp_path):
    """Such lines were written when a device had measured infinity."""
    path, table = (
        tmp_path / "rounds.jsonl",
        {"round": 1, "kind": "training", "loss": {"global": {"a": 1e999, "b": 2.0}}},
    )
    path.write_text(json.dumps({**table, "seal": row_checksum("round", json.dumps(table)).hex()}) + "\n")
    assert "Infinity" in path.read_text()
    assert read_rounds(path) == [{**table, "loss": {"global": {"b": 2.0}}}]


def test_a_value_that_is_not_finite_cannot_be_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        RoundsFile(tmp_path / "rounds.jsonl").round_ended(
            RoundRecord(1, 0, "training", figures={"a": math.nan})
        )


def test_a_coordinator_that_is_killed_between_two_rounds_writes_each_line_once(tmp_path):
    """The line of the first round is written before the second is saved, and a replay does not write it again."""
    lines = tmp_path / "rounds.jsonl"
    run, _ = observed(tmp_path)
    save = run.service.run.spool.save
    run.service.run.spool.save = lambda number, *more: die() if number == 2 else save(number, *more)

    def die():
        raise SystemExit

    with pytest.raises(SystemExit):
        run.run()
    assert [line["round"] for line in read_rounds(lines)] == [1]
    run.observers.clear()
    run.boot_coordinator()
    keep_journal(run.service.run, [RoundsFile(lines)])
    run.run()
    assert [line["round"] for line in read_rounds(lines)] == [1, 2, 3, 4]
    assert copy_of(lines).read_bytes() == lines.read_bytes()


def test_the_updates_that_a_round_used_are_an_event_and_a_replay_uses_the_same(tmp_path):
    moments = Moments()
    run, _ = observed(tmp_path, "fedpall", sinks=[moments])
    machine = run.service.run.machine

    def trained():
        return [
            d for what, d in moments.seen if what == "counted" and (d["round"], d["phase"]) == (2, "train")
        ]

    run.clock.run(lambda: trained() and machine.stage is Stage.COLLECTING)
    run.boot_coordinator()
    rounds = RoundsFile(tmp_path / "rounds.jsonl")
    keep_journal(run.service.run, [rounds, moments])
    run.run()
    counted = [details for what, details in moments.seen if what == "counted"]
    first, again = (d["answers"] for d in trained())
    assert first == again and set(first) == {"device-0", "device-1", "device-2"}
    names = {a.object for agent in run.agents.values() for a in agent.state.saved.answers}
    assert set(counted[-1]["answers"].values()) <= names
    assert rounds.records[1]["resumed"] and rounds.records[1]["participants"] == sorted(first)


def test_a_resumed_round_that_begins_again_is_still_marked_as_resumed(tmp_path):
    run, _ = observed(tmp_path, policy=replace(POLICY, patience_seconds=30.0))
    run.clock.run(lambda: run.service.run.machine.round == 2 and run.service.run.machine.answered)
    run.boot_coordinator()
    keep_journal(run.service.run, [RoundsFile(tmp_path / "rounds.jsonl")])
    run.kill("device-1")
    run.clock.run(lambda: run.service.run.machine.attempt == 1)
    run.boot_device("device-1")
    run.run()
    second = read_rounds(tmp_path / "rounds.jsonl")[1]
    assert (second["round"], second["attempt"], second["resumed"]) == (2, 1, True)


def test_earlier_rounds_are_in_the_file_and_not_in_memory(tmp_path):
    rounds = RoundsFile(tmp_path / "rounds.jsonl")
    kept = []
    tracemalloc.start()
    try:
        for number in range(1, 301):
            rounds.round_ended(RoundRecord(number, 0, "training", wire={"up": {"weights": 10_000 + number}}))
            if number in (100, 300):
                gc.collect()
                kept.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert kept[1] - kept[0] < 20_000, "200 records of more than 1,000 bytes"
    assert [line["round"] for line in rounds.records] == list(range(1, 301))
    again = RoundsFile(tmp_path / "rounds.jsonl")
    again.round_ended(RoundRecord(300, 0, "training"))
    assert len(again.records) == 300


def test_late_updates_are_in_the_events_and_not_among_the_participants(tmp_path):
    moments = Moments()
    policy = replace(POLICY, rounds=2, quorum=2, patience_seconds=10.0)
    run, rounds = observed(tmp_path, sinks=[moments], policy=policy)
    run.clock.run(lambda: len(run.service.run.machine.roster) == 3)
    run.workers["device-0"].seconds, run.workers["device-1"].seconds = 6.0, 14.5
    run.run()
    late = [(details["device"], details["round"]) for what, details in moments.seen if what == "dropped"]
    assert late == [("device-1", 1)], "the coordinator waits for this device again after its late update"
    assert rounds.records[1]["participants"] == ["device-0", "device-2"]


def sample(text, name, **labels):
    for line in text.splitlines():
        named = line.startswith((name + "{", name + " "))
        if named and all(f'{k}="{v}"' in line for k, v in labels.items()):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no {name} {labels}")


def scraped(folder):
    """Return a finished run and the metrics page that its coordinator serves at the end."""
    run, _ = observed(folder)
    metrics = Metrics(run.service.run.view)
    keep_journal(run.service.run, [metrics])
    run.run()
    port = free_port()
    with exposed(metrics.registry, Endpoint("127.0.0.1", port)):
        return run, urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()


def test_metrics_equal_the_counts_of_the_link(tmp_path):
    run, text = scraped(tmp_path)
    meter = run.service.run.link.meter
    found = sample(text, "protofleet_message_bytes_total", direction="up", kind="weights", method="fedavg")
    assert found == meter.payload["up", "weights"]
    assert sample(text, "protofleet_round") == 4 and sample(text, "protofleet_participation_ratio") == 1
    assert sample(text, "protofleet_accuracy_ratio", domain="domain-0", split="test", view="global") == 1


def ends(run):
    text = generate_latest(Metrics(run.service.run.view).registry).decode()
    return {how: sample(text, "protofleet_run_over", how=how) for how in ("finished", "stopped", "diverged")}


def test_the_metric_run_over_shows_how_a_run_ended_and_only_after_its_end(tmp_path):
    done, _ = observed(tmp_path / "done")
    stopped, _ = observed(tmp_path / "stopped")
    stopped.run(until=lambda: stopped.service.run.machine.round == 2)
    assert ends(stopped) == {"finished": 0, "stopped": 0, "diverged": 0}
    stopped.service.run.happen(Stopped("stopped by local:ann: wrong data"))
    for run in (done, stopped):
        run.run()
    assert ends(stopped) == {"finished": 0, "stopped": 1, "diverged": 0}
    assert ends(done) == {"finished": 1, "stopped": 0, "diverged": 0}


def test_counters_of_wills_are_0_before_the_first_will(tmp_path):
    run, text = scraped(tmp_path)
    for device in run.agents:
        for outcome in OUTCOMES:
            assert sample(text, "protofleet_device_wills_total", device=device, outcome=outcome) == 0


def test_a_metrics_port_that_is_in_use_is_refused_with_a_fix(tmp_path):
    run, _ = observed(tmp_path)
    port = free_port()
    with exposed(registry := Metrics(run.service.run.view).registry, Endpoint("127.0.0.1", port)):
        taken = exposed(registry, Endpoint("127.0.0.1", port))
        with pytest.raises(
            MetricsError, match=f"metrics_port {port} cannot be used.*set metrics_port to another port"
        ):
            taken.__enter__()


def test_a_line_that_finds_the_disk_full_is_written_later(tmp_path, caplog, monkeypatch):
    class Full(Disk):
        full = True

        def sync(self, path):
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")

    disk, path = Full(durable=False), tmp_path / "rounds.jsonl"
    file = RoundsFile(path, disk)
    file.round_ended(RoundRecord(1, 0, "training"))
    assert path.read_bytes() == b"" and "tries again at the next event of the run" in caplog.text
    disk.full = False
    file.entry("joined", {})
    opened = Path.open

    def open_with_room(self, *how):
        if self == copy_of(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(self, *how)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", open_with_room)
        file.round_ended(RoundRecord(2, 0, "training"))
    assert path.read_bytes() == copy_of(path).read_bytes() and len(read_rounds(path)) == 1
    file.round_ended(RoundRecord(3, 0, "training"))
    assert path.read_bytes() == copy_of(path).read_bytes()
    assert [line["round"] for line in read_rounds(path)] == [1, 2, 3]


@pytest.mark.parametrize(("run", "named"), [("red", {"run": "red"}), ("", {})])
def test_each_event_names_the_run_if_the_coordinator_conducts_several(capsys, run, named):
    Events(run).entry("left", {"device": "d"})
    assert json.loads(capsys.readouterr().out) == {"event": "left", "device": "d", **named}
