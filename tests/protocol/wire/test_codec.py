"""Tests that each message crosses the wire unchanged, and that no other input does harm."""

from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofleet.protocol.wire import codec
from protofleet.protocol.wire.codec import TaskId, decode, encode, task_id_of
from protofleet.protocol.wire.messages import (
    MOST_ARGS,
    MOST_NEWS,
    MOST_PERSONAL,
    BlockRequest,
    Bye,
    CommandOutcome,
    CommandRequest,
    Finished,
    Hello,
    Manifest,
    News,
    Probe,
    Receipt,
    Refusal,
    State,
    StepDown,
    Task,
    Update,
    Welcome,
)
from protofleet.protocol.wire.reasons import Reason, Rejected
from tests.protocol.draws import ATTACHMENTS, MESSAGES, VALUES, damaged

HASH = bytes(range(32))
MANIFEST = Manifest(HASH, 150, 100, (b"1" * 16, b"2" * 16), (("control", 50), ("weights", 100)))
ONE_OF_EACH = [
    Hello("a", 10, 500, "mnist", "v1", (1, 1), HASH, (3, 4), (HASH,)),
    Welcome(b"{}"),
    Task(3, "train", MANIFEST, 60.0),
    Update("a", 3, "train", 500, HASH, {}, {"loss": 0.5}),
    Receipt(3, "train", "accepted", "why"),
    Refusal("no", 7),
    State(True, "why"),
    Bye("enough"),
    Finished(9),
    Probe(),
    StepDown(7, "hall-2"),
    News(3, ("round 1 of 2", "why"), "finished"),
    CommandRequest(HASH[:16], "stop", b"{}"),
    CommandOutcome(HASH[:16], "done", "why", b"{}"),
    BlockRequest(HASH, ((0, 2), (5, 6)), True),
]
# Kind -> key -> (the types that msgpack may give, whether the key may be missing).
FIELDS = {
    "hello": {
        "classes": ({int}, False), "examples": ({int}, False), "protocol": ({list}, False),
        "domain": ({str}, True), "software": ({str}, True), "plan": ({bytes}, True),
        "counts": ({list}, True), "holds": ({bytes}, True),
    },
    "welcome": {"plan": ({bytes}, False)},
    "task": {"broadcast": ({list, type(None)}, False), "seconds": ({int, float}, False)},
    "update": {
        "examples": ({int}, False), "metrics": ({dict}, False), "arrays": ({list, bytes, type(None)}, False)
    },
    "receipt": {"verdict": ({str}, False), "reason": ({str}, False)},
    "refusal": {"reason": ({str}, False), "boot": ({int}, True)},
    "state": {"online": ({bool}, False), "reason": ({str}, True)},
    "bye": {"reason": ({str}, False)},
    "finished": {},
    "command": {"id": ({bytes}, False), "verb": ({str}, False), "args": ({bytes}, False)},
    "result": {
        "id": ({bytes}, False), "verdict": ({str}, False), "words": ({str}, False), "data": ({bytes}, False)
    },
    "probe": {},
    "step_down": {"epoch": ({int}, False), "by": ({str}, False)},
    "news": {"from": ({int}, False), "lines": ({list}, False), "over": ({str}, False)},
    "want": {"object": ({bytes}, False), "ranges": ({list}, False), "again": ({bool}, True)},
}  # fmt: skip
# The keys that minor versions 1 and 2 have added; each of them may be missing.
LATER = {
    "hello": {
        "can": {list},
        "names": {list},
        "names_hash": {bytes},
        "capacity": {int},
        "working": {str},
        "answered": {int},
        "last_state": {bytes},
    },
    "welcome": {"about": {dict}, "instead": {str}, "keep": {str}},
    "task": {
        "wants": {list},
        "follows": {list, type(None)},
        "manifest": {list, type(None)},
        "credit": {int},
        "took": {list},
        "delta": {dict},
        "personal": {bytes},
    },
    "update": {"numbers": {dict}, "follows": {list, type(None)}, "manifest": {list, type(None)}},
    "want": {"more": {list}},
    "refusal": {"answers": {list}},
    "state": {"who": {str}, "now": {dict}, "runs": {list}},
}
STRANGE = [None, True, -1, 1 << 63, 0.5, "", "x", b"", b"x", [], [None], [[]], [-1], ["x"], {}, {"x": "x"}]


def kind(message):
    return codec.KINDS[type(message)]


def there_and_back(message, attachment=None):
    payload = encode(message, attachment)
    return decode(kind(message), payload, getattr(message, "device", "a"), task_id_of(message))


def refused(of_kind, payload):
    """Return why a payload is refused, or None if it is accepted; any error except Rejected is a bug of ours."""
    try:
        decode(of_kind, payload, "a", TaskId())
    except Rejected as fault:
        return fault.reason
    return None


def reason_for(message, **fields):
    """Return why a message is refused after some fields of its payload are changed."""
    sent = msgpack.unpackb(encode(message, MANIFEST if isinstance(message, Update) else None))
    return refused(kind(message), msgpack.packb({**sent, **fields}))


@given(MESSAGES, ATTACHMENTS)
def test_each_message_is_decoded_unchanged(message, attachment):
    attachment = attachment if isinstance(message, Update) else None
    assert there_and_back(message, attachment) == (message, attachment)


def test_the_examples_have_one_message_of_each_kind():
    assert {kind(m) for m in ONE_OF_EACH} == set(codec.DECODERS) == set(FIELDS)


@pytest.mark.parametrize("message", ONE_OF_EACH, ids=kind)
def test_a_field_of_a_later_minor_version_is_ignored(message):
    assert reason_for(message, later={"x": [1, None, b"y"]}) is None


@pytest.mark.parametrize("message", ONE_OF_EACH, ids=kind)
def test_a_field_of_a_wrong_type_or_a_missing_required_field_is_refused(message):
    sent = msgpack.unpackb(encode(message))
    assert set(sent) == set(FIELDS[kind(message)])
    for key, (types, may_miss) in FIELDS[kind(message)].items():
        for value in STRANGE:
            if type(value) not in types:
                assert reason_for(message, **{key: value}) is Reason.MALFORMED, (key, value)
        without = {k: v for k, v in sent.items() if k != key}
        assert refused(kind(message), msgpack.packb(without)) is (None if may_miss else Reason.MALFORMED), key


@pytest.mark.parametrize(
    ("kind_of_message", "key"), [(kind, key) for kind, keys in LATER.items() for key in keys]
)
def test_a_later_field_of_a_wrong_type_is_refused(kind_of_message, key):
    message = next(m for m in ONE_OF_EACH if kind(m) == kind_of_message)
    for value in STRANGE:
        if type(value) not in LATER[kind_of_message][key]:
            assert reason_for(message, **{key: value}) is Reason.MALFORMED, value


NAMES = [f"run-{i}" for i in range(8)]


@pytest.mark.parametrize(
    ("message", "good", "bad"),
    [
        (ONE_OF_EACH[0], {"capacity": 256}, {"capacity": 257}),
        (ONE_OF_EACH[0], {"answered": codec.MAX_ROUND}, {"answered": codec.MAX_ROUND + 1}),
        (ONE_OF_EACH[0], {"working": "x" * 64}, {"working": "x" * 65}),
        (ONE_OF_EACH[0], {"working": ""}, {"working": "a/b"}),
        (ONE_OF_EACH[0], {"last_state": bytes(512)}, {"last_state": bytes(513)}),
        (ONE_OF_EACH[-3], {"verb": "x" * 32}, {"verb": "x" * 33}),
        (ONE_OF_EACH[-3], {"args": bytes(MOST_ARGS)}, {"args": bytes(MOST_ARGS + 1)}),
        (ONE_OF_EACH[-3], {"id": bytes(16)}, {"id": bytes(17)}),
        (ONE_OF_EACH[-2], {"id": bytes(16)}, {"id": bytes(15)}),
        (StepDown(7, "x"), {"by": "é" * 64}, {"by": "é" * 65}),
        (StepDown(7, "x"), {"by": ""}, {"by": "a\nb"}),
        (ONE_OF_EACH[-4], {"lines": ["x"] * MOST_NEWS}, {"lines": ["x"] * (MOST_NEWS + 1)}),
        (ONE_OF_EACH[-4], {"lines": ["x" * 512]}, {"lines": ["x", 5]}),
        (ONE_OF_EACH[-4], {"from": 0}, {"from": -1}),
        (State(True), {"runs": NAMES}, {"runs": [*NAMES, "one-more"]}),
        (State(True), {"runs": []}, {"runs": [""]}),
        (State(True), {"runs": ["spring"]}, {"runs": ["../spring"]}),
    ],
)
def test_fields_about_runs_commands_and_news_have_limits(message, good, bad):
    assert reason_for(message, **good) is None and reason_for(message, **bad) is Reason.MALFORMED


@pytest.mark.parametrize("position", range(5))
def test_a_manifest_with_any_part_of_a_wrong_type_is_refused(position):
    good = codec.manifest_fields(MANIFEST)
    assert reason_for(ONE_OF_EACH[2], broadcast=good) is None
    for value in [
        *STRANGE,
        [["weights", "150"]],
        [[1, 150]],
        [b"ab"],
        ["ab"],
        [["weights"]],
        "x" * 32,
        [1] * 32,
    ]:
        bad = [*good[:position], value, *good[position + 1 :]]
        assert reason_for(ONE_OF_EACH[2], broadcast=bad) is Reason.MALFORMED, value
    for bad in (good[:-1], [*good, 1], []):
        assert reason_for(ONE_OF_EACH[2], broadcast=bad) is Reason.MALFORMED


@pytest.mark.parametrize(
    "change",
    [{"size": 0, "hashes": (), "parts": ()}, {"size": 200}, {"size": 201}, {"size": 100}, {"block": 0}, {"block": 74},
     {"hashes": (b"1" * 16, b"2" * 15)}, {"hashes": (b"1" * 16,)}, {"parts": (("weights", 149),)}, {"parts": ()},
     {"parts": (("weights", 5),) * 30 + (("x", 0),) * 3}, {"size": 2, "block": 0, "parts": (("weights", 2),)}],
)  # fmt: skip
def test_a_manifest_that_contradicts_itself_is_refused(change):
    broken = replace(MANIFEST, **change)
    assert reason_for(ONE_OF_EACH[2], broadcast=codec.manifest_fields(broken)) is Reason.MALFORMED


def blocks(n):
    return Manifest(HASH, n, 1, (b"1" * 16,) * n, (("weights", n),))


def pairs(n):
    return tuple((2 * i, 2 * i + 1) for i in range(n))


@pytest.mark.parametrize(
    ("most", "one_more"),
    [
        (Task(1, "x", blocks(codec.MAX_BLOCKS)), Task(1, "x", blocks(codec.MAX_BLOCKS + 1))),
        (BlockRequest(HASH, pairs(codec.MAX_RANGES)), BlockRequest(HASH, pairs(codec.MAX_RANGES + 1))),
        (BlockRequest(HASH, ((codec.MAX_BLOCKS - 1, codec.MAX_BLOCKS),)),
         BlockRequest(HASH, ((codec.MAX_BLOCKS, codec.MAX_BLOCKS + 1),))),
        (BlockRequest(HASH, ((0, codec.MAX_ASKED),)), BlockRequest(HASH, ((0, codec.MAX_ASKED + 1),))),
        (BlockRequest(HASH, ((0, 9), (90, 81 + codec.MAX_ASKED))),
         BlockRequest(HASH, ((0, 9), (90, 82 + codec.MAX_ASKED)))),
        (Task(1, "x", Manifest(HASH, 1, codec.MAX_BLOCK, (b"1" * 16,), (("counts", 1),))),
         Task(1, "x", Manifest(HASH, 1, codec.MAX_BLOCK + 1, (b"1" * 16,), (("counts", 1),)))),
        (Update("a", 1, "x", 1, metrics=dict.fromkeys(map(str, range(codec.MAX_METRICS)), 0.0)),
         Update("a", 1, "x", 1, metrics=dict.fromkeys(map(str, range(codec.MAX_METRICS + 1)), 0.0))),
        (Hello("a", 1, 1, "é" * (codec.MAX_TEXT // 2)), Hello("a", 1, 1, "é" * (codec.MAX_TEXT // 2) + "e")),
        (Hello("a", 1, 1, counts=(1,) * codec.MAX_COUNTS), Hello("a", 1, 1, counts=(1,) * (codec.MAX_COUNTS + 1))),
        (Hello("a", 1, 1, holds=(HASH,) * codec.MAX_HOLDS), Hello("a", 1, 1, holds=(HASH,) * (codec.MAX_HOLDS + 1))),
        (Hello("a", 2**63 - 1, 1), Hello("a", 2**63, 1)),
    ],
)  # fmt: skip
def test_a_value_at_its_limit_is_accepted_and_a_value_above_it_is_refused(most, one_more):
    assert there_and_back(most)[0] == most
    assert refused(kind(one_more), encode(one_more)) is Reason.MALFORMED


@pytest.mark.parametrize("kind_of_part", ["bytes", "", "weights.x", "x" * 500])
def test_a_part_of_an_unknown_kind_is_refused(kind_of_part):
    """Otherwise a device could create new counters of bytes."""
    broken = replace(MANIFEST, parts=((kind_of_part, 150),))
    assert reason_for(ONE_OF_EACH[2], broadcast=codec.manifest_fields(broken)) is Reason.MALFORMED


@pytest.mark.parametrize(
    "place", [TaskId(1 << 31), TaskId(1, "x" * 65), TaskId(1, "x", b"x"), TaskId(1, "x", b"x" * 33)]
)
def test_an_impossible_round_phase_or_base_is_refused(place):
    with pytest.raises(Rejected) as fault:
        decode("bye", encode(Bye("enough")), "a", place)
    assert fault.value.reason is Reason.MALFORMED


@pytest.mark.parametrize("ranges", [[3], [3, 3], [4, 3], [0, 2, 1, 3], [5, 6, 0, 1], [0, 9, 0, 9]])
def test_a_want_with_repeated_or_unsorted_blocks_is_refused(ranges):
    assert reason_for(ONE_OF_EACH[-1], ranges=ranges) is Reason.MALFORMED


@pytest.mark.parametrize("change", [{"holds": HASH[:31]}, {"holds": HASH + b"x"}, {"plan": HASH[:31]}])
def test_a_hash_of_another_length_is_refused(change):
    assert reason_for(ONE_OF_EACH[0], **change) is Reason.MALFORMED


@pytest.mark.parametrize("reason", ["x" * 600, "é" * 600, "\udcff", "a" * (codec.MAX_TEXT - 1) + "é"])
@pytest.mark.parametrize(
    "make", [Bye, Refusal, lambda r: State(False, r), lambda r: Receipt(1, "x", "refused", r)]
)
def test_a_long_or_invalid_reason_is_shortened_and_not_refused(make, reason):
    said = there_and_back(make(reason))[0].reason
    assert len(said.encode()) <= codec.MAX_TEXT
    assert reason.startswith(said) or said == "?"


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"numbers": {"0": 1.0}}, "update: numbers: '0' is not a whole number of 0 or more; the keys must be"),
     ({"numbers": {0: "low"}}, "update: numbers: 'low' is not a number; the keys must be indices in about.metrics"),
     ({"metrics": None}, "update: 'None' is no map")],
)  # fmt: skip
def test_the_error_for_a_malformed_update_uses_the_words_of_the_page(fields, words):
    sent = {"examples": 1, "metrics": {}, "arrays": b"", **fields}
    with pytest.raises(Rejected) as fault:
        decode("update", msgpack.packb(sent), "a", TaskId(1, "train"))
    assert words in str(fault.value) and "Error" not in str(fault.value)


@pytest.mark.parametrize("kind", sorted({*codec.DECODERS} - {"finished", "state", "probe"}))
def test_the_error_names_a_missing_key(kind):
    with pytest.raises(Rejected, match=rf"malformed: {kind}: the key '\w+' is missing"):
        decode(kind, b"\x80", "a", TaskId())


def test_a_payload_over_its_limit_is_refused_without_decoding():
    assert refused("welcome", b"\x81" + bytes(codec.MAX_PAYLOAD)) is Reason.TOO_LARGE
    assert there_and_back(Welcome(bytes(codec.MAX_PAYLOAD - 20)))


def test_an_unknown_kind_is_malformed():
    assert refused("x" * 1000, b"\x80") is Reason.MALFORMED


@pytest.mark.parametrize("name", sorted(codec.DECODERS))
@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"\x80\x80", b"\x90", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
     b"\x81\xa1x\xd6\xff\x00\x00\x00\x00", b"\x81\x01\x01", b"\x81\xa1\xff\x01", b"\x81\xa1x" * 2000, b"\x91" * 900],
)  # fmt: skip
def test_a_payload_of_a_known_attack_is_refused_with_little_memory(name, payload, little_memory):
    assert refused(name, payload) in (Reason.MALFORMED, Reason.TOO_LARGE)


@given(st.sampled_from(sorted(codec.DECODERS)), st.binary(max_size=200))
def test_random_bytes_cause_no_error_other_than_a_refusal(name, payload):
    refused(name, payload)


@given(
    st.sampled_from(ONE_OF_EACH).flatmap(lambda m: st.tuples(st.just(kind(m)), damaged(st.just(encode(m)))))
)
def test_damaged_messages_cause_no_error_other_than_a_refusal(case):
    refused(*case)


@given(st.sampled_from(ONE_OF_EACH), st.data())
def test_random_values_of_fields_cause_no_error_other_than_a_refusal(message, data):
    keys = data.draw(st.lists(st.sampled_from(sorted(FIELDS[kind(message)]) or ["x"]), max_size=2))
    reason_for(message, **{key: data.draw(VALUES) for key in keys})


def test_a_task_with_more_bytes_for_one_device_than_the_limit_is_refused():
    most = Task(2, "train.masked", None, 30.0, personal=bytes(MOST_PERSONAL))
    assert there_and_back(most)[0] == most
    with pytest.raises(Rejected, match="the limit is 65536"):
        there_and_back(replace(most, personal=bytes(MOST_PERSONAL + 1)))
