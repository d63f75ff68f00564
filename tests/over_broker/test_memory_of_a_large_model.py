"""The peak memory of a device process, in sizes of its model.

The kernel counts it; the memory that torch itself takes is subtracted.
"""

from dataclasses import replace

import pytest

from benchmarks.harness.compare import once
from benchmarks.harness.trees import this_tree
from benchmarks.measures.catalog import LARGE_DEVICE

pytestmark = [pytest.mark.broker, pytest.mark.slow]
MODEL = {"megabytes": 60.0, "devices": 1, "rounds": 2}
# The share of this model that other things may take: code, data, and blocks on their way.
BESIDE = 0.6


@pytest.mark.parametrize(
    ("steps", "models"), [(1, 2), (3, 3)], ids=["one step", "momentum and the next gradient"]
)
def test_a_device_needs_memory_only_for_parameters_gradient_and_momentum(tmp_path, steps, models):
    measure = replace(LARGE_DEVICE, arguments=MODEL | {"steps": steps})
    found = once(measure, this_tree(tmp_path))
    assert found["device's peak over import torch, in models"] < models + BESIDE
