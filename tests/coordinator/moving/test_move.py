"""A coordinator is moved: killed before each durable step, the old or the new folder starts, and never both."""

import contextlib
import json
import sqlite3

import pytest

from protofleet.coordinator.moving.archive import opened, partial_of
from protofleet.coordinator.moving.hand_over import StillRunningError, hand_over
from protofleet.coordinator.moving.place import CoordinatorPlace, MovedError, demand_here
from protofleet.coordinator.moving.unpack import unpack
from protofleet.coordinator.queue.queue_file import QueueFile
from protofleet.coordinator.spool.epochs import epoch_file, saved_epochs
from protofleet.coordinator.spool.index import RunMismatchError
from protofleet.coordinator.spool.month import bytes_in_other_runs
from protofleet.coordinator.spool.spool import Spool
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.folder_lock import held
from protofleet.protocol.storage.store import DamagedError
from tests.coordinator.moving.world import (
    FEDERATION,
    MAKERS,
    NOW,
    DyingDisk,
    KilledError,
    at,
    begin_run,
    content_of,
    copied,
    queue_place,
    run_place,
    starts,
)

FAST = Disk(durable=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return the folder of each kind of coordinator, which tests copy."""
    return {kind: make(tmp_path_factory.mktemp("made") / kind) for kind, make in MAKERS.items()}


@pytest.fixture(params=MAKERS)
def place(request, made, tmp_path):
    return copied(made[request.param], tmp_path / "old")


def over(place, archive, disk=FAST, **more):
    return hand_over(place, FEDERATION, archive, lambda: None, disk=disk, seconds=0.0, **more)


def put(archive, place, disk=FAST):
    return unpack(archive, place, FEDERATION, disk)


@pytest.fixture(params=["few", pytest.param("all", marks=pytest.mark.slow)])
def deaths(request):
    """Return a function that acts with a disk which dies before a step: each that is not a sync, or all."""

    def each(act):
        act(0, whole := DyingDisk())
        for point, step in enumerate(whole.taken, 1):
            if request.param == "few" and step.startswith("sync"):
                continue
            with pytest.raises(KilledError):
                act(point, disk := DyingDisk(point))
            assert disk.taken[point - 1].split()[0] == step.split()[0]
            yield point, step

    return each


def test_the_new_folder_has_the_runs_and_the_old_folder_never_starts_again(place, tmp_path):
    names = ("red",) if place.run else ("red", "blue", "bad")
    before, ended = content_of(place, names), []
    done = hand_over(place, FEDERATION, tmp_path / "lab.tar", lambda: ended.append(1), disk=FAST)
    assert ended == [1] and set(done.manifest.runs) == set(names)
    assert done.left == (() if place.run else ("old",))
    with pytest.raises(
        MovedError, match=r"was handed over to .*lab\.tar and never starts here again; .*--from"
    ):
        demand_here(place)
    new = at(place, tmp_path / "new")
    assert put(tmp_path / "lab.tar", new).is_new
    assert starts(new) and not starts(place)
    assert content_of(new, names) == before
    assert not list(tmp_path.glob(".lab*")) and not list(new.runs.glob(".*incoming*"))


def test_the_new_coordinator_claims_an_epoch_above_all_epochs_of_the_old_machine(tmp_path):
    place, new = queue_place(tmp_path / "old"), tmp_path / "new"
    path = epoch_file(place.runs, FEDERATION)
    path.write_text(f"{NOW + 70}\n")  # Another coordinator of the federation has run there.
    over(place, tmp_path / "lab.tar")
    put(tmp_path / "lab.tar", at(place, new))
    assert max(saved_epochs(epoch_file(new, FEDERATION))) == NOW + 70
    queue = QueueFile(new / ".queue", FEDERATION, lambda: NOW - 500, FAST)
    assert queue.epoch > NOW - 1  # Its clock is behind.
    queue.close()


def test_a_claim_after_an_unpacking_is_above_the_claim_in_the_archive(tmp_path):
    place = run_place(tmp_path / "old")
    done = over(place, tmp_path / "red.tar")
    put(tmp_path / "red.tar", new := at(place, tmp_path / "new"))
    spool = Spool(new.folder, durable=False)
    assert spool.start_run("red", "rounds = 3", NOW - 1000) == done.manifest.epoch + 1
    spool.close()


def test_exactly_one_folder_starts_after_a_hand_over_is_killed_before_any_step(place, tmp_path, deaths):
    before, seen = content_of(place), []

    def act(point, disk):
        over(copied(place, tmp_path / f"old-{point}"), tmp_path / f"{point}.tar", disk)

    for point, step in deaths(act):
        old, archive = at(place, tmp_path / f"old-{point}"), tmp_path / f"{point}.tar"
        is_moved = (old.folder / "moved.json").exists()
        seen.append((step, is_moved))
        assert starts(old) is not is_moved, step
        if archive.exists():
            assert is_moved, step
        elif partial_of(archive).exists():
            with pytest.raises(SettingsError, match="is not complete; run `protofleet hand-over` again"):
                put(partial_of(archive), at(place, tmp_path / f"early-{point}"))
        done = over(old, archive)
        new = at(place, tmp_path / f"new-{point}")
        put(archive, new)
        assert (starts(old), starts(new)) == (False, True), step
        assert content_of(new) == before and done.digest == old.mark.archive, step
        assert not list(tmp_path.glob(f".{point}.tar*")), step
    assert "rename moved.json" in [step for step, _ in seen] and len(seen) > 6
    assert {moved for _, moved in seen} == {True, False}


def test_a_second_hand_over_completes_the_first_archive_or_makes_a_new_one(tmp_path):
    place = queue_place(tmp_path / "old")
    steps = DyingDisk()
    over(copied(place, tmp_path / "whole"), tmp_path / "whole.tar", steps)
    last = max(n for n, step in enumerate(steps.taken, 1) if step == "rename whole.tar")
    with pytest.raises(KilledError):
        over(place, tmp_path / "lab.tar", DyingDisk(last))
    first = place.mark.archive
    assert not (tmp_path / "lab.tar").exists()
    assert over(place, tmp_path / "lab.tar").digest == first
    assert over(place, tmp_path / "lab.tar").digest == first  # Nothing is left to do.
    (tmp_path / "lab.tar").unlink()
    again = over(place, tmp_path / "again.tar")
    assert again.digest == place.mark.archive and starts(place) is False
    put(tmp_path / "again.tar", at(place, tmp_path / "new"))


def test_no_partly_unpacked_folder_starts_and_a_killed_unpacking_can_be_repeated(place, tmp_path, deaths):
    over(place, archive := tmp_path / "lab.tar")
    put(archive, whole := at(place, tmp_path / "whole"))
    wanted, seen = content_of(whole, ("red",)), []
    for point, step in deaths(lambda point, disk: put(archive, at(place, tmp_path / f"new-{point}"), disk)):
        new = at(place, tmp_path / f"new-{point}")
        if started := starts(new):
            assert content_of(new, ("red",)) == wanted, step
        seen.append(started)
        put(archive, new)
        assert starts(new) and content_of(new, ("red",)) == wanted, step
        assert put(archive, new).is_new is False
        assert not list(new.runs.glob(".*incoming*"))
    assert len(seen) > 5 and {True, False} == set(seen)


def test_the_old_folder_accepts_its_own_archive_again_also_after_a_kill(place, tmp_path, deaths):
    before = content_of(place)
    over(place, archive := tmp_path / "lab.tar")

    def act(point, disk):
        put(archive, copied(place, tmp_path / f"back-{point}"), disk)

    for point, step in deaths(act):
        back = at(place, tmp_path / f"back-{point}")
        assert not starts(back) or content_of(back) == before, step
        put(archive, back)
        assert starts(back) and content_of(back) == before, step
        if not place.run:
            assert (back.runs / "old" / "rounds.jsonl").exists()  # This run is over, so it was not moved.


def test_an_unpacked_folder_keeps_its_later_changes_when_it_is_unpacked_again(place, tmp_path):
    over(place, tmp_path / "lab.tar")
    put(tmp_path / "lab.tar", new := at(place, tmp_path / "new"))
    (new.runs / "red" / "rounds.jsonl").write_text("more\n")
    assert put(tmp_path / "lab.tar", new).is_new is False
    assert (new.runs / "red" / "rounds.jsonl").read_text() == "more\n"


def test_a_folder_that_was_handed_over_takes_a_later_archive_and_refuses_an_earlier_one(place, tmp_path):
    first = copied(place, tmp_path / "first")
    over(first, tmp_path / "first.tar")
    put(tmp_path / "first.tar", second := at(place, tmp_path / "second"))
    if place.run:
        spool = Spool(second.folder, durable=False)
        spool.start_run("red", "rounds = 3", NOW + 50)
        spool.close()
    else:
        QueueFile(second.folder, FEDERATION, lambda: NOW + 50, FAST).close()
    over(second, tmp_path / "second.tar")
    with pytest.raises(
        SettingsError, match="was handed over later, with the epoch .*; use the newest archive"
    ):
        put(tmp_path / "first.tar", second)
    put(tmp_path / "second.tar", first)
    assert starts(first) and not starts(second)


def test_ended_runs_are_moved_only_on_request(tmp_path):
    place = queue_place(tmp_path / "old")
    done = over(copied(place, tmp_path / "all"), tmp_path / "all.tar", with_ended=True)
    assert done.manifest.runs == ("bad", "blue", "old", "red") and done.left == ()
    put(tmp_path / "all.tar", new := at(place, tmp_path / "new"))
    assert (new.runs / "old" / "rounds.jsonl").exists()


def test_an_archive_contains_no_private_key_and_no_folder_of_another_party(tmp_path):
    place = run_place(tmp_path / "old")
    key = place.runs / "red" / "mine.key"
    key.write_text("-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\n")
    for folder in ("enrolled", "devices", "logs"):
        (place.runs / "red" / folder).mkdir()
        (place.runs / "red" / folder / "file").write_text("x")
    done = over(place, tmp_path / "red.tar")
    assert done.keys == (key,)
    names = {file.path for file in done.manifest.files}
    assert not {"red/mine.key", "red/enrolled/file", "red/devices/file", "red/logs/file"} & names
    assert "red/rounds.jsonl" in names and b"PRIVATE KEY" not in (tmp_path / "red.tar").read_bytes()
    assert (tmp_path / "red.tar").stat().st_mode & 0o077 == 0


def test_the_ledger_of_bytes_and_the_settings_version_are_merged_with_those_of_the_new_machine(tmp_path):
    place, new = queue_place(tmp_path / "old"), tmp_path / "new"
    new.mkdir()
    (new / "settings.version").write_text("9\n")
    over(place, tmp_path / "lab.tar")
    put(tmp_path / "lab.tar", at(place, new))
    wall = 1_795_000_000  # A time in November 2026.
    assert bytes_in_other_runs(new, "", wall) == {"one": 500, "two": 700}
    assert (new / "settings.version").read_text() == "9\n"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda p, a: (p.runs / "red" / "link").symlink_to("/tmp"), "is a link to a folder"),
        (lambda p, a: (p.runs / "red" / "a\nb").write_text(""), "characters that are not allowed"),
        (lambda p, a: (p.runs / "red" / ("n" * 120)).write_text(""), "name is too long"),
        (lambda p, a: a.write_text("mine"), "is there already; name another file with --to"),
        (lambda p, a: a.parent.rmdir(), "there is no folder"),
    ],
)
def test_a_file_that_cannot_be_packed_is_reported_before_the_coordinator_ends(place, tmp_path, spoil, words):
    (tmp_path / "out").mkdir()
    spoil(place, archive := tmp_path / "out" / "lab.tar")
    ended = []
    with pytest.raises(SettingsError, match=words):
        hand_over(place, FEDERATION, archive, lambda: ended.append(1), disk=FAST)
    assert not ended and starts(place)


def test_a_full_disk_is_reported_before_the_coordinator_ends(place, tmp_path):
    class Small(Disk):
        def free_bytes(self, folder):
            return 10

    with pytest.raises(SettingsError, match=r"the archive needs \d.* MB, and"):
        over(place, tmp_path / "lab.tar", Small(durable=False))
    assert starts(place)


def test_the_hand_over_fails_if_the_coordinator_does_not_end(place, tmp_path):
    with (
        held(place.folder),
        pytest.raises(StillRunningError, match="has not ended, or another hand-over is in progress"),
    ):
        over(place, tmp_path / "lab.tar")
    assert starts(place) and not (tmp_path / "lab.tar").exists()


def test_a_damaged_database_is_replaced_by_its_copy_or_stops_the_hand_over(tmp_path):
    place = run_place(tmp_path / "old")
    whole = content_of(place)
    database = place.folder / "spool.sqlite"
    database.write_bytes(b"nothing" * 500)
    over(copied(place, tmp_path / "first"), tmp_path / "red.tar")
    put(tmp_path / "red.tar", new := at(place, tmp_path / "new"))
    assert content_of(new)["red/coordinator/spool.sqlite"] == whole["red/coordinator/spool.sqlite"]
    (place.folder / "spool.copy.sqlite").write_bytes(b"nothing" * 500)
    with pytest.raises(DamagedError, match="is damaged"):
        over(place, tmp_path / "other.tar")
    assert place.mark is None


def test_a_run_that_was_moved_with_its_queue_does_not_start_alone_on_the_old_machine(tmp_path):
    place = queue_place(tmp_path / "old")
    over(place, tmp_path / "lab.tar")
    for name, is_moved in (("red", True), ("old", False)):
        alone = CoordinatorPlace(place.runs, name)
        with pytest.raises(MovedError) if is_moved else contextlib.nullcontext():
            demand_here(alone)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"archive": 3}', "[" * 9000])
def test_a_damaged_mark_is_refused_in_one_line_and_no_coordinator_starts(tmp_path, text):
    place = queue_place(tmp_path / "old")
    (place.folder / "moved.json").write_text(text)
    with pytest.raises(DamagedError, match=r"moved\.json is damaged .*otherwise remove this file"):
        demand_here(place)


# A target that does not fit.


def test_a_folder_with_other_runs_takes_no_archive(place, tmp_path):
    over(place, tmp_path / "lab.tar")
    begin_run(tmp_path / "new", "red" if place.run else "green")
    with pytest.raises(SettingsError, match=r"holds the run (red|green) already; name another `folder`"):
        put(tmp_path / "lab.tar", at(place, tmp_path / "new"))
    if not place.run:
        (tmp_path / "queue" / ".queue").mkdir(parents=True)
        (tmp_path / "queue" / ".queue" / "service.sqlite").write_text("")
        with pytest.raises(SettingsError, match="holds a queue already"):
            put(tmp_path / "lab.tar", at(place, tmp_path / "queue"))


def test_the_run_of_a_file_is_unpacked_next_to_other_runs_and_into_an_empty_folder(tmp_path):
    over(place := run_place(tmp_path / "old"), tmp_path / "red.tar")
    begin_run(tmp_path / "new", "green")
    (tmp_path / "new" / "red" / "coordinator").mkdir(parents=True)
    put(tmp_path / "red.tar", new := at(place, tmp_path / "new"))
    assert starts(new) and (new.runs / "green" / "rounds.jsonl").exists()


def test_an_archive_of_another_federation_or_of_another_kind_is_refused(place, tmp_path):
    over(place, archive := tmp_path / "lab.tar")
    with pytest.raises(
        SettingsError, match="belongs to the federation lab, and the coordinator's file is for mine"
    ):
        unpack(archive, at(place, tmp_path / "new"), "mine")
    other = CoordinatorPlace(tmp_path / "new", "" if place.run else "blue")
    with pytest.raises(SettingsError, match="use the file of the other machine"):
        put(archive, other)
    assert not (tmp_path / "new").exists()
    with pytest.raises(
        (SettingsError, RunMismatchError), match="is not|belongs to the federation lab|is there"
    ):
        hand_over(queue_place(tmp_path / "third"), "mine", tmp_path / "x.tar", lambda: None, disk=FAST)


def test_a_partly_unpacked_folder_takes_only_the_same_archive(tmp_path):
    place = queue_place(tmp_path / "old")
    over(copied(place, tmp_path / "one"), tmp_path / "one.tar")
    over(place, tmp_path / "two.tar", with_ended=True)
    steps = DyingDisk()
    put(tmp_path / "one.tar", at(place, tmp_path / "whole"), steps)
    point = steps.taken.index("rename .queue") + 1
    new = at(place, tmp_path / "new")
    with pytest.raises(KilledError):
        put(tmp_path / "one.tar", new, DyingDisk(point))
    assert (new.runs / "red").exists() and not new.folder.exists()  # The folder of the queue comes last.
    with pytest.raises(MovedError, match="is only partly unpacked .*start the coordinator again with --from"):
        demand_here(new)
    with pytest.raises(SettingsError, match="is only partly unpacked from another archive"):
        put(tmp_path / "two.tar", new)
    put(tmp_path / "one.tar", new)
    assert starts(new)


def test_a_disk_without_room_for_the_content_takes_no_archive(place, tmp_path):
    class Small(Disk):
        def free_bytes(self, folder):
            return 10

    over(place, tmp_path / "lab.tar")
    with pytest.raises(SettingsError, match=r"the archive holds .* MB, and the disk of"):
        put(tmp_path / "lab.tar", at(place, tmp_path / "new"), Small(durable=False))
    assert not list((tmp_path / "new").iterdir())


def test_a_second_unpacking_in_the_same_folder_is_refused_at_once(place, tmp_path):
    over(place, tmp_path / "lab.tar")
    (tmp_path / "new").mkdir()
    with held(tmp_path / "new"), pytest.raises(SettingsError, match="another process uses"):
        put(tmp_path / "lab.tar", at(place, tmp_path / "new"))


def test_the_manifest_describes_the_content_of_the_archive(place, tmp_path):
    done = over(place, tmp_path / "lab.tar")
    with opened(tmp_path / "lab.tar") as reader:
        assert reader.manifest == done.manifest and reader.digest == done.digest
    assert done.manifest.federation == FEDERATION and done.manifest.run == place.run
    assert json.loads(done.manifest.encode())["format"] == 1
    assert sqlite3.sqlite_version  # The databases were copied by VACUUM INTO.
