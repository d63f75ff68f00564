"""Answers of a few blocks stay in memory until they are whole, then go to the log, or to files if memory is full."""

import numpy as np
import pytest

from protofleet.coordinator.spool.answer_log import AnswerLog, DeviceAnswers
from protofleet.coordinator.spool.small_answers import SMALL, Memory
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.wire.arrays import encode, parts
from protofleet.protocol.wire.blocks import length_of, manifest_of
from protofleet.protocol.wire.reasons import Reason, Rejected
from tests.support.noted_disk import NotedDisk

BLOCK = 1024


def body_of(floats, seed=0):
    arrays = {"weights": np.random.default_rng(seed).random(floats, np.float32)}
    return b"".join(bytes(piece) for piece in encode(arrays)), parts(arrays)


BODY, PARTS = body_of(2000)
MANIFEST = manifest_of([BODY], PARTS, BLOCK)


def store_of(folder, device="a", memory=None, disk=None):
    disk = disk or Disk(durable=False)
    return DeviceAnswers(
        device, folder / "updates" / device, AnswerLog(folder / "answers", disk, (), memory), disk
    )


def fill(partial, indices, body=BODY):
    manifest = partial.manifest
    for i in indices:
        start = i * manifest.block
        partial.write(i, memoryview(body)[start : start + length_of(manifest, i)])


def here(partial):
    return [i for i, is_here in enumerate(partial.have) if is_here]


def files(folder):
    return [path for path in (folder / "updates").rglob("*") if path.is_file()]


def test_an_answer_in_a_few_blocks_becomes_durable_with_the_others_of_the_turn(tmp_path):
    disk = NotedDisk()
    store = store_of(tmp_path, disk=disk)
    partial = store.begin(MANIFEST)
    fill(partial, reversed(range(len(MANIFEST.hashes))))
    assert partial.complete and not disk.taken
    partial.finish()
    assert ("sync", "00000001.log") not in disk.taken and not files(tmp_path)
    assert store.read(MANIFEST.object, 0, len(BODY)) == BODY
    assert np.array_equal(store.open(MANIFEST.object)["weights"], np.frombuffer(BODY[-8000:], np.float32))


def test_received_blocks_are_not_requested_again_when_the_answer_is_offered_again(tmp_path):
    store = store_of(tmp_path)
    fill(first := store.begin(MANIFEST), [0, 3])
    first.abandon(forget=False)
    again = store.begin(MANIFEST)
    assert here(again) == [0, 3]
    fill(again, [i for i in range(len(MANIFEST.hashes)) if i not in (0, 3)])
    again.finish()
    assert store.read(MANIFEST.object, 0, len(BODY)) == BODY


@pytest.mark.parametrize("how", ["abandoned", "forgotten", "another is offered", "broken", "whole"])
def test_memory_is_free_again_after_each_end_of_an_answer(tmp_path, how):
    memory = Memory(len(BODY))
    store = store_of(tmp_path, memory=memory)
    liar = manifest_of([BODY], (("weights", len(BODY)),), BLOCK)
    fill(partial := store.begin(liar if how == "broken" else MANIFEST), [0])
    match how:
        case "abandoned":
            partial.abandon(forget=True)
        case "forgotten":
            store.forget_unfinished()
        case "another is offered":
            store.begin(manifest_of([body_of(1000)[0]], PARTS, BLOCK))
        case "broken":
            fill(partial, range(len(MANIFEST.hashes)))
            with pytest.raises(Rejected) as fault:
                partial.finish()
            assert fault.value.reason is Reason.BAD_BODY and not store.has(liar.object)
        case "whole":
            fill(partial, range(len(MANIFEST.hashes)))
            partial.finish()
    assert memory.take(len(BODY)) is not None


def test_answers_are_collected_in_files_if_the_memory_is_full(tmp_path):
    store = store_of(tmp_path, memory=Memory(len(BODY) - 1))
    first = store.begin(MANIFEST)
    assert not files(tmp_path), "an offer takes no memory and no file"
    fill(first, [0, 1])
    (path,) = files(tmp_path)
    assert path.suffix == ".part"
    first.abandon(forget=False)
    again = store.begin(MANIFEST)
    assert here(again) == [0, 1]
    fill(again, range(2, len(MANIFEST.hashes)))
    again.finish()
    assert store.read(MANIFEST.object, 0, len(BODY)) == BODY
    assert [path.suffix for path in files(tmp_path)] == [".body"]


def test_offers_take_no_memory_before_their_blocks_arrive(tmp_path):
    memory = Memory(len(BODY))
    for i in range(100):
        store_of(tmp_path, f"device-{i}", memory).begin(MANIFEST)
    assert memory.take(len(BODY)) is not None


def test_blocks_that_an_earlier_process_has_stored_in_a_file_are_used_again(tmp_path):
    fill(ObjectStore(tmp_path / "updates" / "a", disk=Disk(durable=False)).begin(MANIFEST), [2, 4])
    partial = store_of(tmp_path).begin(MANIFEST)
    assert here(partial) == [2, 4]


def test_the_files_of_an_earlier_answer_are_deleted_when_another_answer_is_offered(tmp_path):
    body, its_parts = body_of(2000, seed=1)
    other = manifest_of([body], its_parts, BLOCK)
    fill(ObjectStore(tmp_path / "updates" / "a", disk=Disk(durable=False)).begin(other), [2, 4], body)
    store_of(tmp_path).begin(MANIFEST)
    assert not files(tmp_path)


def test_a_large_answer_is_in_a_file_from_its_offer_on(tmp_path):
    body, its_parts = body_of(SMALL // 4)
    store = store_of(tmp_path)
    fill(store.begin(MANIFEST), [0])
    store.begin(manifest_of([body], its_parts, 1 << 16))
    assert [path.suffix for path in files(tmp_path)] == [".part"]
    assert not here(store.begin(MANIFEST)) and not files(tmp_path)
