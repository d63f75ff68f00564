"""Tests that blocks that arrive before the table of their object are counted once, when the table arrives."""

import itertools
from collections import Counter

import numpy as np
import pytest

from protofleet.protocol.link.block_count import BlockCount
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.wire.arrays import KINDS
from protofleet.protocol.wire.blocks import length_of
from protofleet.protocol.wire.kinds import declared_kinds

NAMES = [f"logits.{'x' * 150}{i}" for i in range(10)]  # The table of these names alone takes two blocks.
ARRAYS = {
    **{name: np.ones(20, np.float32) for name in NAMES},
    "weights.w": np.ones(300, np.float32),
    "unknown": np.ones(7, np.float32),
}
EXPECTED = {"logits": 10 * 80, "weights": 1200}
DECLARED = declared_kinds(["weights", "logits"])


@pytest.fixture
def sent(tmp_path):
    store = ObjectStore(tmp_path / "sent", durable=False)
    return store, store.put(ARRAYS, 1024)


def count_of(tmp_path, sent, order):
    """Return (spans counted while blocks arrive in this order, spans counted at the end)."""
    store, manifest = sent
    partial = ObjectStore(tmp_path / "got", durable=False).begin(manifest)
    count, spans = BlockCount(partial, DECLARED), []
    for index in order:
        fresh = partial.write(index, memoryview(store.read_block(manifest, index)))
        start = index * manifest.block
        spans += count.came(start, start + length_of(manifest, index), fresh)
    return spans, count.end()


def total(spans):
    found = Counter()
    for span in spans:
        found.update({kind: n for kind, n in span.tensors.items() if kind != "control" and span.fresh})
    return dict(found)


def test_each_byte_is_counted_once_under_its_declared_kind_in_any_order(tmp_path, sent):
    _, manifest = sent
    number = len(manifest.hashes)
    assert number == 4
    for i, order in enumerate(itertools.permutations(range(number))):
        spans, rest = count_of(tmp_path / str(i), sent, order)
        assert total(spans) == EXPECTED and not rest
        assert sum(span.size for span in spans) == manifest.size


def test_a_block_that_arrives_twice_is_counted_as_new_once(tmp_path, sent):
    spans, _ = count_of(tmp_path, sent, [3, 3, 0, 1, 2, 2])
    assert total(spans) == EXPECTED and [span.fresh for span in spans].count(False) == 2


def test_an_object_without_its_table_is_counted_by_its_manifest(tmp_path, sent):
    """The manifest knows only the eight kinds; all other bytes count as control, and no byte is lost."""
    _, manifest = sent
    spans, rest = count_of(tmp_path, sent, [1, 2, 3])
    assert not spans and "logits" not in KINDS
    assert sum(span.size for span in rest) == manifest.size - manifest.block
    assert total(rest) == {"weights": 1200}
