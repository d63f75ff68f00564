"""What tests of the wire share."""

import tracemalloc

import pytest

from protofleet.protocol.storage.store import ObjectStore
from tests.protocol.objects import ARRAYS, BLOCK


@pytest.fixture
def little_memory():
    """The test may take 4 MiB at its peak: what lies about its size must not be believed."""
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
