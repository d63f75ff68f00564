"""Damaged files: the checksum finds them, a log line names them, and the run continues without them.

The run ends with the same bits.
"""

import random
import re
import shutil
import sqlite3
from dataclasses import replace

import pytest

from protofleet.coordinator.observe.metrics import Metrics
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.spool.index import Index
from protofleet.coordinator.spool.spool import Spool
from protofleet.edge_client.metrics import DeviceMetrics
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.file import read_state_file
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.store import DamagedError, NewerFormatError
from protofleet.protocol.wire.reasons import DisconnectReason
from protofleet.runtime.command.exit_codes import exit_code
from tests.support import small_federation
from tests.support.few_methods import few
from tests.support.small_federation import assert_same, once_each


def simulation(folder, method):
    return small_federation.simulation(folder, method, hyper={"epochs": 1, "server_epochs": 2})


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return once_each(lambda method: simulation(tmp_path_factory.mktemp(method), method).run())


def flipped(path, seed=0):
    dice, data = random.Random(seed), bytearray(path.read_bytes())
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


DAMAGE = {
    "flipped": flipped,
    "cut short": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
}


def harm_answer(spool, device, name, damage):
    """Damage only the bytes of this answer; other answers stand before and after it in the log."""
    with sqlite3.connect(spool / "spool.sqlite") as db:
        query = "SELECT file, start, size FROM places WHERE device = ? AND lower(hex(object)) = ?"
        file, start, size = db.execute(query, (device, name)).fetchone()
    path, alone = spool / "answers" / f"{file:08}.log", spool.parent / "alone"
    data = path.read_bytes()
    alone.write_bytes(data[start : start + size])
    DAMAGE[damage](alone)
    left = alone.read_bytes() if alone.exists() else b""
    path.write_bytes(data[:start] + left.ljust(size, b"\0") + data[start + size :])


def died_in(folder, method, round, phase):
    """Return a run whose coordinator has died after one answer of that phase."""
    run = simulation(folder, method)
    m = run.service.run.machine
    run.run(until=lambda: (m.round, m.asked) == (round, phase) and m.answered)
    run.kill("coordinator")
    run.service.run.spool.close()
    return run


def newest_snapshot(folder):
    with sqlite3.connect(folder / "spool.sqlite") as db:
        name = db.execute("SELECT object FROM checkpoint ORDER BY id DESC").fetchone()[0]
    return folder / "snapshots" / f"{name}.body"


class Moments:
    def __init__(self):
        self.seen = []

    def entry(self, what, details):
        self.seen.append((what, details))

    def round_ended(self, record):
        pass


@pytest.mark.parametrize(
    ("method", "phase", "damage"),
    few(
        [
            *(("fedavg", "train", damage) for damage in DAMAGE),
            ("fedpall", "mix", "flipped"),
            ("fedplcc", "train", "gone"),
        ],
        2,
    ),
)
def test_a_damaged_snapshot_is_computed_again_from_the_earlier_snapshot(
    tmp_path, unbroken, caplog, damage, method, phase
):
    run = died_in(tmp_path, method, 2, phase)
    DAMAGE[damage](newest_snapshot(tmp_path / "coordinator"))
    asked = {name: agent.state.saved.answers for name, agent in run.agents.items()}
    run.boot_coordinator()
    assert run.service.run.spool.fallbacks["snapshot"] == 1
    assert "the snapshot of round 2 is damaged; the run goes back to the snapshot of round 1" in caplog.text
    run.run(until=lambda: run.service.run.machine.round == 2 and run.service.run.question.ask is not None)
    assert {name: agent.state.saved.answers for name, agent in run.agents.items()} == asked, (
        "no device repeated its work"
    )
    run.run()
    assert_same(unbroken(method), run)


def test_a_damaged_snapshot_is_reported_in_a_metric_and_an_event(tmp_path):
    run = died_in(tmp_path, "fedavg", 2, "train")
    flipped(newest_snapshot(tmp_path / "coordinator"))
    run.boot_coordinator()
    moments, registry = Moments(), Metrics(run.service.run.view).registry
    keep_journal(run.service.run, [moments])
    run.run()
    labels = {"what": "snapshot"}
    assert registry.get_sample_value("protofleet_checkpoint_fallbacks_total", labels) == 1
    assert ("fell_back", {"round": 1, "damaged": {"snapshot": 1}}) in moments.seen


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_run_without_a_whole_snapshot_does_not_start_again_by_itself(tmp_path, damage):
    run = died_in(tmp_path, "fedavg", 2, "train")
    folder = tmp_path / "coordinator"
    for path in (folder / "snapshots").iterdir():
        DAMAGE[damage](path)
    with pytest.raises(
        DamagedError, match=r"are damaged or missing.*put one of them back.*protofleet go-on"
    ) as error:
        run.boot_coordinator()
    assert exit_code(error.value) == 1 and "\n" not in str(error.value)


@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_damaged_index_is_replaced_by_its_copy_and_kept(tmp_path, unbroken, caplog, damage):
    run = died_in(tmp_path, "fedpall", 2, "mix")
    path = tmp_path / "coordinator" / "spool.sqlite"
    with sqlite3.connect(path) as db:  # It changes values without breaking the structure of the file.
        db.execute("UPDATE accepted SET examples = examples + 1")
    DAMAGE[damage](path)
    run.boot_coordinator()
    assert run.service.run.spool.fallbacks["index"] == 1 and "its copy has taken its place" in caplog.text
    assert damage == "gone" or path.with_suffix(".damaged").exists()
    run.run()
    assert_same(unbroken("fedpall"), run)


def test_a_flipped_bit_in_the_index_is_harmless_or_leads_to_the_copy(tmp_path):
    died_in(tmp_path / "run", "fedpall", 2, "mix")
    source = tmp_path / "run" / "coordinator"
    honest = contents(Index(source, Disk(durable=False)).db)
    with sqlite3.connect(source / "spool.copy.sqlite") as db:
        earlier = contents(db)
    outcomes = set()
    for seed in range(60):
        shutil.copytree(source, folder := tmp_path / "copy", dirs_exist_ok=True)
        flipped(folder / "spool.sqlite", seed)
        index = Index(folder, Disk(durable=False))
        found = contents(index.db)
        assert found == (earlier if index.restored_from_copy else honest), seed
        outcomes.add("copy" if index.restored_from_copy else "harmless")
        index.close()
    assert "copy" in outcomes


def contents(db):
    tables = ("run", "checkpoint", "accepted", "heard", "closed")
    return {table: sorted(db.execute(f"SELECT * FROM {table}")) for table in tables}


def test_a_damaged_index_with_a_damaged_copy_is_refused_in_one_line(tmp_path):
    died_in(tmp_path, "fedavg", 2, "train")
    folder = tmp_path / "coordinator"
    for name in ("spool.sqlite", "spool.copy.sqlite"):
        (folder / name).write_bytes(b"no database at all" * 500)
    with pytest.raises(
        DamagedError, match=r"spool.sqlite is damaged .* and so is spool.copy.sqlite .*protofleet go-on"
    ):
        Spool(folder)


@pytest.mark.parametrize(
    ("which", "damage"), few([("open", "flipped"), ("open", "gone"), ("closed", "cut short")], 2)
)
def test_a_damaged_answer_is_requested_again_and_has_the_same_bits(tmp_path, unbroken, caplog, which, damage):
    phase = "mix" if which == "closed" else "train"
    run = died_in(tmp_path, "fedpall", 2, phase)
    with sqlite3.connect(tmp_path / "coordinator" / "spool.sqlite") as db:
        query = "SELECT device, lower(hex(object)) FROM accepted WHERE round = 2 AND phase = 'train'"
        device, name = db.execute(query).fetchone()
    harm_answer(tmp_path / "coordinator", device, name, damage)
    run.boot_coordinator()
    run.run()
    assert run.service.run.spool.fallbacks["answer"] == 1
    assert f"the answer of {device} to round 2 train is damaged; the device is asked again" in caplog.text
    assert_same(unbroken("fedpall"), run)


def answered_and_killed(folder, method, until=lambda run: run.agents["device-1"].state.last_round == 2):
    """Return a run whose device has worked and died, and the paths of the device's files."""
    run = simulation(folder, method)
    agent = run.agents["device-1"]
    run.run(until=lambda: until(run))
    run.kill("device-1")
    objects, book = folder / "device-1" / "objects", agent.state.saved
    return run, {
        "file": folder / "device-1" / "device.json",
        "copy": folder / "device-1" / "device.copy.json",
        "second copy": folder / "device-1" / "device.copy-2.json",
        "previous": folder / "device-1" / "device.previous.json",
        "broadcast": objects / f"{book.broadcast}.body",
        "half": objects / f"{book.half}.body",
        "answer": objects / f"{book.answers[-1].object}.body",
    }


def fallbacks(run):
    registry = DeviceMetrics(run.agents["device-1"].view).registry
    return registry.get_sample_value("protofleet_device_fallbacks")


@pytest.mark.parametrize("what", ["file", pytest.param("file and copy", marks=pytest.mark.slow)])
@pytest.mark.parametrize("damage", few(DAMAGE, 2))
def test_a_damaged_device_json_is_replaced_by_its_copy(tmp_path, unbroken, caplog, damage, what):
    run, files = answered_and_killed(tmp_path, "fedpall")
    for name in what.split(" and "):
        DAMAGE[damage](files[name])
    run.boot_device("device-1")
    assert "device.json is" in caplog.text and "the copy of this file is used instead" in caplog.text
    assert fallbacks(run) == 1 and run.agents["device-1"].state.last_round == 2
    run.run()
    assert_same(unbroken("fedpall"), run)


@pytest.mark.parametrize(
    ("method", "what", "damage"),
    few([
        ("fedavg", "answer", "cut short"), ("fedavg", "answer and broadcast", "gone"), ("fedpall", "half", "flipped"),
        ("fedpall", "half", "gone"), ("fedpall", "answer", "flipped"), ("fedpall", "half and broadcast", "empty"),
    ], 2),
)  # fmt: skip
def test_a_device_with_damaged_files_goes_back_and_computes_the_same_answer_again(
    tmp_path, unbroken, caplog, method, what, damage
):
    """The device has answered, and died before the coordinator took the answer."""
    run, files = answered_and_killed(tmp_path, method)
    for name in what.split(" and "):
        DAMAGE[damage](files[name])
    run.boot_device("device-1")
    assert "the device goes back to the state before the last update" in caplog.text and fallbacks(run) == 1
    assert run.agents["device-1"].state.last_round < 2 or method == "fedpall"
    run.run()
    assert_same(unbroken(method), run)


def a_round_later(run):
    """Return whether the answer was accepted and its round is over, so that no task asks for it again."""
    return (run.service.run.machine.round, run.service.run.machine.asked) == (3, "train")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["file", "file and copy", "half", "answer", "half and answer"])
@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_device_computes_a_lost_answer_again_even_if_its_round_is_over(
    tmp_path, unbroken, caplog, what, damage
):
    """FedPall's devices keep what they learn: without it, the next round would begin one step earlier."""
    run, files = answered_and_killed(tmp_path, "fedpall", a_round_later)
    for name in what.split(" and "):
        DAMAGE[damage](files[name])
    run.boot_device("device-1")
    assert what.startswith("file") or "and computes that update again" in caplog.text
    run.run()
    assert_same(unbroken("fedpall"), run)


def test_a_device_computes_a_lost_answer_again_after_further_crashes(tmp_path, unbroken, caplog):
    run, files = answered_and_killed(tmp_path, "fedpall", a_round_later)
    files["half"].unlink()
    for _ in range(3):
        run.boot_device("device-1")
        run.kill("device-1")
    run.boot_device("device-1")
    run.run()
    assert_same(unbroken("fedpall"), run)


@pytest.mark.parametrize("starts", [1, 3])
@pytest.mark.parametrize("what", ["half and broadcast", "answer and broadcast"])
def test_a_device_that_cannot_recompute_a_lost_answer_stops_with_the_reason(tmp_path, what, starts):
    run, files = answered_and_killed(tmp_path, "fedpall", a_round_later)
    for name in what.split(" and "):
        files[name].unlink()
    for _ in range(starts):
        run.boot_device("device-1")
    before = run.agents["device-1"].state.saved.answers
    run.run(until=lambda: run.agents["device-1"].finished)
    agent = run.agents["device-1"]
    assert re.search(
        r"the update for round 2 mix is lost.*put it back .* remove \S+device-1 ", agent.view.problem
    )
    assert agent.state.saved.answers == before and "\n" not in agent.view.problem
    run.run(until=lambda: run.service.context.departures[DisconnectReason.DAMAGED] == 1)


@pytest.mark.parametrize(
    "what", ["file and copy and second copy", "half and previous", "answer and previous"]
)
def test_a_device_without_the_record_of_its_progress_does_not_start(tmp_path, what):
    run, files = answered_and_killed(tmp_path, "fedpall")
    for name in what.split(" and "):
        files[name].unlink()
    with pytest.raises(DamagedError, match=r"is gone.*put it back from a copy, or remove") as error:
        run.boot_device("device-1")
    assert exit_code(error.value) == 1 and "\n" not in str(error.value)


def test_a_second_copy_from_before_an_earlier_version_is_not_used(tmp_path):
    """An earlier version knows one copy, and writes only this copy."""
    run = simulation(tmp_path, "fedpall")
    run.run(until=lambda: run.agents["device-1"].state.last_round == 2)
    left = (path := tmp_path / "device-1" / "device.copy-2.json").read_bytes()
    run.boot_device("device-1")
    run.run(until=lambda: run.agents["device-1"].state.last_round == 3)
    run.kill("device-1")
    path.write_bytes(left)
    for name in ("device.json", "device.copy.json"):
        path.with_name(name).unlink()
    with pytest.raises(DamagedError, match="device.json is gone"):
        run.boot_device("device-1")


def test_a_device_without_answers_reads_its_boot_number_from_the_copy(tmp_path):
    before = DeviceState(tmp_path).boot(7)
    (tmp_path / "device.json").unlink()
    assert DeviceState(tmp_path).boot(0) > before


def test_a_recomputed_answer_with_other_bytes_is_logged(tmp_path, caplog):
    run, files = answered_and_killed(tmp_path, "fedpall", a_round_later)
    files["half"].unlink()
    run.boot_device("device-1")
    state = run.agents["device-1"].state
    state.saved.lost = replace(state.saved.lost, object="ab" * 32)
    run.run()
    assert "the update for round 2 mix was computed again, and it differs from the lost update" in caplog.text


@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_device_does_not_train_on_a_damaged_broadcast(tmp_path, unbroken, damage):
    run = simulation(tmp_path, "fedpall")
    agent = run.agents["device-1"]
    run.run(until=lambda: agent.state.last_round == 2)
    DAMAGE[damage](tmp_path / "device-1" / "objects" / f"{agent.state.saved.broadcast}.body")
    run.kill("device-1")
    run.boot_device("device-1")
    assert run.agents["device-1"].state.saved.broadcast == ""
    run.run()
    assert_same(unbroken("fedpall"), run)


def test_a_device_that_went_back_never_reuses_a_boot_number(tmp_path):
    run = simulation(tmp_path, "fedavg")
    run.run(until=lambda: run.agents["device-1"].state.last_round == 2)
    for _ in range(3):
        run.boot_device("device-1")
    before = run.agents["device-1"].state.file.boot
    for name in ("device.json", "device.copy.json"):
        (tmp_path / "device-1" / name).write_bytes(b"rot")
    state = DeviceState(tmp_path / "device-1", durable=False)
    assert state.boot(0) > before


def given_format(path, number):
    if path.suffix == ".json":
        path.write_text(path.read_text().replace('"format": 2', f'"format": {number}'))
    else:
        with sqlite3.connect(path) as db:
            db.execute(f"PRAGMA user_version = {number}")


def test_files_of_a_later_version_are_refused_in_one_line(tmp_path):
    run = simulation(tmp_path, "fedavg").run()
    run.service.run.spool.close()
    for name in ("spool.sqlite", "spool.copy.sqlite"):
        given_format(tmp_path / "coordinator" / name, 9)
    with pytest.raises(
        NewerFormatError, match=r"spool.sqlite is of format 9, .* up to 1.*run that one"
    ) as error:
        Spool(tmp_path / "coordinator")
    assert exit_code(error.value) == 2
    for name in ("device.json", "device.copy.json"):
        given_format(tmp_path / "device-1" / name, 3)
    with pytest.raises(NewerFormatError, match=r"device.json is of format 3, .* up to 2.*run that one"):
        DeviceState(tmp_path / "device-1")
    assert read_state_file((tmp_path / "device-0" / "device.json").read_bytes()).runs


@pytest.mark.parametrize(
    "path",
    few(
        [
            "coordinator/spool.sqlite",
            *(f"device-1/device{n}.json" for n in ("", ".copy", ".copy-2", ".previous")),
        ],
        3,
    ),
)
def test_a_single_file_with_a_later_format_is_treated_as_damaged(tmp_path, unbroken, caplog, path):
    run = died_in(tmp_path, "fedpall", 2, "mix")
    given_format(tmp_path / path, 3)
    run.boot_coordinator()
    run.boot_device("device-1")
    run.run()
    assert_same(unbroken("fedpall"), run)
    assert "its format is 3" in caplog.text or "copy" in path
