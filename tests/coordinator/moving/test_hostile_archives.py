"""An archive that no hand-over has made is refused in one line, and leaves no file."""

import hashlib
import json
import os
import tarfile
import tracemalloc

import pytest

from protofleet.coordinator.moving.hand_over import hand_over
from protofleet.coordinator.moving.place import CoordinatorPlace
from protofleet.coordinator.moving.unpack import unpack
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.store import DamagedError
from tests.coordinator.moving.world import FEDERATION, run_place

FAST = Disk(durable=False)
REFUSED = (DamagedError, SettingsError)
BLOCK = 512


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Return an honest archive of the run "red"."""
    folder = tmp_path_factory.mktemp("honest")
    return hand_over(
        run_place(folder / "old"), FEDERATION, folder / "red.tar", lambda: None, disk=FAST
    ).archive


@pytest.fixture
def made(archive):
    """Return the manifest and the contents of the honest archive."""
    with tarfile.open(archive) as tar:
        contents = {name: tar.extractfile(name).read() for name in tar.getnames()}
    return json.loads(contents["manifest.json"]), contents


def member(name, data=b"", kind=tarfile.REGTYPE, size=None, link=""):
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(data) if size is None else size, kind, link
    return info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % BLOCK)


def entry(path, data=b"x"):
    return {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def written(path, manifest, members):
    text = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    path.write_bytes(member("manifest.json", text) + b"".join(members) + bytes(2 * BLOCK))
    return path


def honest(made, more=()):
    """Return the manifest and the members of the honest archive, with more files."""
    manifest, contents = made
    files = [*manifest["files"], *(entry(path) for path in more)]
    members = [member(file["path"], contents.get(file["path"], b"x")) for file in files]
    return {**manifest, "files": files}, members


def refusal(archive, folder):
    """Return the line with which an archive is refused; no file may be left of it."""
    place = CoordinatorPlace(folder, "red")
    with pytest.raises(REFUSED) as caught:
        unpack(archive, place, FEDERATION, FAST)
    assert "\n" not in str(caught.value)
    assert not folder.exists() or not list(folder.iterdir())
    return str(caught.value)


def test_an_archive_of_this_test_with_honest_contents_is_accepted(made, tmp_path):
    manifest, members = honest(made, ["red/more"])
    own = written(tmp_path / "own.tar", manifest, members)
    assert unpack(own, CoordinatorPlace(tmp_path / "new", "red"), FEDERATION, FAST).is_new
    assert (tmp_path / "new" / "red" / "more").read_bytes() == b"x"


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd", "../outside", "red/../../outside", "red/./x", "red//x", "red/x/", "", "..", "red/..",
        "red/a\nb", "red/a\x00b", "red\\..\\x", "other/x", "queue.sqlite", ".queue/x", ".lab.epoch",
        "red/coordinator/moved.json", "red/coordinator/unpacked.json", "red/" + "n" * 300, "red/a\u202eb",
    ],
)  # fmt: skip
def test_a_path_outside_the_folders_of_the_runs_is_refused(made, tmp_path, path):
    manifest, members = honest(made)
    manifest["files"].append(entry(path))
    words = refusal(
        written(tmp_path / "x.tar", manifest, [*members, member("red/x", b"x")]), tmp_path / "new"
    )
    assert "is no path of a file in it" in words or "belongs to none of its runs" in words
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (tarfile.SYMTYPE, {"link": "/etc"}), (tarfile.LNKTYPE, {"link": "red/rounds.jsonl"}), (tarfile.CHRTYPE, {}),
        (tarfile.BLKTYPE, {}), (tarfile.FIFOTYPE, {}), (tarfile.DIRTYPE, {}), (tarfile.GNUTYPE_SPARSE, {}),
    ],
)  # fmt: skip
def test_a_link_or_a_device_node_or_a_folder_is_refused(made, tmp_path, kind, more):
    manifest, members = honest(made, ["red/more"])
    members[-1] = member("red/more", b"", kind, **more) + bytes(BLOCK)
    words = refusal(written(tmp_path / "x.tar", manifest, members), tmp_path / "new")
    assert "must be a file" in words or "in place of red/more" in words


@pytest.mark.parametrize("name", ["../../outside", "/etc/passwd", "red/less"])
def test_a_member_under_another_name_than_in_the_manifest_is_refused(made, tmp_path, name):
    manifest, members = honest(made, ["red/more"])
    members[-1] = member(name, b"x")
    words = refusal(written(tmp_path / "x.tar", manifest, members), tmp_path / "new")
    assert f"it has {name!r} in place of red/more" in words


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_that_renames_the_next_member_is_refused(made, tmp_path, kind):
    manifest, members = honest(made, ["red/more"])
    members[-1] = member("red/more", b"31 path=../../outside\n", kind) + members[-1]
    archive = written(tmp_path / "x.tar", manifest, members)
    assert "bytes, but its manifest says" in refusal(archive, tmp_path / "new")


def test_a_file_size_above_the_size_of_the_archive_is_refused_before_it_takes_memory(made, tmp_path):
    manifest, members = honest(made, ["red/more"])
    manifest["files"][-1]["size"] = 1 << 40
    members[-1] = member("red/more", b"x", size=1 << 40)
    archive = written(tmp_path / "x.tar", manifest, members)
    tracemalloc.start()
    assert "bytes, but its manifest says" in refusal(archive, tmp_path / "new")
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()


def test_a_sparse_archive_larger_than_the_disk_is_refused(made, tmp_path):
    manifest, members = honest(made)
    manifest["files"].append(entry("red/hole") | {"size": 1 << 40})
    archive = written(tmp_path / "x.tar", manifest, [*members, member("red/hole", b"", size=1 << 40)])
    end = archive.stat().st_size + (1 << 40)
    try:
        os.truncate(archive, end)
    except OSError:
        pytest.skip("the file system has no sparse files of this size")
    assert "MB, and the disk of" in refusal(archive, tmp_path / "new")


@pytest.mark.parametrize("size", [(64 << 20) + 1, 1 << 50], ids=["too large", "far too large"])
def test_a_manifest_that_is_too_large_is_refused(tmp_path, size):
    (tmp_path / "x.tar").write_bytes(member("manifest.json", b"{}", size=size) + bytes(BLOCK))
    assert "the limit is 67,108,864" in refusal(tmp_path / "x.tar", tmp_path / "new")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "a newer protofleet has written it; install that version here"),
        ({"format": "1"}, 'format is "1", but must be a whole number'),
        ({"federation": "la/b"}, "is no name"),
        ({"runs": ["red", ".."]}, "is no name"),
        ({"runs": ["red", "blue"]}, "it names other runs"),
        ({"run": ""}, "it has no .queue/service.sqlite"),
        ({"epoch": 1 << 62}, "it names the epoch"),
        ({"epochs": [-1]}, "it names the epoch -1"),
        ({"epochs": [True]}, "must be a whole number"),
        ({"files": 3}, "must be a list"),
        ({"files": []}, "it has no red/coordinator/spool.sqlite"),
        ({"more": 1}, "more is not a setting"),
    ],
)
def test_a_manifest_with_a_wrong_value_is_refused(made, tmp_path, change, words):
    manifest, members = honest(made)
    archive = written(tmp_path / "x.tar", manifest | change, members)
    place = CoordinatorPlace(tmp_path / "new", "" if change == {"run": ""} else "red")
    with pytest.raises(REFUSED) as caught:
        unpack(archive, place, FEDERATION, FAST)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"[" * 100_000, b'{"format": NaN}', b"\xff\xfe", b"null"])
def test_a_manifest_that_cannot_be_parsed_is_refused(tmp_path, text):
    refusal(written(tmp_path / "x.tar", text, []), tmp_path / "new")


def test_a_path_that_occurs_twice_or_is_also_a_folder_is_refused(made, tmp_path):
    for more, words in (
        (["red/a", "red/a"], "twice"),
        (["red/a", "red/a/b"], "is a file and a folder in it"),
    ):
        manifest, members = honest(made, more)
        assert words in refusal(written(tmp_path / "x.tar", manifest, members), tmp_path / "new")


def test_each_changed_byte_and_each_missing_end_of_an_archive_is_found(archive, tmp_path):
    whole = archive.read_bytes()
    for position in range(0, len(whole), max(1, len(whole) // 97)):
        changed = bytearray(whole)
        changed[position] ^= 0x20
        (tmp_path / "x.tar").write_bytes(changed)
        place = CoordinatorPlace(tmp_path / f"new-{position}", "red")
        try:
            unpack(tmp_path / "x.tar", place, FEDERATION, FAST)
        except REFUSED as error:
            assert "\n" not in str(error)
            assert not place.runs.exists() or not list(place.runs.iterdir())
            continue
        # Only bytes that pad a member or a header have no meaning.
        assert changed[position] == 0x20 or b"ustar" in whole[position - position % BLOCK :][:BLOCK]
    for size in (0, 100, BLOCK, len(whole) // 2, len(whole) - 1, len(whole) + BLOCK):
        (tmp_path / "x.tar").write_bytes((whole + bytes(BLOCK))[:size])
        refusal(tmp_path / "x.tar", tmp_path / "new")


def test_a_file_with_a_wrong_hash_is_refused_and_no_file_stays(made, tmp_path):
    manifest, contents = made
    contents["red/rounds.jsonl"] = contents["red/rounds.jsonl"].replace(b"1", b"2")
    archive = written(tmp_path / "x.tar", *honest((manifest, contents)))
    assert "the SHA-256 of red/rounds.jsonl is wrong" in refusal(archive, tmp_path / "new")


def test_a_database_of_a_newer_format_or_no_database_is_refused(made, tmp_path):
    manifest, contents = made
    name = "red/coordinator/spool.sqlite"
    for data, words in (
        (contents[name][:60] + (2).to_bytes(4, "big") + contents[name][64:], "has the format 2"),
        (b"nothing", "is no database"),
    ):
        files = [entry(name, data) if file["path"] == name else file for file in manifest["files"]]
        archive = written(tmp_path / "x.tar", *honest((manifest | {"files": files}, contents | {name: data})))
        assert words in refusal(archive, tmp_path / "new")


def test_a_file_that_is_not_an_archive_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "zeros").write_bytes(bytes(10_000))
    for name in ("pipe", "folder", "nothing", "zeros"):
        refusal(tmp_path / name, tmp_path / "new")
