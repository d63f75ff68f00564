"""Small answers share one file: they are durable after one sync, whole or absent, and deleted when not needed."""

import errno
import hashlib
import os
from pathlib import Path

import pytest

from protofleet.coordinator.spool.answer_log import AnswerLog, DeviceAnswers
from protofleet.protocol.storage.disk import Disk, NoRoom
from tests.support.noted_disk import NotedDisk
from tests.support.open_files import open_files


def log_of(folder, *places, disk=None):
    return AnswerLog(folder, disk or Disk(durable=False), places)


def rows(log, *keys):
    return [(*key, log.place(*key)) for key in keys]


def test_one_sync_makes_any_number_of_answers_durable(tmp_path):
    disk = NotedDisk()
    log = log_of(tmp_path / "answers", disk=disk)
    for turn in range(3):
        for i in range(100):
            log.append(f"device-{i}", b"%d of %d" % (turn, i))
        disk.taken.clear()
        log.sync()
        assert disk.taken == [("sync", "00000001.log"), *([("sync", "answers")] if turn == 0 else [])]
    log.sync()
    assert len(disk.taken) == 1, "no answer has arrived since"


def test_an_answer_that_is_sent_again_takes_no_more_space(tmp_path):
    log = log_of(tmp_path)
    names = {log.append("device-1", b"the same") for _ in range(5)}
    assert names == {hashlib.sha256(b"the same").digest()} and log.size == len(b"the same")


def test_two_devices_may_send_the_same_answer_and_one_may_be_deleted(tmp_path):
    log = log_of(tmp_path)
    name = log.append("a", b"alike")
    assert log.append("b", b"alike") == name
    log.forget("a", name)
    assert not log.has("a", name) and log.read("b", name, 1, 3) == b"li"


def test_a_refused_answer_takes_no_space_and_does_not_change_earlier_answers(tmp_path):
    log = log_of(tmp_path)
    first = log.append("a", b"first")
    for i in range(100):
        log.forget("b", log.append("b", b"refused %d" % i))
    assert log.size == len(b"first")
    log.sync()
    second = log.append("c", b"second")
    log.sync()
    log.forget("c", second)  # It is durable, so a row may name it.
    assert log.size == len(b"firstsecond") and log.read("a", first, 0, 5) == b"first"
    assert log.names("a") == [first] and not log.names("b")


def test_a_later_process_knows_the_answers_of_its_rows_and_appends_to_its_own_file(tmp_path):
    log = log_of(tmp_path)
    kept, lost = log.append("a", b"with a row"), log.append("b", b"its row was never committed")
    log.sync()
    told = rows(log, ("a", kept))
    log.close()
    with (tmp_path / "00000001.log").open("ab") as file:
        file.write(b"half of an ans")  # The process died while it wrote this.
    again = log_of(tmp_path, *told)
    assert again.has("a", kept) and not again.has("b", lost)
    new = again.append("c", b"new")
    assert again.place("c", new).file == 2 and again.read("a", kept, 0, 4) == b"with"


def test_two_processes_that_opened_one_folder_append_to_separate_files(tmp_path):
    """If the folder's lock stops no process, the index stops the older one, but it does not guard names of files."""
    older, newer = log_of(tmp_path), log_of(tmp_path)
    first = newer.append("a", b"of the newer one")
    second = older.append("a", b"of the older one")
    assert (newer.place("a", first).file, older.place("a", second).file) == (1, 2)
    assert newer.read("a", first, 0, 16) == b"of the newer one"


@pytest.mark.parametrize("harm", ["flipped", "cut short", "gone"])
def test_a_damaged_answer_is_noticed_and_counts_as_missing(tmp_path, caplog, harm):
    log = log_of(tmp_path)
    first, second = log.append("a", b"first" * 50), log.append("b", b"second" * 50)
    told = rows(log, ("a", first), ("b", second))
    path = tmp_path / "00000001.log"
    whole = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(
            whole[:300] + bytes([whole[300] ^ 1]) + whole[301:] if harm == "flipped" else whole[:400]
        )
    again = log_of(tmp_path, *told)
    assert (
        not again.has("b", second)
        and again.damaged == 1
        and "an update of b is damaged or missing" in caplog.text
    )
    assert again.has("a", first) is (harm != "gone")


def test_a_file_is_deleted_when_none_of_its_answers_is_needed(tmp_path):
    log = log_of(tmp_path)
    first, second = log.append("a", b"round 1"), log.append("b", b"round 1 too")
    log.begin_file()
    third = log.append("a", b"round 2")
    log.keep({("b", second), ("a", third)})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000001.log", "00000002.log"]
    assert not log.has("a", first)
    log.begin_file()
    log.keep({("a", third)})
    assert [p.name for p in tmp_path.iterdir()] == ["00000002.log"] and log.has("a", third)


def test_a_file_that_is_read_again_is_opened_once_and_closed_when_it_is_deleted(tmp_path):
    log = log_of(tmp_path)
    first = log.append("a", b"round 1")
    log.begin_file()
    second = log.append("a", b"round 2")
    assert [log.read("a", name, 0, 7) for name in (first, second, first)] == [
        b"round 1",
        b"round 2",
        b"round 1",
    ]
    assert log.read("a", first, 2, 4) == b"un"
    assert sorted(held(tmp_path)) == ["00000001.log", "00000002.log"], "one to read, one to write"
    log.keep({("a", second)})
    assert held(tmp_path) == ["00000002.log"]
    log.read("a", second, 0, 7)
    log.close()
    assert held(tmp_path) == []


def held(folder):
    return [Path(name).name for name in open_files(folder)]


def test_a_disk_that_becomes_full_during_an_answer_loses_only_that_answer(tmp_path, monkeypatch):
    log = log_of(tmp_path / "answers")
    store = DeviceAnswers("a", tmp_path / "a", log, Disk(durable=False))
    first = store.put_bytes(b"before")
    real = os.pwrite

    def half(handle, data, place):
        if place >= len(b"before") + 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, data[:4], place)

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(NoRoom, match="the disk is full"):
        store.put_bytes(b"does not fit")
    monkeypatch.undo()
    assert not store.has(hashlib.sha256(b"does not fit").digest())
    second = store.put_bytes(b"after")
    assert store.read(first, 0, 6) == b"before" and store.read(second, 0, 5) == b"after"
