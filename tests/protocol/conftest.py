"""What tests of the wire share."""

import tracemalloc

import pytest


@pytest.fixture
def little_memory():
    """The test may take 4 MiB at its peak: what lies about its size must not be believed."""
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20
