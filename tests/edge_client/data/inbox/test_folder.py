"""A device takes the right samples out of its inbox, and leaves other files there with a reason."""

import errno
import logging
import os
import time

import numpy as np
import pytest
from PIL import Image

from protofleet.edge_client.data import plain_file
from protofleet.edge_client.data.images import picture as picture_module
from protofleet.edge_client.data.inbox import listing as folder_module
from protofleet.edge_client.data.inbox.listing import Inbox, InboxEntry, held_out
from protofleet.edge_client.data.inbox.samples import InboxSamples
from protofleet.edge_client.data.scaling import SampleKind
from protofleet.protocol.settings.input_shape import InputShape
from protofleet.protocol.storage.disk import Disk

NAMES = ("cat", "dog")
LATER = 3600.0


def inbox_at(tmp_path, shape=(3, 8, 8), now=lambda: time.time() + LATER):
    folder = tmp_path / "inbox"
    for name in NAMES:
        (folder / name).mkdir(parents=True, exist_ok=True)
    shape = InputShape(shape)
    samples = InboxSamples(tmp_path / "kept", shape, Disk(durable=False))
    return Inbox(folder, NAMES, shape, samples, SampleKind(shape.rank == 3, largest=3.0), now)


def picture(path, shade):
    Image.new("RGB", (16, 16), (shade, 0, 0)).save(path)
    return path


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_inbox_samples_have_the_class_of_their_folder_and_are_sorted_by_hash(tmp_path, caplog):
    inbox = inbox_at(tmp_path)
    for i in range(6):
        picture(inbox.folder / NAMES[i % 2] / f"{i}.png", 40 * i)
    found = inbox.look()
    assert len(found) == 6 and list(found) == sorted(found) and sum(entry.label for entry in found) == 3
    assert found == inbox.look() == inbox_at(tmp_path).look() and lines(caplog) == []
    kept = inbox.samples.load(found[0].sha256)
    assert kept.shape == (3, 8, 8) and kept.dtype == np.uint8


def test_a_file_that_is_still_being_written_is_read_once_it_is_complete(tmp_path, caplog):
    inbox = inbox_at(tmp_path, now=time.time)
    whole = picture(tmp_path / "whole.png", 200).read_bytes()
    path = inbox.folder / "cat" / "slow.png"
    path.write_bytes(whole[:20])
    assert inbox.look() == () and lines(caplog) == []
    os.utime(path, (1, 1))  # the copying program stalls for longer than the device waits
    assert inbox.look() == () and "cat/slow.png is skipped: it is no" in lines(caplog)[0]
    assert inbox.look() == () and len(lines(caplog)) == 1, "once"
    path.write_bytes(whole)
    os.utime(path, (2, 2))
    assert len(inbox.look()) == 1


def test_each_unusable_inbox_file_is_logged_once_with_its_reason(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(plain_file, "MOST_BYTES", 50_000)
    inbox = inbox_at(tmp_path)
    cat, dog = inbox.folder / "cat", inbox.folder / "dog"
    good = picture(cat / "good.png", 1)
    (cat / "huge.png").write_bytes(bytes(50_001))
    (cat / "notes.txt").write_text("hello")
    (cat / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    os.mkfifo(cat / "pipe.png")
    (cat / "link.png").symlink_to(good)
    (cat / "folder.png").mkdir()
    (dog / "twice.png").write_bytes(good.read_bytes())
    np.save(cat / "other.npy", np.zeros((3, 4, 4)))
    np.save(cat / "nan.npy", np.full((3, 8, 8), np.nan))
    np.save(cat / "object.npy", np.array([{}], object))
    (cat / "\x1b[31mred.txt").write_text("")
    (inbox.folder / "owl").mkdir()
    for silent in (cat / ".hidden.png", cat / "later.png.part", inbox.folder / "README"):
        silent.write_text("")
    assert len(inbox.look()) == 1
    said = "\n".join(lines(caplog))
    assert "cat/huge.png is skipped: it has 50,001 bytes, but the limit is 50,000" in said
    assert "cat/notes.txt is skipped: .txt is not a picture or a .npy file" in said
    assert "cat/broken.png is skipped: it is not a picture in one of the formats BMP, GIF, JPEG, PNG" in said
    assert "cat/pipe.png is skipped: it is not a regular file" in said
    assert "cat/link.png is skipped: it is a link; replace it with the file itself" in said
    assert (
        "cat/folder.png is skipped: it is a folder; put its files directly into the folder of the class"
        in said
    )
    assert "dog/twice.png is skipped: the same file is in the folder of another class" in said
    assert (
        "cat/other.npy is skipped: it has float64 [3, 4, 4], but this run learns from images [3, 8, 8]"
        in said
    )
    assert "cat/nan.npy is skipped: it has numbers that are not finite" in said
    assert "cat/object.npy is skipped: it is not a NumPy array" in said and "\x1b" not in said
    assert "owl is no class of this run (cat, dog); skipped" in said
    assert "hidden" not in said and "part" not in said and "README" not in said
    once = len(lines(caplog))
    assert len(inbox.look()) == 1 and len(lines(caplog)) == once


def test_samples_outside_the_class_folders_are_skipped_and_logged_once(tmp_path, caplog):
    inbox = inbox_at(tmp_path)
    picture(inbox.folder / "cat" / "good.png", 1)
    loose = [picture(inbox.folder / f"{name}.png", 2) for name in "abc"]
    for _ in range(2):
        assert len(inbox.look()) == 1
    (line,) = lines(caplog)
    assert "/a.png and 2 more are in no folder of a class, and skipped; the classes are cat, dog" in line
    for path in loose[1:]:
        path.unlink()
    loose[0].rename(inbox.folder / "dog" / "a.png")
    assert len(inbox.look()) == 2 and len(lines(caplog)) == 1
    picture(inbox.folder / "d.png", 3)
    assert len(inbox.look()) == 2 and "/d.png is in no folder of a class" in lines(caplog)[1]


def test_a_picture_with_too_many_pixels_is_not_decoded(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(picture_module, "MOST_PIXELS", 200)
    inbox = inbox_at(tmp_path)
    picture(inbox.folder / "cat" / "wide.png", 1)
    assert inbox.look() == () and "it has 16 x 16 pixels, but the limit is 200" in lines(caplog)[0]


def test_an_inbox_of_series_takes_npy_files_and_skips_pictures(tmp_path, caplog):
    inbox = inbox_at(tmp_path, shape=(6, 128))
    x = np.random.default_rng(0).normal(size=(6, 128))
    np.save(inbox.folder / "cat" / "a.npy", x)
    picture(inbox.folder / "cat" / "b.png", 1)
    (entry,) = inbox.look()
    assert np.array_equal(inbox.samples.load(entry.sha256), x.astype(np.float32))
    assert "cat/b.png is skipped: .png is not a .npy file" in lines(caplog)[0]


def test_arrays_with_numbers_unlike_the_data_of_the_device_are_skipped(tmp_path, caplog):
    """One such number can make a run diverge, and then the error names the learning rate as the cause."""
    series, pictures = inbox_at(tmp_path / "a", shape=(6, 128)), inbox_at(tmp_path / "b")
    np.save(series.folder / "cat" / "a.npy", np.full((6, 128), 1e30))
    np.save(series.folder / "cat" / "b.npy", np.full((6, 128), 299.0))
    np.save(pictures.folder / "cat" / "c.npy", np.full((3, 8, 8), 255, np.int64))
    np.save(pictures.folder / "cat" / "d.npy", np.full((3, 8, 8), 255, np.uint8))
    assert len(series.look()) == len(pictures.look()) == 1
    far, other = lines(caplog)
    assert (
        "cat/a.npy is skipped: its largest number after scaling is 1e+30, which is over 100 times the" in far
    )
    assert "cat/c.npy is skipped: its numbers are not uint8" in other and "save 0 to 255 as uint8" in other


def test_a_stored_sample_is_kept_until_it_is_unused_and_read_again_if_damaged(tmp_path):
    inbox = inbox_at(tmp_path)
    path = picture(inbox.folder / "cat" / "a.png", 7)
    (entry,) = inbox.look()
    kept = next((tmp_path / "kept").iterdir())
    kept.write_bytes(kept.read_bytes()[:-1] + b"\xff")
    assert not inbox.samples.has(entry.sha256)
    assert inbox_at(tmp_path).look() == (entry,) and inbox.samples.has(entry.sha256)
    path.unlink()
    assert inbox.look() == () and inbox.samples.has(entry.sha256)
    inbox.samples.keep_only(())
    assert not inbox.samples.has(entry.sha256)


def test_the_hash_of_a_sample_alone_decides_if_the_sample_is_held_out():
    entries = [InboxEntry(np.random.default_rng(i).bytes(32), 0) for i in range(2000)]
    parts = [held_out(entry, 0.2, 0.1) for entry in entries]
    assert (
        abs(parts.count("test") / 2000 - 0.2) < 0.03 and abs(parts.count("validation") / 2000 - 0.08) < 0.02
    )
    assert [held_out(entry, 0.2, 0.1) for entry in entries[:50]] == parts[:50]
    assert {held_out(entry, None, 0.0) for entry in entries} == {"train"}


@pytest.mark.parametrize("many", [3])
def test_each_look_at_the_inbox_takes_a_limited_number_of_new_files(tmp_path, monkeypatch, many):
    monkeypatch.setattr(folder_module, "MOST_AT_ONCE", many)
    inbox = inbox_at(tmp_path)
    for i in range(7):
        picture(inbox.folder / "cat" / f"{i}.png", i)
    assert [len(inbox.look()) for _ in range(4)] == [3, 6, 7, 7]


def test_a_uint8_array_is_read_as_pixels_with_channels_first_or_last(tmp_path, caplog):
    """Float numbers would enter the network as 0 to 255, together with pictures of -1 to 1."""
    inbox = inbox_at(tmp_path, shape=(3, 4, 5))
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)
    Image.fromarray(pixels).save(inbox.folder / "cat" / "a.png")
    np.save(inbox.folder / "cat" / "b.npy", pixels)
    np.save(inbox.folder / "dog" / "c.npy", pixels.transpose(2, 0, 1))
    kept = [inbox.samples.load(entry.sha256) for entry in inbox.look()]
    assert len(kept) == 3 and all(one.dtype == np.uint8 for one in kept) and lines(caplog) == []
    assert all(np.array_equal(one, pixels.transpose(2, 0, 1)) for one in kept)


class FullDisk(Disk):
    full = True

    def replace(self, target, data, mode=None, durable=True):
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        super().replace(target, data, mode, durable)


def test_a_file_waits_while_the_disk_is_full_and_is_taken_later(tmp_path, caplog):
    inbox = inbox_at(tmp_path)
    disk = FullDisk(durable=False)
    inbox.samples = InboxSamples(tmp_path / "kept", inbox.shape, disk)
    for i in range(3):
        picture(inbox.folder / "cat" / f"{i}.png", i)
    assert inbox.look() == inbox.look() == ()
    assert lines(caplog) == ["inbox: cat/0.png cannot be stored yet (No space left on device)"], "once"
    disk.full = False
    assert len(inbox.look()) == 3


def test_an_unreadable_file_is_read_after_its_mode_changes(tmp_path, caplog, monkeypatch):
    """A change of its owner or mode makes it readable, and changes neither its time nor its size."""
    inbox = inbox_at(tmp_path)
    path = picture(inbox.folder / "cat" / "a.png", 1)
    denied = OSError(errno.EACCES, os.strerror(errno.EACCES))

    def refuse(path, flags):
        raise denied

    with monkeypatch.context() as patch:
        patch.setattr(plain_file.os, "open", refuse)
        assert inbox.look() == () and "or it cannot be read (Permission denied)" in lines(caplog)[0]
    path.chmod(0o600)
    assert len(inbox.look()) == 1


def test_a_missing_inbox_is_logged_once_and_read_again_when_it_returns(tmp_path, caplog):
    inbox = inbox_at(tmp_path)
    picture(inbox.folder / "cat" / "a.png", 1)
    assert len(inbox.look()) == 1
    inbox.folder.rename(tmp_path / "away")
    assert inbox.look() == inbox.look() == ()
    (line,) = lines(caplog)
    assert line.endswith("inbox cannot be read (No such file or directory); its samples count as gone")
    (tmp_path / "away").rename(inbox.folder)
    assert len(inbox.look()) == 1 and len(lines(caplog)) == 1


def test_too_many_inbox_files_are_logged_once(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(folder_module, "MOST_FILES", 2)
    inbox = inbox_at(tmp_path)
    for i in range(3):
        picture(inbox.folder / "cat" / f"{i}.png", i)
    assert len(inbox.look()) == len(inbox.look()) == 2
    assert lines(caplog) == ["inbox: there are more than 2 files; take some away"]


def test_a_file_dated_in_the_future_is_read(tmp_path, caplog):
    """A board without its own real-time clock starts with a time in 1970."""
    inbox = inbox_at(tmp_path, now=lambda: 100.0)
    picture(inbox.folder / "cat" / "a.png", 1)
    assert len(inbox.look()) == 1 and lines(caplog) == []
