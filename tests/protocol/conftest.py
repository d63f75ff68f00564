"""Fixtures that tests of the protocol share."""

import tracemalloc

import pytest

from protofleet.protocol.storage.store import ObjectStore
from tests.protocol.objects import ARRAYS, BLOCK


@pytest.fixture
def little_memory():
    """Fail if the test needs 4 MiB or more at its peak, because input with a false size must not reserve memory."""
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


@pytest.fixture
def source(tmp_path):
    return ObjectStore(tmp_path / "source", durable=False)


@pytest.fixture
def store(tmp_path):
    return ObjectStore(tmp_path / "store", durable=False)


@pytest.fixture
def manifest(source):
    return source.put(ARRAYS, BLOCK)
