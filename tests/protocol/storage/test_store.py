"""Tests of objects on disk: they are complete or absent, and a fetch continues after the death of its process."""

import hashlib
import os
from dataclasses import replace

import numpy as np
import pytest

from protofleet.protocol.storage.store import SMALL, DamagedError, ObjectStore
from protofleet.protocol.wire.arrays import parts
from protofleet.protocol.wire.reasons import Reason
from tests.protocol.ends import weights
from tests.protocol.objects import ARRAYS, BLOCK, BODY, block, fault_of, fill
from tests.support.open_files import open_files


def test_an_object_is_named_by_its_hash_and_is_read_in_full_or_in_part(source, manifest):
    assert manifest.object == hashlib.sha256(BODY).digest()
    assert (manifest.size, manifest.block, manifest.parts) == (len(BODY), BLOCK, parts(ARRAYS))
    assert source.has(manifest.object) and source.names() == [manifest.object]
    np.testing.assert_array_equal(source.open(manifest.object)["weights.w"], ARRAYS["weights.w"])
    assert bytes(source.read(manifest.object, 10, 20)) == BODY[10:20]
    assert source.read(manifest.object, 7, 7) == b""


@pytest.mark.parametrize("durable", [True, False])
def test_a_complete_body_gives_the_same_object_as_its_arrays(tmp_path, durable):
    store = ObjectStore(tmp_path, durable)
    assert store.put_bytes(BODY) == store.put(ARRAYS).object
    assert [p.name for p in tmp_path.iterdir()] == [f"{hashlib.sha256(BODY).hexdigest()}.body"]


def test_a_stored_object_is_not_written_again(source, manifest):
    path = source.folder / f"{manifest.object.hex()}.body"
    written = path.stat()
    assert source.put_once(ARRAYS, BLOCK) == manifest
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    assert source.manifest(manifest.object, BLOCK) == manifest


def test_an_object_of_another_store_is_linked_and_survives_its_removal_there(source, store, manifest):
    assert store.put_once(ARRAYS, BLOCK, source) == manifest
    body = store.folder / f"{manifest.object.hex()}.body"
    assert body.stat().st_nlink == 2 and [p.name for p in store.folder.iterdir()] == [body.name]
    source.drop(manifest.object)
    assert store.has(manifest.object) and body.read_bytes() == BODY


def test_a_damaged_object_of_another_store_is_not_linked_but_written(source, store, manifest):
    path = source.folder / f"{manifest.object.hex()}.body"
    path.write_bytes(BODY[:-1] + b"?")
    assert store.put_once(ARRAYS, BLOCK, ObjectStore(source.folder)) == manifest
    assert (store.folder / path.name).read_bytes() == BODY and not path.exists()


def test_an_object_that_no_store_has_is_written(store):
    arrays = {"weights.w": np.arange(5, dtype=np.float32)}
    made = store.put_once(arrays, BLOCK, ObjectStore(store.folder / "other"))
    np.testing.assert_array_equal(store.open(made.object)["weights.w"], arrays["weights.w"])


def test_a_manifest_can_be_computed_again_from_the_stored_bytes(source, manifest):
    reopened = ObjectStore(source.folder)
    assert reopened.manifest(manifest.object, BLOCK) == source.manifest(manifest.object, BLOCK) == manifest
    assert source.manifest(manifest.object, 1 << 16) == reopened.manifest(manifest.object, 1 << 16)
    assert len(source.manifest(manifest.object, 1 << 16).hashes) == 2


def test_an_object_that_ends_too_early_is_rejected_when_it_is_read(source, manifest):
    with (source.folder / f"{manifest.object.hex()}.body").open("r+b") as file:
        file.truncate(100)
    assert fault_of(lambda: source.read(manifest.object, 50, 101)) is Reason.BAD_BODY
    assert fault_of(lambda: source.open(manifest.object)) is Reason.BAD_BODY


@pytest.mark.parametrize(
    "order", [[7, 0, 3, 3, 1, 2, 6, 5], [0, 1, 2, 2, 3, 5, 6, 7], [7, 6, 6, 5, 3, 2, 1, 0]]
)
def test_blocks_in_any_order_complete_an_object(store, manifest, order):
    partial = store.begin(manifest)
    twice = [order.index(i) < at for at, i in enumerate(order)]
    assert fill(partial, order) == [not again for again in twice]
    assert not partial.complete and not store.has(manifest.object)
    fill(partial, [4])
    assert partial.complete
    partial.finish()
    assert bytes(store.read(manifest.object, 0, len(BODY))) == BODY
    assert [p.suffix for p in store.folder.iterdir()] == [".body"]


def test_blocks_of_an_earlier_fetch_are_included_in_the_hash(store, manifest):
    first = store.begin(manifest)
    fill(first, [0, 1, 2])
    first.abandon(forget=False)
    for opened in (store, ObjectStore(store.folder)):  # In the same process, and in the next process.
        partial = opened.begin(manifest)
        fill(partial, [3])
        partial.abandon(forget=False)
    fill(partial := store.begin(manifest), range(4, 8))
    partial.finish()
    assert bytes(store.read(manifest.object, 0, len(BODY))) == BODY


def test_an_object_that_changed_on_the_disk_during_its_fetch_is_rejected(store, manifest):
    first = store.begin(manifest)
    fill(first, range(4))
    first.abandon(forget=False)
    fill(partial := store.begin(manifest), range(4, 8))
    with store.part_of(manifest).open("r+b") as file:
        file.write(b"\xff" * 8)
    assert fault_of(partial.finish) is Reason.BAD_BODY


def test_the_file_of_an_object_is_closed_when_the_object_is_removed(source, manifest):
    assert source.read_block(manifest, 1) == bytes(block(manifest, 1))
    assert len(open_files(source.folder)) == 1
    source.drop(manifest.object)
    assert not open_files(source.folder)


def test_the_file_of_an_object_is_closed_after_its_last_block(source, manifest):
    assert b"".join(source.read_block(manifest, i) for i in range(8)) == BODY
    assert not open_files(source.folder)


def test_a_wrong_block_is_rejected_and_changes_nothing(store, manifest):
    partial, good = store.begin(manifest), bytes(block(manifest, 0))
    for index, data in [
        (0, good[:-1]),
        (0, good + b"x"),
        (0, b"x" + good[1:]),
        (1, good),
        (7, good),
        (8, good),
        (2**32 - 1, good),
    ]:
        assert fault_of(lambda: partial.write(index, memoryview(data))) is Reason.BAD_BLOCK
    assert not any(partial.have)


@pytest.mark.parametrize("other", ["completes the object", "removes the file"])
def test_an_object_is_completed_although_another_process_took_its_file(store, source, manifest, other):
    """Two coordinators use one folder for a moment, when the second one takes the run over."""
    partial = store.begin(manifest)
    for index in range(len(manifest.hashes)):
        partial.write(index, memoryview(source.read_block(manifest, index)))
    if other == "removes the file":
        store.part_of(manifest).unlink()
    else:
        again = ObjectStore(store.folder).begin(manifest)
        assert again.complete
        again.finish()
    partial.finish()
    assert store.has(manifest.object)
    assert not list(store.folder.glob("*.part"))


def test_a_transfer_continues_after_the_death_of_its_process(store, manifest):
    fill(store.begin(manifest), [0, 2, 7])
    again = ObjectStore(store.folder, durable=False).begin(manifest)
    assert [i for i, here in enumerate(again.have) if here] == [0, 2, 7]
    fill(again, [1, 3, 4, 5, 6])
    again.finish()
    assert store.has(manifest.object)


def test_a_damaged_block_of_an_unfinished_transfer_is_fetched_again(store, manifest):
    fill(store.begin(manifest), [0, 2, 7])
    with (store.folder / f"{manifest.object.hex()}.part").open("r+b") as file:
        file.seek(2 * BLOCK + 5)
        file.write(b"rot")
    again = ObjectStore(store.folder, durable=False).begin(manifest)
    assert [i for i, here in enumerate(again.have) if here] == [0, 7]


def test_blocks_of_an_earlier_transfer_with_another_block_size_are_used(source, store, manifest):
    fill(store.begin(manifest), [0, 1, 2])
    larger = source.manifest(manifest.object, 2 * BLOCK)
    assert list(ObjectStore(store.folder, durable=False).begin(larger).have) == [1, 0, 0, 0]


def test_an_unfinished_file_of_another_size_is_not_used(store, manifest):
    (store.folder / f"{manifest.object.hex()}.part").write_bytes(BODY + b"more")
    partial = store.begin(manifest)
    assert not any(partial.have)
    fill(partial, range(8))
    partial.finish()
    assert bytes(store.read(manifest.object, 0, len(BODY))) == BODY


def test_blocks_that_give_another_hash_than_the_manifest_are_removed(store, manifest):
    liar = replace(manifest, object=b"x" * 32)
    partial = store.begin(liar)
    fill(partial, range(8))
    assert fault_of(partial.finish) is Reason.BAD_BODY
    assert not list(store.folder.iterdir())


def test_a_store_keeps_only_one_unfinished_object(store, manifest):
    fill(store.begin(replace(manifest, object=b"x" * 32)), [0])
    store.begin(manifest)
    assert [p.stem for p in store.folder.glob("*.part")] == [manifest.object.hex()]


def test_an_abandoned_transfer_keeps_or_removes_its_blocks_and_closes_its_file(store, manifest):
    for forget in (False, True):
        partial = store.begin(manifest)
        fill(partial, [0])
        partial.abandon(forget)
        assert bool(list(store.folder.glob("*.part"))) == (not forget)
    assert not open_files(store.folder)


def test_an_unreferenced_transfer_keeps_no_file_open(store, manifest):
    fill(store.begin(manifest), [0])
    assert not open_files(store.folder)


def test_keep_removes_other_objects_and_sweep_removes_unfinished_files(store, manifest):
    names = [store.put(weights(10, seed)).object for seed in range(3)]
    store.begin(manifest)
    (store.folder / "new-1-2").touch()
    store.keep({names[0], names[2]})
    assert set(store.names()) == {names[0], names[2]}
    store.sweep()
    assert len(list(store.folder.glob("*.part"))) == 1, "this process is at work on it"
    ObjectStore(store.folder).sweep()
    store.drop(names[2])
    store.drop(names[2])
    assert [p.suffix for p in store.folder.iterdir()] == [".body"] and store.names() == [names[0]]


def test_keep_removes_unfinished_files_of_dead_processes_and_not_its_own(store):
    """In a container every process has the same id, so the id cannot tell processes apart."""
    dead = store.folder / f"new-{os.getpid()}-140398444050560"
    dead.write_bytes(b"half")
    ours = []

    class Slow(dict):
        def __getitem__(self, key):
            ours.extend(p for p in store.folder.glob("new-*") if p != dead)
            store.keep(set())  # This runs on the owner's thread while the worker writes.
            return super().__getitem__(key)

    name = store.put(Slow(weights((SMALL >> 2) + 1, 1))).object
    assert ours and not dead.exists() and store.names() == [name]


def test_blocks_that_this_process_wrote_are_not_read_again_at_a_later_offer(store, manifest, monkeypatch):
    fill(store.begin(manifest), [0, 2])
    monkeypatch.setattr(
        "protofleet.protocol.storage.store.short_hash", lambda data: pytest.fail("it was read again")
    )
    assert [i for i, here in enumerate(store.begin(manifest).have) if here] == [0, 2]
    other = replace(manifest, block=2 * BLOCK, hashes=manifest.hashes[:4])
    assert not any(store.begin(other).have), "its file is still the first one's, cut otherwise"
    assert not any(store.begin(manifest).have)


def test_a_manifest_with_wrong_parts_is_refused_when_the_body_is_complete(store, manifest):
    (table, size), (_, rest) = manifest.parts
    for parts_ in (
        ((table, size + 4), ("weights", rest - 4)),
        ((table, size), ("prototypes", rest)),
        (("weights", size + rest),),
    ):
        partial = store.begin(replace(manifest, parts=parts_))
        fill(partial, range(8))
        assert fault_of(partial.finish) is Reason.BAD_BODY
        assert not list(store.folder.iterdir())


def test_parts_of_a_manifest_may_be_finer_than_the_body_or_empty(store, manifest):
    (table, size), (kind, rest) = manifest.parts
    finer = ((table, 4), (table, size - 4), ("counts", 0), (kind, 8), (kind, rest - 8))
    partial = store.begin(replace(manifest, parts=finer))
    fill(partial, range(8))
    partial.finish()
    assert store.has(manifest.object)


def test_an_object_of_one_block_is_never_stored_in_part(tmp_path, source, manifest):
    """No file waits for further blocks, and a block of another object leaves no file."""
    whole = source.manifest(manifest.object, block=len(BODY))
    store = ObjectStore(tmp_path / "other")
    arriving = store.begin(whole)
    assert fault_of(lambda: arriving.write(0, memoryview(bytes(len(BODY))))) is Reason.BAD_BLOCK
    assert list(store.folder.iterdir()) == [] and not arriving.complete
    assert arriving.write(0, memoryview(BODY)) and arriving.bytes_here == len(BODY)
    assert list(store.folder.iterdir()) == []
    arriving.finish()
    assert arriving.complete and [p.suffix for p in store.folder.iterdir()] == [".body"]
    assert store.has(manifest.object) and store.read(manifest.object, 0, len(BODY)) == BODY


def test_an_object_of_one_block_removes_an_unfinished_object(tmp_path, source, manifest):
    store = ObjectStore(tmp_path / "other")
    fill(store.begin(manifest), [0])
    other = source.put(weights(10, 5))
    store.begin(other).abandon()
    assert list(store.folder.iterdir()) == []


@pytest.mark.parametrize("size", [100, (SMALL >> 2) + 1])
def test_loaded_arrays_are_equal_to_opened_arrays_and_are_writeable(store, size):
    name = store.put(weights(size)).object
    opened, loaded = store.open(name), store.load(name)
    np.testing.assert_array_equal(opened["weights.w"], loaded["weights.w"])
    assert loaded["weights.w"].flags.writeable and list(loaded) == ["weights.w"]
    store.drop(name)
    with pytest.raises(DamagedError, match="is gone or damaged"):
        store.load(name)
