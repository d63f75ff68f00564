"""Tests of contributions: from the sum of all devices' vectors, a server half reaches the state of the plain mean."""

import numpy as np
import pytest
import torch

from protofleet.lab.contract.averages import mean_reply, next_ask
from protofleet.lab.contract.halves import Halves, answer_of
from protofleet.lab.contract.worlds import Subject
from protofleet.methods.contract import given
from protofleet.methods.contract.averages import Averaged
from protofleet.methods.contract.base import Reply
from protofleet.methods.contract.bridge import to_numpy, to_torch
from protofleet.methods.contract.contribution import (
    arrays_of_payload,
    arrays_of_wants,
    capped,
    layout_of,
    weight_of,
)
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.parts.state import snapshot
from tests.support.few_methods import FEW_STEPS

FRACTION = 2.0**20  # Steps of the whole numbers to which the vectors are rounded.
SETTINGS = [
    ("fedavg", {}),
    ("fedlsa", {}),
    ("fedproto", {}),
    ("fedproto", {"aggregation": "weighted"}),
    ("fedproto", {"average_models": True}),
    ("fedsa", {}),
    ("fedsa", {"aggregation": "unweighted"}),
    ("fednh", {}),
    ("fedpall", {}),
    ("fedhp", {}),
    ("fedhp", {"aggregation": "counts"}),
]
WEIGHTS = Averaged(("weights",))


def rounded_sum(vectors):
    return np.sum([np.rint(vector * FRACTION) for vector in vectors], axis=0) / FRACTION


def reply_of_sum(ask, replies, rule, classes, counts):
    """Return one reply that is made from the sum of the devices' vectors alone."""
    layout = layout_of(rule, arrays_of_wants(ask.wants), classes)
    most, broadcast = max(reply.examples for reply in replies), to_numpy(ask.payload)
    vectors = []
    for reply in replies:
        payload = to_numpy(reply.payload)
        assert layout_of(rule, arrays_of_payload(payload), classes) == layout
        held = counts[reply.device].numpy()
        vectors.append(layout.vector(payload, broadcast, reply.examples, most, held))
    examples = [reply.examples for reply in replies]
    found = layout.mean(rounded_sum(vectors), broadcast, examples, most, ask.wants)
    return Reply("sum", sum(examples), to_torch(found))


@pytest.mark.parametrize("method, hyper", SETTINGS)
def test_a_reply_made_from_the_sum_of_vectors_gives_the_same_state_as_the_mean(method, hyper):
    plan = Subject(method, hyper={**FEW_STEPS, **hyper}).plan()
    rules, halves, other = plan.variant.averaged, Halves(plan), Halves(plan)
    assert "train" in rules
    for number in (1, 2):
        halves.begin(number)
        other.begin(number)
        one, two = given.round_of(halves.server), given.round_of(other.server)
        ask = given.first_ask(halves.server, one)
        given.first_ask(other.server, two)
        while ask:
            sent = {name: answer_of(client, ask) for name, client in sorted(halves.clients.items())}
            replies = [Reply(n, len(halves.data[n].y), payload) for n, payload in sent.items()]
            rule = rules.get(ask.phase)
            mean = replies if rule is None else [mean_reply(replies, rule, halves.counts)]
            mine = (
                replies if rule is None else [reply_of_sum(ask, replies, rule, plan.classes, halves.counts)]
            )
            if rule is not None:
                check_payload(mean[0].payload, mine[0].payload)
            ask = next_ask(halves, one, mean)
            next_ask(other, two, mine)
        check_payload(snapshot(halves.server.state()), snapshot(other.server.state()), 1e-3)
        other.server.restore(snapshot(halves.server.state()))


def check_payload(expected, found, tolerance=1e-5):
    assert set(expected) == set(found)
    for name, value in expected.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        if value.is_floating_point() or name in ("labels", "counts"):
            torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance)


def test_a_device_with_more_examples_than_the_maximum_counts_with_the_maximum():
    layout = layout_of(WEIGHTS, {"weights.a": ("float32", (2,))}, 3)
    before, after = {"weights.a": np.zeros(2, np.float32)}, {"weights.a": np.array([1, 2], np.float32)}
    assert layout.vector(after, before, 50, 10).tolist() == layout.vector(after, before, 10, 10).tolist()
    assert layout.vector(after, before, 5, 10).tolist() == [0.5, 1.0]
    assert weight_of(50, 10) == 1.0


def test_the_counts_of_a_device_add_up_to_at_most_the_maximum():
    assert capped(np.array([[6.0], [0.0], [2.0]]), 4).tolist() == [[3.0], [0.0], [1.0]]
    assert capped(np.array([[3.0], [1.0]]), 4).tolist() == [[3.0], [1.0]]
    assert capped(np.array([[99.0], [1.0]]), 4).tolist() == [[3.0], [1.0]]


def test_the_vector_has_zeros_for_an_absent_class_and_the_layout_knows_its_places():
    layout = layout_of(Averaged(rows="devices"), {"prototypes": ("float32", ("held", 2))}, 3)
    payload = {
        "prototypes": np.array([[5, 6]], np.float32),
        "labels": np.array([2]),
        "counts": np.array([9]),
    }
    vector = layout.vector(payload, {}, 9, 9)
    assert vector.reshape(3, 3).tolist() == [[0, 0, 0], [0, 0, 0], [5, 6, 1]]
    assert layout.present(payload).tolist() == [False, False, True]
    assert layout.places_of([0, 2]).tolist() == [0, 1, 2, 6, 7, 8]
    assert layout.length == 9


def test_several_rows_of_one_class_become_one_row():
    layout = layout_of(Averaged(rows="devices"), {"prototypes": ("float32", ("held", 1))}, 2)
    payload = {
        "prototypes": np.array([[2], [8]], np.float32),
        "labels": np.array([1, 1]),
        "counts": np.array([1, 2]),
    }
    assert layout.vector(payload, {}, 3, 3).reshape(2, 2).tolist() == [[0, 0], [6, 1]]


def test_a_mean_stays_within_the_bounds_of_its_array():
    layout = layout_of(WEIGHTS, {"weights.running_var": ("float32", (2,))}, 3)
    wants = {"weights.running_var": TensorSpec((2,), low=0)}
    broadcast = {"weights.running_var": np.array([0.25, 1.0], np.float32)}
    found = layout.mean(np.array([-0.26, 0.5]), broadcast, [4], 4, wants)
    assert found["weights.running_var"].tolist() == [0.0, 1.5]


def test_an_array_that_is_not_averaged_is_refused():
    with pytest.raises(ValueError, match="lacks is not averaged in this phase"):
        layout_of(WEIGHTS, {"weights.a": ("float32", (2,)), "lacks": ("bool", (1,))}, 3)


@pytest.mark.parametrize("payload, words", [
    ({"weights.a": np.zeros(3, np.float32)}, r"weights.a is \(3,\), not \(2,\)"),
    ({}, "no weights.a"),
])  # fmt: skip
def test_wrong_arrays_are_refused(payload, words):
    layout = layout_of(WEIGHTS, {"weights.a": ("float32", (2,))}, 3)
    with pytest.raises(ValueError, match=words):
        layout.vector(payload, {}, 1, 1)


TABLE = Averaged(rows="shares", table=True, least=2)


def test_a_row_of_a_table_is_weighted_by_the_share_of_its_samples():
    layout = layout_of(TABLE, {"prototypes": ("float32", (3, 1))}, 3)
    payload, counts = {"prototypes": np.array([[8], [4], [2]], np.float32)}, np.array([3, 1, 0])
    vector = layout.vector(payload, {}, 4, 4, counts)
    assert vector.reshape(3, 2).tolist() == [[6, 0.75], [1, 0.25], [0, 0]]
    assert layout.present(payload, counts).tolist() == [True, False, False]
    found = layout.mean(vector * 2, {}, [4, 4], 4, {})
    assert found["prototypes"].tolist() == [[8], [4]] and found["labels"].tolist() == [0, 1]


def test_a_table_without_the_number_of_samples_of_each_class_is_refused():
    layout = layout_of(TABLE, {"prototypes": ("float32", (3, 1))}, 3)
    with pytest.raises(ValueError, match="a table of 3 classes needs the number of samples of each class"):
        layout.vector({"prototypes": np.zeros((3, 1))}, {}, 1, 1)


def test_a_label_outside_of_the_classes_is_refused():
    layout = layout_of(Averaged(rows="devices"), {"prototypes": ("float32", ("held", 1))}, 2)
    payload = {"prototypes": np.zeros((1, 1)), "labels": np.array([2]), "counts": np.array([1])}
    with pytest.raises(ValueError, match="make no rows of 2 classes"):
        layout.vector(payload, {}, 1, 1)
