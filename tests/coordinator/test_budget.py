"""Whole federations with a budget: each byte is charged once to the right device, also if the coordinator dies."""

import re
import sqlite3
from collections import Counter
from dataclasses import replace

import pytest

from protofleet.coordinator.budget import MONTH, RUN
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile
from protofleet.coordinator.round.events import Stage
from protofleet.coordinator.spool.index import OPTIONAL_TABLES, tables_in
from protofleet.coordinator.spool.month import LEDGER, MonthLedger, end_of_month, month_at
from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.link.coordinator_run import CoordinatorRunLink
from protofleet.protocol.security.keys import Identity, Keys
from protofleet.protocol.settings.budget import BudgetSettings
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.wire.messages import Bye, State
from protofleet.protocol.wire.reasons import Rejected
from tests.support.small_federation import POLICY, assert_same, restart_in_each_round, simulation

DEVICES = ("device-0", "device-1", "device-2")
PLENTY = BudgetSettings(bytes_per_device=10**9)
THREE_ROUNDS = BudgetSettings(bytes_per_device=235_000)
A_MONTH = BudgetSettings(month_bytes_per_device=220_000)
NOVEMBER = 1.795e9  # Unix time of 2026-11-18.


def budgeted(folder, budget=THREE_ROUNDS, rounds=6, method="fedavg", **more):
    """Return a simulation with a budget, in a folder of runs, and the rounds file of its coordinator."""
    policy = replace(POLICY, rounds=rounds)
    run = simulation(folder / "runs" / "run", method, policy=policy, budget=budget, **more)
    file = RoundsFile(folder / "rounds.jsonl")
    keep_journal(run.service.run, [file])
    return run, file


def metered(run):
    found = Counter()
    for (device, *_), size in run.service.run.link.meter.by_device.items():
        found[device] += size
    return found


def charged(run):
    return dict(run.service.run.budget.spent.of_all())


@pytest.mark.parametrize(
    "method",
    [
        "fedproto",
        pytest.param("fedavg", marks=pytest.mark.slow),
        pytest.param("fedpall", marks=pytest.mark.slow),
    ],
)
def test_each_device_is_charged_for_its_rows_and_for_broadcasts_to_all_devices(tmp_path, method):
    run, _ = budgeted(tmp_path, PLENTY, rounds=2, method=method)
    before_hello = Counter()
    link, spent = run.service.run.link, run.service.run.budget.spent

    def published_before_hello():
        for device in DEVICES:
            if not spent.total(device):
                before_hello[device] = metered(run)[""]
        return run.service.finished

    run.run(published_before_hello)
    meter = metered(run)
    for device in DEVICES:
        assert charged(run)[device] == meter[device] + meter[""] - before_hello[device] > 5_000
        sent_by_device = sum(run.agents[device].link.meter.wire.values())
        assert charged(run)[device] <= sent_by_device + 1_000, (
            "the device counts what it has sent and received"
        )
    assert link.meter.rejected.total() == 0


def test_no_device_exceeds_its_limit_and_the_run_ends_with_a_reason_and_its_last_model(tmp_path):
    run, file = budgeted(tmp_path)
    run.run()
    limit = THREE_ROUNDS.run_limit
    assert [(line["round"], line["kind"]) for line in file.records] == [
        (1, "training"), (2, "training"), (3, "training"), (4, "evaluation"),
    ]  # fmt: skip
    assert all(0.8 * limit < size <= limit for size in charged(run).values())
    assert "the budget of 3 of 3 devices does not hold one more round" in run.service.run.view.ended_early
    assert file.records[-1]["measured"]["global"]["devices"] == 3, (
        "the budgets hold the evaluation at the end"
    )
    assert_same(run, simulation(tmp_path / "short", "fedavg", policy=replace(POLICY, rounds=3)).run())


@pytest.mark.parametrize("key", ["device_hours", "bytes"])
def test_a_run_ends_after_the_round_that_spends_its_budget_also_if_it_is_killed_there(tmp_path, key):
    limit = {"device_hours": 6.0 / 3600, "bytes": 300_000}[key]
    run, file = budgeted(tmp_path, BudgetSettings(**{key: limit}))
    used = {}
    for number in (1, 2):
        run.run(
            lambda n=number: (
                (m := run.service.run.machine).round == n and m.answered and m.stage is Stage.COMPUTING
            )
        )
        hours = run.service.run.device_seconds() / 3600
        used[number] = hours if key == "device_hours" else sum(charged(run).values())
    run.kill("coordinator")
    run.boot_coordinator()
    keep_journal(run.service.run, [file])
    assert run.service.run.device_seconds() == 3600 * hours, "each answer saves the seconds of its work"
    run.run()
    assert [(line["round"], line["kind"]) for line in file.records] == [
        (1, "training"), (2, "training"), (3, "evaluation"),
    ]  # fmt: skip
    assert used[1] < limit <= used[2]
    assert run.service.run.view.ended_by == "budget" and f"budget.{key}" in run.service.run.view.ended_early


@pytest.mark.slow
def test_a_kill_loses_no_saved_charge_and_no_byte_is_charged_twice(tmp_path):
    run, _ = budgeted(tmp_path, PLENTY, rounds=3)
    lives, totals = Counter(), []
    original = run.boot_coordinator

    def boot_coordinator():
        counts = metered(run)
        original()
        saved = charged(run)
        totals.append((counts, saved))
        for device in DEVICES:
            known = totals[-2][1][device] if len(totals) > 1 else 0
            assert known <= saved[device] <= known + counts[device] + counts[""]
        lives["coordinator"] += 1

    run.boot_coordinator = boot_coordinator
    restart_in_each_round(run)
    run.run()
    assert lives["coordinator"] == 3
    by_lives = Counter()
    for counts, _ in totals:
        by_lives.update(counts)
    by_lives.update(metered(run))
    for device in DEVICES:
        assert 0 < charged(run)[device] <= by_lives[device] + by_lives[""]
        lost = by_lives[device] + by_lives[""] - charged(run)[device]
        assert lost < 60_000, "only messages between two commits are lost"


def test_the_stored_counters_equal_those_of_the_last_durable_write(tmp_path):
    run, _ = budgeted(tmp_path, PLENTY)
    spool = run.service.run.spool
    commit, seen = spool.disk.commit, []

    def committing(*arguments, **more):
        seen.append(charged(run))
        commit(*arguments, **more)

    spool.disk.commit = committing
    run.run(until=lambda: run.service.run.machine.round == 2 and run.service.run.machine.answered)
    run.kill("coordinator")
    run.boot_coordinator()
    on_disk = charged(run)
    assert any(
        all(saved[d] == on_disk[d] for d in DEVICES) for saved in seen[-3:] if set(DEVICES) <= saved.keys()
    )


def test_a_durable_write_writes_only_the_rows_that_changed(tmp_path, monkeypatch):
    run, _ = budgeted(tmp_path, PLENTY)
    run.run(until=lambda: run.service.run.machine.round == 2)
    spool, written = run.service.run.spool, []
    put = spool.index.put
    monkeypatch.setattr(
        spool.index, "put", lambda table, *row: (written.append((table, row[0])), put(table, *row))
    )
    spool.save_traffic()
    written.clear()
    spool.spent.published += 400
    spool.save_traffic()
    assert ("budgeted", 1) in written and not [row for row in written if row[0] == "spent"]
    spool.spent.charge("device-1", 10)
    spool.save_traffic()
    assert [row for row in written if row[0] == "spent"] == [("spent", "device-1")]


def test_rows_of_a_transaction_that_failed_are_written_by_the_next_one(tmp_path, monkeypatch):
    run, _ = budgeted(tmp_path, PLENTY)
    run.run(until=lambda: run.service.run.machine.round == 2)
    spool = run.service.run.spool
    spool.spent.charge("device-1", 12_345)
    expected = charged(run)["device-1"]
    with monkeypatch.context() as broken:
        broken.setattr(spool.disk, "commit", lambda *_: (_ for _ in ()).throw(OSError("no")))
        with pytest.raises(OSError, match="no"):
            spool.save_traffic()
    spool.save_traffic()
    run.kill("coordinator")
    run.boot_coordinator()
    assert charged(run)["device-1"] >= expected - 500


def test_a_restarted_coordinator_lets_the_same_devices_evaluate(tmp_path):
    policy = replace(POLICY, rounds=3, quorum=2, cohort=2, evaluate_every=1)
    run = simulation(tmp_path / "runs" / "run", "fedavg", policy=policy, budget=PLENTY)
    run.run(until=lambda: run.service.run.machine.answered)
    run.service.run.budget.spent.charge("device-1", 10**9)
    run.run(until=lambda: run.service.run.machine.round == 2 and run.service.run.machine.waited_for)
    before = run.service.run.machine
    assert before.unfunded == {"device-1"} and before.present == before.cohort == ("device-0", "device-2")
    run.kill("coordinator")
    run.boot_coordinator()
    after = run.service.run.machine
    assert after is not before and (after.present, after.cohort) == (before.present, before.cohort)


def test_a_run_without_a_budget_has_no_table_no_ledger_and_no_callback(tmp_path):
    run = simulation(tmp_path / "runs" / "run", "fedavg").run()
    spool = run.service.run.spool
    assert not OPTIONAL_TABLES.keys() & tables_in(spool.index.db)
    assert run.service.run.link.on_packet is None and not (tmp_path / "runs" / LEDGER).exists()


@pytest.mark.slow
def test_a_budget_that_is_never_spent_changes_no_bit(tmp_path):
    run, _ = budgeted(tmp_path, PLENTY, rounds=3)
    assert_same(run.run(), simulation(tmp_path / "other", "fedavg", policy=replace(POLICY, rounds=3)).run())


# Another party must not spend the budget of a device.


def test_frames_under_the_name_of_another_device_are_charged_to_no_device(tmp_path):
    run, _ = budgeted(tmp_path, PLENTY)
    sent, link = [], run.service.link
    arrived = link.arrived

    def recording(topic, frame, now):
        sent.append((topic, frame))
        return arrived(topic, frame, now)

    link.arrived = recording
    run.run(until=lambda: run.service.run.machine.round == 2)
    link.arrived = arrived
    before, counted = charged(run), metered(run)
    victim, state = link.topics.up("device-1"), link.topics.device_state("device-1")
    own = [(topic, frame) for topic, frame in sent if topic in (victim, state)]
    assert len(own) > 3
    for topic, frame in own:  # Replays of the device's own frames, and of its will.
        attempt(link, topic, frame)
    for frame in (b"", b"nonsense" * 1000, *(flipped(frame) for _, frame in own)):
        attempt(link, victim, frame)
    will = run.agents["device-1"].link.will(state)  # The device has signed it, and the broker publishes it.
    for topic, frame in (*forged(run), *[(will.topic, will.frame)] * 5):
        attempt(link, topic, frame)
    assert charged(run) == before
    assert metered(run)["device-1"] > counted["device-1"] + 8_000, "the meter counts these frames"


def attempt(link, topic, frame):
    try:
        link.arrived(topic, frame, 0.0)
    except Rejected:
        return


def flipped(frame):
    return frame[:-1] + bytes([frame[-1] ^ 1])


def forged(run):
    """Yield frames of device-2 on topics of device-1, and frames that a stranger signs as device-1."""
    for name, keys in (("device-2", run.keys["device-2"]), ("device-1", Keys.new())):
        connection = run.broker.connect("nobody", lambda item: None, set())
        party = CoordinatorLink(Identity(name, 5, keys), run.keyring, run.topics, connection)
        link = CoordinatorRunLink(party, "simulated", lambda device: None)
        for message in (Bye("gone"), State(False, "gone")):
            yield run.topics.up("device-1"), link.seal(message, "coordinator")
            yield run.topics.device_state("device-1"), link.seal(message)


# The month.


def test_a_month_begins_and_ends_in_utc():
    assert month_at(NOVEMBER) == 202611 and month_at(end_of_month(NOVEMBER)) == 202612
    assert month_at(end_of_month(NOVEMBER) - 1) == 202611
    assert month_at(end_of_month(end_of_month(NOVEMBER))) == 202701


@pytest.mark.slow
def test_the_runs_of_a_folder_share_the_month_and_a_later_run_waits_for_the_next_month(tmp_path, caplog):
    wall = {"at": NOVEMBER}
    first, _ = budgeted(tmp_path, A_MONTH, rounds=2, wall=lambda: wall["at"])
    first.run()
    first.service.run.budget.close()
    second = simulation(
        tmp_path / "runs" / "later", "fedavg", policy=replace(POLICY, rounds=2), budget=A_MONTH,
        wall=lambda: wall["at"],
    )  # fmt: skip
    second.run(until=lambda: second.clock.now > 3000.0)
    budget = second.service.run.budget
    assert second.service.run.machine.round == 1 and not second.service.finished
    assert len(budget.without_round[MONTH]) == 3 and RUN not in budget.limits
    assert "no task is sent there until 2026-12-01 00:00 UTC" in caplog.text
    wall["at"] = end_of_month(NOVEMBER) + 1
    second.run()
    assert second.service.finished and second.service.run.machine.round == 4
    assert all(140_000 < size < 220_000 for size in charged(second).values())


def test_a_run_that_waits_for_the_next_month_reports_the_reason_and_the_time(tmp_path, caplog):
    caplog.set_level("INFO")
    (tmp_path / "runs").mkdir()
    ledger = MonthLedger(tmp_path / "runs", Disk(durable=False), False)
    ledger.save(202611, "earlier", dict.fromkeys(DEVICES, 180_000))
    wall, sink = {"at": NOVEMBER}, Entries()
    run = simulation(
        tmp_path / "runs" / "later", "fedavg", policy=replace(POLICY, rounds=1), budget=A_MONTH,
        wall=lambda: wall["at"],
    )  # fmt: skip
    keep_journal(run.service.run, [sink])
    run.run(until=lambda: run.clock.now > 300.0)
    (wait,) = sink.found("budget_wait")
    assert (wait["round"], wait["until"]) == (1, end_of_month(NOVEMBER)) and wait["reason"] in caplog.messages
    for words in (
        "round 1 waits until 2026-12-01 00:00 UTC: budget.month_bytes_per_device is 220.0 kB",
        "of 3 of 3 devices: device-0 (18",
        "resume it with a larger budget.month_bytes_per_device",
    ):
        assert words in wait["reason"]
    assert (
        "holds 0 of 1 rounds, because other runs of this month have used up to 180.0 kB of it" in caplog.text
    )
    assert "waiting for devices" not in caplog.text
    wall["at"] = end_of_month(NOVEMBER) + 1
    run.run()
    assert sink.found("budget_wait")[1:] == [{"round": 1, "until": 0.0, "reason": ""}]


def test_a_round_logs_once_which_devices_have_no_budget_with_the_needed_and_the_left_bytes(tmp_path, caplog):
    policy = replace(POLICY, rounds=3, quorum=1)
    run = simulation(tmp_path / "runs" / "run", "fedavg", policy=policy, budget=PLENTY)
    run.run(until=lambda: run.service.run.machine.waited_for)
    for device in ("device-1", "device-2"):
        run.service.run.budget.spent.charge(device, 10**9 - 90_000)
    run.run(until=lambda: run.service.run.machine.answered)
    assert "does not hold" not in caplog.text, "the bytes of the round are not complete"
    run.run()
    (line,) = [one for one in caplog.messages if "does not hold" in one]
    assert line.startswith(
        "round 2: budget.bytes_per_device is 1.00 GB, which does not hold one more round and the"
    )
    assert re.search(r"of 2 devices, device-1 \([0-9.]+ kB left, needed .*B and 29.8 kB\), device-2 \(", line)


def test_no_device_is_reported_as_left_out_if_no_round_follows(tmp_path, caplog):
    run, _ = budgeted(tmp_path, rounds=3)
    run.run()
    assert run.service.run.budget.without_round[RUN] and "does not hold" not in caplog.text


def test_the_event_of_a_round_end_follows_the_event_of_the_wait(tmp_path):
    run, sink = budgeted(tmp_path, A_MONTH, rounds=6, wall=lambda: NOVEMBER)[0], Entries()
    keep_journal(run.service.run, [sink])
    run.run(until=lambda: run.service.run.budget.wait)
    kinds = [what for what, _ in sink.entries if what in ("round", "budget_wait")]
    assert len(kinds) > 1 and kinds == [*["round"] * (len(kinds) - 2), "budget_wait", "round"]


class Entries:
    """A sink that keeps all entries."""

    def __init__(self):
        self.entries = []

    def entry(self, what, details):
        self.entries.append((what, dict(details)))

    def round_ended(self, record):
        self.entries.append(("round", record))

    def found(self, kind):
        return [details for what, details in self.entries if what == kind]


@pytest.mark.slow
def test_a_restarted_run_replaces_its_earlier_total_in_the_ledger(tmp_path):
    run, _ = budgeted(tmp_path, BudgetSettings(month_bytes_per_device=10**9), rounds=3, wall=lambda: NOVEMBER)
    restart_in_each_round(run)
    run.run()
    run.service.run.budget.close()
    ledger = MonthLedger(tmp_path / "runs", Disk(durable=False), True)
    found = ledger.of_others(202611, "nobody")
    assert found == charged(run) and not ledger.of_others(202611, run.service.run.budget.spent.name)
    assert not ledger.of_others(202612, "nobody")


def test_two_coordinators_write_to_the_ledger_at_the_same_time(tmp_path):
    one, two = (MonthLedger(tmp_path, Disk(durable=False), False) for _ in range(2))
    for size in (10, 20, 30):
        assert one.save(202611, "one", {"a": size, "b": 1}) and two.save(202611, "two", {"a": 2 * size})
    assert one.of_others(202611, "one") == {"a": 60} and two.of_others(202611, "two") == {"a": 30, "b": 1}


def test_a_deleted_ledger_is_made_again_with_a_warning_and_a_damaged_ledger_is_refused(tmp_path, caplog):
    MonthLedger(tmp_path, Disk(durable=False), True)
    assert f"{tmp_path / LEDGER} is missing, although this run has written to it" in caplog.text
    caplog.clear()
    ledger = MonthLedger(tmp_path, Disk(durable=False), True)
    ledger.save(202611, "one", {"a": 10})
    assert not caplog.text
    with sqlite3.connect(tmp_path / LEDGER) as db:
        db.execute("UPDATE spent SET bytes = 5")
    with pytest.raises(
        DamagedError, match="checksum of a row is wrong; put it back from a copy, or remove it"
    ):
        ledger.of_others(202611, "two")
    (tmp_path / LEDGER).write_bytes(b"not a database" * 500)
    with pytest.raises(
        DamagedError, match=f"{LEDGER}, the ledger of budget.month_bytes_per_device, cannot be used"
    ):
        MonthLedger(tmp_path, Disk(durable=False), True)
