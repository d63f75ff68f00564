"""Tests that old messages can still be decoded, and are still encoded to the same bytes."""

import pytest

from protofleet.protocol.security.envelope import MINOR
from protofleet.protocol.wire import arrays, codec
from protofleet.protocol.wire.blocks import is_block, unpack
from protofleet.protocol.wire.messages import Task, Update
from protofleet.protocol.wire.reasons import Rejected
from tests.protocol.golden.cases import CASES
from tests.protocol.golden.vectors import (
    SECRETS,
    Block,
    Body,
    Envelope,
    Later,
    Refused,
    Sealing,
    case_of,
    load,
    plain,
    ring,
)

BOOK = load()
VECTORS = [pytest.param(case_of(v), bytes.fromhex(v["hex"]), id=v["name"]) for v in BOOK["vectors"]]


def understand(data):
    """Decode data as the kind that its first bytes name."""
    if is_block(data):
        return unpack(data)
    if data[:3] == b"PF\x01":
        return Envelope.decode(data, None)
    return Body.decode(data, None)


@pytest.mark.parametrize(("case", "data"), VECTORS)
def test_every_vector_is_decoded_or_refused_as_expected(case, data):
    if isinstance(case, Refused):
        with pytest.raises(Rejected) as fault:
            understand(data)
        assert fault.value.reason.value == case.reason
    else:
        assert type(case).decode(data, case) == case


@pytest.mark.parametrize(("case", "data"), VECTORS)
def test_every_vector_is_encoded_to_the_same_bytes(case, data):
    # A later minor version of ours may send more than the vectors of an earlier one have.
    if not isinstance(case, Envelope) or (case.header.minor == MINOR and not case.frame):
        assert case.encode() == data


def test_each_case_has_a_vector_and_each_vector_has_a_case():
    assert {v["name"]: v["content"] for v in BOOK["vectors"]} == {n: plain(c) for n, c in CASES.items()}
    assert len(BOOK["vectors"]) == len(CASES)
    public = {n: (ring()[n].sign.hex(), ring()[n].receive.hex()) for n in SECRETS}
    assert BOOK["keys"] == {
        n: {"private": SECRETS[n].hex(), "public": public[n][0], "receive": public[n][1]} for n in SECRETS
    }


def test_every_kind_of_message_and_every_type_of_number_has_a_vector():
    cases = [case_of(v) for v in BOOK["vectors"]]
    assert {c.header.kind for c in cases if isinstance(c, Envelope)} == set(codec.DECODERS)
    assert {a.dtype for c in cases if isinstance(c, Body) for a in c.arrays} == set(arrays.DTYPES)
    assert {type(c) for c in cases} == {Body, Block, Envelope, Sealing, Later, Refused}


def test_the_vectors_of_one_exchange_are_consistent():
    cases = {v["name"]: case_of(v) for v in BOOK["vectors"]}
    task, inline, offered = cases["task"].message, cases["update, inline"], cases["update, offered"]
    blocks = [cases["block 0"], cases["block 1"]]
    assert isinstance(task, Task) and task.broadcast is not None
    assert b"".join(b.data for b in blocks) == cases["body of the broadcast"].encode()
    assert all(b.object == task.broadcast.object for b in blocks)
    assert inline.attachment == cases["body of the answer"].encode()
    assert isinstance(inline.message, Update) and inline.message == offered.message
    assert inline.message.base == task.broadcast.object
    sealed, hidden = cases["task, sealed"].message, [cases["sealed block 0"], cases["sealed block 1"]]
    assert isinstance(sealed, Task) and sealed.broadcast is not None and sealed.broadcast.key
    assert [b.data for b in hidden] == [b.data for b in blocks]
    assert all(b.manifest.wire_name == sealed.broadcast.wire_name for b in hidden)


def test_the_envelope_with_a_known_ephemeral_key_contains_the_stored_seal():
    """With this vector, a client in another language can check each step of its own seal."""
    cases = {v["name"]: case_of(v) for v in BOOK["vectors"]}
    envelope, seal = cases["hello, sealed with a known ephemeral key"], cases["the seal of that hello"]
    label = b"protofleet/1 sealed\0"
    assert isinstance(seal, Sealing) and seal.info.startswith(label)
    frame, (opened,) = (
        envelope.encode(),
        [v for v in BOOK["vectors"] if v["name"] == "the seal of that hello"],
    )
    assert not envelope.frame and frame[:-64] == seal.info[len(label) :] + bytes.fromhex(opened["hex"])
    assert opened["content"]["receive"]["hex"] == BOOK["keys"][seal.recipient]["receive"]
