"""Tests of several objects in one want, in both directions.

Here the objects are a manifest, sent as an object, and the object that this manifest describes.
"""

import pytest

from protofleet.protocol.link.rate_limit import REPEAT_BURST, REPEAT_RATE
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.wire import codec
from protofleet.protocol.wire.codec import MAX_ASKED, TaskId
from protofleet.protocol.wire.messages import BlockRequest, IndirectManifest
from protofleet.protocol.wire.reasons import Reason, Rejected
from tests.protocol.ends import Ends, weights
from tests.protocol.objects import fault_of

LEAST = 5120
OBJECTS = bytes(32), bytes(range(32))


@pytest.fixture
def ends(tmp_path):
    """Return two ends whose broker accepts only the smallest packets; `blocks` records each block and its topic."""
    made = Ends(tmp_path, "ab")
    for link in made.parts.values():
        link.adapt(LEAST)
    publish, made.blocks = made.broker.publish, []

    def noted(topic, frame, retain):
        if frame[:3] == b"PF\x02":
            made.blocks.append((topic, frame[3:19], int.from_bytes(frame[19:23], "little")))
        publish(topic, frame, retain)

    made.broker.publish = noted
    return made


def served(ends, manifest):
    """Return the indices of the blocks of this object that were sent."""
    return [i for _, name, i in ends.blocks if name == manifest.wire_name[:16]]


def both(ends):
    """Offer device a a broadcast whose manifest fits no packet, without a task, so that only the test requests it."""
    store = ObjectStore(ends.folder / "broadcasts", durable=False)
    manifest = store.put(weights(30_000), ends.coordinator.block)
    boxed = ends.coordinator.tasks.offer(manifest, store, ["a"], set())
    assert isinstance(boxed, IndirectManifest)
    return boxed


def test_a_coordinator_serves_all_objects_of_a_want(ends):
    boxed = both(ends)
    ends.links["a"].send(
        BlockRequest(boxed.manifest.object, ((0, 1),), more=((boxed.object, ((0, 2), (5, 6))),))
    )
    ends.run(3)
    assert served(ends, boxed.manifest) == [0]
    assert sorted(i for _, name, i in ends.blocks if name != boxed.manifest.wire_name[:16]) == [0, 1, 5]


def test_a_device_serves_all_objects_of_a_want(ends):
    ends.links["a"].peer_forms = frozenset(["manifest"])
    whole = ends.update("a", weights(30_000))
    box = next(iter(ends.links["a"].served - {whole}))
    ends.blocks.clear()
    ends.coordinator.send("a", BlockRequest(whole, ((3, 5),), more=((box, ((0, 1),)),)))
    ends.run(0.5, lambda: len(ends.blocks) >= 3)
    assert {i for _, _, i in ends.blocks} == {0, 3, 4}
    assert {topic.rpartition("/")[2] for topic, _, _ in ends.blocks} == {"a"}


def test_repeated_blocks_are_limited_for_each_object_of_a_want_for_several(ends):
    boxed = both(ends)
    ends.links["a"].send(BlockRequest(boxed.object, ((0, 63),)))
    ends.run(1.0)
    ends.blocks.clear()
    for _ in range(12):
        ends.links["a"].send(
            BlockRequest(boxed.manifest.object, ((0, 1),), True, ((boxed.object, ((0, 63),)),))
        )
    ends.run(1.0)
    again = [i for _, name, i in ends.blocks if name != boxed.manifest.wire_name[:16]]
    assert REPEAT_BURST - 63 <= len(again) <= REPEAT_BURST + REPEAT_RATE < 12 * 63


@pytest.mark.parametrize("first", [1, 32, 63])
def test_a_want_for_several_objects_has_the_same_block_limit_as_for_one(first):
    one, other = OBJECTS
    most = BlockRequest(one, ((0, first),), more=((other, ((0, MAX_ASKED - first),)),))
    assert codec.decode("want", codec.encode(most), "a", TaskId())[0] == most
    more = BlockRequest(one, ((0, first),), more=((other, ((0, MAX_ASKED - first + 1),)),))
    assert fault_of(lambda: codec.decode("want", codec.encode(more), "a", TaskId())) is Reason.MALFORMED


def test_unknown_objects_of_a_want_are_ignored_and_the_others_are_served(ends):
    boxed = both(ends)
    ends.links["a"].send(BlockRequest(OBJECTS[0], ((0, 1),), more=((boxed.manifest.object, ((0, 1),)),)))
    ends.run(5, lambda: 0 in served(ends, boxed.manifest))
    assert 0 in served(ends, boxed.manifest) and not ends.rejected["coordinator"]


def test_a_device_outside_the_cohort_gets_no_object_of_a_want(ends):
    boxed = both(ends)
    ends.links["b"].send(BlockRequest(boxed.manifest.object, ((0, 1),), True, ((boxed.object, ((0, 1),)),)))
    ends.run(3)
    assert ends.blocks == []


def test_a_want_is_refused_if_the_ranges_of_one_object_do_not_ascend():
    wrong = BlockRequest(OBJECTS[0], ((0, 1),), more=((OBJECTS[1], ((3, 2),)),))
    with pytest.raises(Rejected):
        codec.decode("want", codec.encode(wrong), "a", TaskId())


@pytest.mark.parametrize("ranges", [(), ((0, 1),)])
def test_the_number_of_further_objects_in_a_want_is_limited(ranges):
    one, other = OBJECTS
    most = BlockRequest(one, (), more=((other, ranges),) * MAX_ASKED)
    assert codec.decode("want", codec.encode(most), "a", TaskId())[0] == most
    more = BlockRequest(one, (), more=((other, ranges),) * (MAX_ASKED + 1))
    assert fault_of(lambda: codec.decode("want", codec.encode(more), "a", TaskId())) is Reason.MALFORMED
