"""Tests of the conversions from torch to wire names and to NumPy, and of finding a method by its name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import numpy as np
import pytest
import torch

from protofleet.methods.contract import catalog as methods
from protofleet.methods.contract.base import Ask
from protofleet.methods.contract.bridge import LazyPayload, to_numpy, to_torch
from protofleet.methods.contract.received import WrongArraysError
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import load_weights, weight_wants, weights_of
from tests.methods.tiny import same, tiny

# Weights and wire names


def test_weights_are_the_same_after_conversion_to_numpy_and_back():
    one, other = tiny(1, norm=True), tiny(2, norm=True)
    load_weights(other, to_torch(to_numpy(weights_of(one))))
    assert same(weights_of(one), weights_of(other))


def test_a_payload_without_weights_changes_nothing_and_one_with_some_weights_is_refused():
    model = tiny()
    before = snapshot(weights_of(model))
    load_weights(model, {"anchors": torch.zeros(2)})
    assert same(before, weights_of(model))
    with pytest.raises(WrongArraysError, match="weights.features.0.bias is one of 5 missing arrays"):
        load_weights(model, {"weights.head.weight": model.head.weight})


def test_a_task_refuses_weights_with_a_negative_running_variance():
    model = tiny(norm=True)
    payload, wants = snapshot(weights_of(model)), weight_wants(model)
    assert wants.keys() == payload.keys()
    payload["weights.features.1.running_var"][0] = -1.0
    assert Ask("train", {}, wants).problem_with(payload).message == (
        "weights.features.1.running_var has -1, below 0"
    )
    assert all(
        want.low is None for name, want in wants.items() if "running_var" not in name and "num_" not in name
    )


# NumPy


def test_conversion_copies_arrays_and_leaves_read_only_bytes_unchanged():
    array = np.frombuffer(np.arange(4, dtype="<f4").tobytes(), dtype="<f4")
    to_torch({"w": array})["w"].zero_()
    LazyPayload({"w": array})["w"].zero_()
    assert array.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_shapes_and_types_are_the_same_after_conversion_to_numpy_and_back(dtype, shape):
    tensor = torch.ones(shape).to(getattr(torch, dtype))
    array = to_numpy({"w": tensor})["w"]
    assert array.shape == shape and array.dtype == np.dtype(dtype).newbyteorder("<")
    assert torch.equal(to_torch({"w": array})["w"], tensor)


def test_wire_arrays_are_contiguous_and_arrays_of_any_byte_order_can_be_read():
    assert to_numpy({"w": torch.ones(2, 3).T})["w"].flags.c_contiguous
    assert to_torch({"w": np.array([1.5, 2.0], dtype=">f4")})["w"].tolist() == [1.5, 2.0]


class Shelf(Mapping):
    """A mapping of arrays that records each name that is read."""

    def __init__(self, *names):
        self.names, self.reads = names, []

    def __getitem__(self, name):
        self.reads.append(name)
        return {known: np.zeros(2, dtype=np.float32) for known in self.names}[name]

    def __iter__(self):
        return iter(self.names)

    def __len__(self):
        return len(self.names)


def test_a_lazy_payload_reads_an_array_again_at_each_access():
    shelf = Shelf("a", "b")
    payload = LazyPayload(shelf)
    assert list(payload) == ["a", "b"] and len(payload) == 2 and "a" in payload and not shelf.reads
    assert payload["a"] is not payload["a"] and shelf.reads == ["a", "a"]
    assert payload.get("c") is None


# Names


def test_the_list_of_methods_contains_no_support_module():
    found = methods.names()
    assert {"fedavg", "fedlsa", "fedproto", "fedprox", "singleset"} <= set(found)
    assert not {"base", "bridge", "local", "maths", "nets", "plan", "wants", "weights"} & set(found)
    for name in found:
        method = methods.load(name)
        assert method.reports in method.VIEWS and inspect.isclass(method.Hyper)


def test_an_unknown_method_is_refused_with_the_names_of_the_known_methods():
    with pytest.raises(LookupError, match="no method 'fedfoo'; did you mean fedproto. there are .*fedavg"):
        methods.load("fedfoo")
    with pytest.raises(LookupError, match="no method 'base'; there are"):
        methods.load("base")
