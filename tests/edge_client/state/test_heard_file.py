"""The device stores which message it last received, in place in the file if a power cut may undo the note."""

import pytest

from protofleet.edge_client.state.heard import NAME, HeardFile, LastHeard
from protofleet.protocol.link.clocks import Clock
from tests.support.noted_disk import NotedDisk

CLOCK = Clock(lambda: 1_800_000_000.0)


@pytest.fixture
def disk():
    return NotedDisk(durable=True)


@pytest.fixture
def heard(tmp_path, disk):
    file = HeardFile(tmp_path, disk, CLOCK)
    file.note_message(1_800_000_000, 5, durable=True)
    disk.taken.clear()
    return file


def read(folder):
    return HeardFile(folder, NotedDisk(), CLOCK).last


def test_a_note_without_sync_overwrites_the_file_in_place(tmp_path, heard, disk):
    before = (tmp_path / NAME).stat()
    for sequence in (6, 70_000, 7 << 40):
        heard.note_message(1_800_000_000, sequence, durable=False)
        assert read(tmp_path) == LastHeard(1_800_000_000, sequence)
    after = (tmp_path / NAME).stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert disk.taken == 3 * [("overwrite", NAME)] and [path.name for path in tmp_path.iterdir()] == [NAME]


def test_the_end_of_a_run_is_synced(tmp_path, heard, disk):
    heard.note_run_end("x" * 64)
    assert [step for step, _ in disk.taken] == ["sync", "rename", "sync"]
    heard.note_message(1_800_000_000, 6, durable=False)
    assert disk.taken[3:] == [("overwrite", NAME)]
    assert read(tmp_path) == LastHeard(1_800_000_000, 6, "x" * 64)


def test_an_old_or_missing_file_is_replaced_by_a_new_one(tmp_path, heard, disk):
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes().rstrip())
    assert read(tmp_path) == LastHeard(1_800_000_000, 5)
    heard.note_message(1_800_000_000, 6, durable=False)
    assert [step for step, _ in disk.taken] == ["rename"] and read(tmp_path).sequence == 6
    path.unlink()
    heard.note_message(1_800_000_000, 7, durable=False)
    assert [step for step, _ in disk.taken] == ["rename", "rename"] and read(tmp_path).sequence == 7


@pytest.mark.parametrize("torn", [lambda old, new: new[:100] + old[100:], lambda old, new: new[:100]])
def test_a_note_damaged_by_a_power_cut_is_ignored_and_logged(tmp_path, heard, caplog, torn):
    path = tmp_path / NAME
    old = path.read_bytes()
    heard.note_message(1_800_000_001, 6, durable=False)
    path.write_bytes(torn(old, path.read_bytes()))
    assert read(tmp_path) == LastHeard() and "heard.json is damaged" in caplog.text
