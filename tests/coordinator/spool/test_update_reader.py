"""The reader of updates: a small update is decoded once, and a large update each time that it is read."""

import numpy as np
import pytest

from protofleet.coordinator.spool import update_reader
from protofleet.coordinator.spool.spool import Accepted, Spool
from protofleet.coordinator.spool.update_reader import UpdateReader
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.coding.update import chance_of, encode_arrays
from protofleet.protocol.wire.messages import NOTHING

PLAN = Plan("fedproto", 3, 2).with_codec("small")
BASE = b""


@pytest.fixture
def spool(tmp_path):
    spool = Spool(tmp_path, durable=False)
    yield spool
    spool.close()


@pytest.fixture
def decoded(monkeypatch):
    """Return the list of updates that were decoded, one entry each time."""
    made, found = update_reader.DecodedArrays, []

    def counted(*given):
        found.append(made(*given))
        return found[-1]

    monkeypatch.setattr(update_reader, "DecodedArrays", counted)
    return found


def accepted(spool, rows, seed=0, base=BASE):
    """Put a coded update with this number of prototypes into the spool."""
    draw = np.random.default_rng(seed)
    arrays = {"prototypes": draw.random((rows, 64), np.float32), "labels": np.arange(rows)}
    reference = spool.broadcasts.open(base) if base else NOTHING
    coded = encode_arrays(arrays, PLAN.codec.up, reference, NOTHING, chance_of(0)).arrays
    return Accepted("a", base, spool.store("a").put(coded).object, 10, {})


def read(reader, answer):
    return {name: values.numpy().copy() for name, values in reader.accepted(answer).items()}


def test_a_small_update_is_decoded_once_and_each_reader_gets_its_own_arrays(spool, decoded):
    reader, answer = UpdateReader(spool, PLAN), accepted(spool, 3)
    first = reader.accepted(answer)["prototypes"]
    whole = first.clone()
    first.zero_()  # a method changes the first array of a mean in place
    assert np.array_equal(read(reader, answer)["prototypes"], whole.numpy())
    assert len(decoded) == 1


def test_a_large_update_is_not_kept(spool, decoded):
    reader, answer = UpdateReader(spool, PLAN), accepted(spool, 300)
    assert np.array_equal(read(reader, answer)["prototypes"], read(reader, answer)["prototypes"])
    assert len(decoded) == 2


def test_the_oldest_update_is_dropped_when_the_kept_updates_are_too_large(spool, decoded, monkeypatch):
    monkeypatch.setattr(update_reader, "MOST_KEPT", 2 * (3 * 64 * 4 + 3 * 8))
    reader, answers = UpdateReader(spool, PLAN), [accepted(spool, 3, seed) for seed in range(3)]
    for answer in (*answers, answers[2], answers[1], answers[0]):
        read(reader, answer)
    assert len(decoded) == 4


def test_updates_of_a_phase_read_their_broadcast_once(spool, monkeypatch):
    bases = [spool.broadcasts.put_once({"labels": np.arange(rows)}).object for rows in (3, 4)]
    answers = [accepted(spool, rows, seed, bases[rows - 3]) for rows in (3, 4) for seed in range(2)]
    load, loaded = spool.broadcasts.load, []
    monkeypatch.setattr(spool.broadcasts, "load", lambda name: loaded.append(name) or load(name))
    reader = UpdateReader(spool, PLAN)
    for answer in answers:  # The labels equal those of the broadcast, so only the broadcast has them.
        assert len(read(reader, answer)["labels"]) == 3 + bases.index(answer.base)
    assert loaded == bases
