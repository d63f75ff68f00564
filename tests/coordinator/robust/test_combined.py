"""Tests of the one reply that stands for all replies of a phase under the rules of [policy.robust]."""

import random
from dataclasses import replace

import pytest
import torch

from protofleet.coordinator.robust import points
from protofleet.coordinator.robust.combined import AveragedPhase, combined
from protofleet.coordinator.round.robust import RULES, Robust
from protofleet.methods.contract.averages import Averaged
from protofleet.methods.contract.base import Reply
from protofleet.methods.contract.bridge import LazyPayload, to_numpy
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.means import average_class_means, merge_class_means
from protofleet.methods.parts.averaging import weighted_mean
from protofleet.methods.parts.prototypes import class_means_in

WANTS = {
    "weights.a": TensorSpec((3, 4)),
    "weights.norm.running_var": TensorSpec((4,), low=0),
    "weights.norm.num_batches_tracked": TensorSpec((), "int64", low=0),
    "prototypes": TensorSpec(("held", 5)),
    "labels": TensorSpec(("held",), "int64"),
    "counts": TensorSpec(("held",), "int64"),
}
BOTH = Averaged(("weights",), rows="counts")
SENT = {name: torch.zeros(WANTS[name].shape) for name in ("weights.a", "weights.norm.running_var")}
ASKED = AveragedPhase(BOTH, WANTS, SENT, frozenset({"weights.norm.running_var"}))
HUGE = 1e38


def answer(seed, labels=(0, 1, 2), examples=20, weight=1.0):
    g = torch.Generator().manual_seed(seed)
    payload = {
        "weights.a": torch.randn(3, 4, generator=g),
        "weights.norm.running_var": torch.rand(4, generator=g),
        "weights.norm.num_batches_tracked": torch.tensor(7 + seed),
        "prototypes": torch.randn(len(labels), 5, generator=g),
        "labels": torch.tensor(labels, dtype=torch.int64),
        "counts": torch.full((len(labels),), 3 + seed, dtype=torch.int64),
    }
    return Reply(f"device-{seed}", examples, LazyPayload(to_numpy(payload)), weight)


def changed(reply, **arrays):
    named = {key.replace("__", "."): value for key, value in arrays.items()}
    return replace(reply, payload=LazyPayload(to_numpy({**dict(reply.payload), **named})))


def one(replies, robust, asked=ASKED):
    (found,) = combined(replies, asked, robust)
    return found


def every(rule):
    return Robust(weights=rule, prototypes=rule)


def row_of(reply, label):
    return reply.payload["prototypes"][reply.payload["labels"].tolist().index(label)]


def test_without_a_rule_the_server_half_gets_the_unchanged_replies():
    replies = [answer(1), answer(0)]
    assert combined(replies, ASKED, Robust()) is replies
    only_rows = replace(ASKED, averaged=Averaged(rows="devices"))
    assert combined(replies, only_rows, Robust(weights="median")) is replies


def test_a_single_reply_is_not_changed():
    replies = [answer(1)]
    assert combined(replies, ASKED, every("trimmed")) is replies


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "mean"])
def test_the_order_of_arrival_changes_no_bit(rule):
    replies = [answer(seed) for seed in range(6)]
    mixed = random.Random(1).sample(replies, 6)
    first, second = one(replies, every(rule)).payload, one(mixed, every(rule)).payload
    assert all(torch.equal(first[name], second[name]) for name in WANTS)


def test_arrays_without_a_rule_get_the_mean_of_the_method():
    replies = [answer(seed, examples=10 + seed) for seed in range(5)]
    found = one(replies, Robust(prototypes="median")).payload
    wanted = weighted_mean(replies, ["weights.a", "weights.norm.running_var"])
    torch.testing.assert_close(found["weights.a"], wanted["weights.a"])
    torch.testing.assert_close(found["weights.norm.running_var"], wanted["weights.norm.running_var"])


@pytest.mark.parametrize("by, merge", [("counts", merge_class_means), ("devices", average_class_means)])
def test_rows_without_a_rule_get_the_mean_of_the_method(by, merge):
    replies = [answer(seed, labels) for seed, labels in enumerate([(0, 1), (1,), (0, 1, 1), (2, 0)])]
    asked = replace(ASKED, averaged=Averaged(("weights",), rows=by))
    found = one(replies, Robust(weights="median"), asked).payload
    means, counts = merge([class_means_in(reply.payload, 3) for reply in replies])
    torch.testing.assert_close(found["prototypes"], means)
    assert found["labels"].tolist() == [0, 1, 2]
    assert found["counts"].tolist() == counts.tolist()


def test_the_combined_reply_has_the_examples_of_all_replies():
    assert one([answer(0, examples=3), answer(1, examples=4)], every("cap")).examples == 7


def test_integers_come_from_the_first_device_by_name():
    found = one([answer(4), answer(2), answer(3)], every("median")).payload
    assert int(found["weights.norm.num_batches_tracked"]) == 9


def test_a_running_variance_never_becomes_negative():
    """Clipping around a median moves the variances of a device to the median, and further if others lie below."""
    replies = [
        changed(answer(seed), weights__norm__running_var=torch.tensor(variances))
        for seed, variances in enumerate([[0.0, 9.0, 0, 0], [0.0, 0, 9.0, 0], [0.1, 0, 0, 9.0]])
    ]
    below = replace(
        ASKED, wants={**WANTS, "weights.a": TensorSpec((3, 4), low=0.5), "prototypes": WANTS["prototypes"]}
    )
    found = one(replies, every("clip_median"), below).payload
    assert float(found["weights.norm.running_var"].min()) >= 0
    assert float(found["weights.a"].min()) == 0.5


def test_statistics_and_weights_are_capped_separately():
    """A liar's huge variances do not shorten its weights, and short honest variances do not hide a huge weight."""
    replies = [answer(seed) for seed in range(5)]
    liar = changed(replies[2], weights__norm__running_var=torch.full((4,), HUGE))
    lied, honest = (one([*replies[:2], r, *replies[3:]], every("cap")).payload for r in (liar, replies[2]))
    assert torch.equal(lied["weights.a"], honest["weights.a"])
    assert float(lied["weights.norm.running_var"].max()) < 3


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "mean"])
@pytest.mark.parametrize("huge", [HUGE, -HUGE])
def test_one_liar_with_huge_values_does_not_dominate_any_array(rule, huge):
    replies = [answer(seed) for seed in range(6)]
    liar = changed(
        replies[0], weights__a=torch.full((3, 4), huge), prototypes=torch.full((3, 5), huge),
        weights__norm__running_var=torch.full((4,), abs(huge)),
    )  # fmt: skip
    found = one([liar, *replies[1:]], every(rule)).payload
    for name in ("weights.a", "prototypes", "weights.norm.running_var"):
        assert bool(found[name].isfinite().all()) and float(found[name].abs().max()) < 15


def test_each_class_is_combined_over_the_devices_that_hold_it():
    """Five devices hold class 0, and three hold class 1: each class has a liar, and each liar is trimmed."""
    labels = [(0, 1), (0, 1), (0, 1), (0,), (0,)]
    replies = [answer(seed, held) for seed, held in enumerate(labels)]
    replies[0] = changed(replies[0], prototypes=torch.full((2, 5), HUGE))
    found = one(replies, Robust(prototypes="trimmed"))
    for label, holders in ((0, replies[1:]), (1, replies[1:3])):
        rows = torch.stack([row_of(reply, label) for reply in holders])
        assert bool((rows.min(dim=0).values <= row_of(found, label)).all())
        assert bool((row_of(found, label) <= rows.max(dim=0).values).all())


def test_a_class_of_two_devices_is_a_mean_with_a_cap():
    replies = [answer(0, (0, 2)), answer(1, (0, 2)), answer(2, (0,))]
    liar = changed(replies[0], prototypes=torch.full((2, 5), HUGE))
    found = one([liar, *replies[1:]], Robust(prototypes="median"))
    longest = 3 * float(row_of(replies[1], 2).norm())
    assert float(row_of(found, 2).norm()) <= longest


def test_a_class_of_one_device_is_the_row_of_this_device():
    replies = [answer(0, (0, 2)), answer(1, (0,)), answer(2, (0,))]
    found = one(replies, Robust(prototypes="clip_median"))
    torch.testing.assert_close(row_of(found, 2), row_of(replies[0], 2))


def test_rows_of_a_class_that_is_named_twice_are_merged_before_the_rule():
    """A device that sends many rows of a class is one device, so it is clipped as one."""
    replies = [answer(seed, (0,)) for seed in range(4)]
    many = changed(
        answer(4, (0, 0)), prototypes=torch.tensor([[1.0] * 5, [3.0] * 5]), counts=torch.tensor([1, 3])
    )
    pooled = changed(answer(4, (0,)), prototypes=torch.full((1, 5), 2.5), counts=torch.tensor([4]))
    first, second = (one([*replies, r], Robust(prototypes="clip_median")).payload for r in (many, pooled))
    torch.testing.assert_close(first["prototypes"], second["prototypes"])
    assert first["counts"].tolist() == second["counts"].tolist()


def test_rows_are_capped_by_their_difference_to_the_row_of_the_broadcast():
    broadcast = {"prototypes": torch.full((1, 5), 10.0), "labels": torch.tensor([1])}
    asked = replace(ASKED, broadcast={**SENT, **broadcast})
    rows = [torch.full((1, 5), 10.0 + step) for step in (0.1, 0.1, -0.1, 0.1, 50.0)]
    replies = [changed(answer(seed, (1,)), prototypes=row) for seed, row in enumerate(rows)]
    asked = replace(asked, averaged=Averaged(("weights",), rows="devices"))
    found = one(replies, Robust(prototypes="cap"), asked).payload["prototypes"]
    torch.testing.assert_close(found, torch.full((1, 5), 10 + (0.1 * 3 - 0.1 + 3 * 0.1) / 5))


def test_claims_of_examples_are_capped_at_three_times_their_median():
    replies = [answer(seed, examples=10) for seed in range(4)] + [answer(4, examples=10**9)]
    capped = [*replies[:4], replace(replies[4], examples=30)]
    first, second = (one(some, Robust(weights="trimmed")).payload["weights.a"] for some in (replies, capped))
    assert torch.equal(first, second)


def test_a_late_reply_has_a_smaller_weight():
    replies = [answer(seed) for seed in range(4)]
    late = [*replies[:3], replace(replies[3], weight=1e-12)]
    without = one(replies[:3], Robust(weights="cap", prototypes="cap")).payload
    found = one(late, Robust(weights="cap", prototypes="cap")).payload
    for name in ("weights.a", "prototypes"):
        torch.testing.assert_close(found[name], without[name], rtol=1e-4, atol=1e-5)


def test_small_slices_give_the_same_arrays(monkeypatch):
    replies = [answer(seed) for seed in range(6)]
    whole = {rule: one(replies, every(rule)).payload["weights.a"] for rule in RULES[1:]}
    monkeypatch.setattr(points, "SLICE", 12)
    for rule, wanted in whole.items():
        torch.testing.assert_close(one(replies, every(rule)).payload["weights.a"], wanted)


def test_the_combined_payload_has_exactly_the_arrays_of_the_task():
    found = one([answer(0), answer(1), answer(2)], every("cap")).payload
    assert [*found] == [*WANTS] and len(found) == len(WANTS) and "weights.b" not in found
    with pytest.raises(KeyError, match="weights.b"):
        found["weights.b"]


def test_the_rules_are_fitted_before_the_model_of_the_broadcast_changes():
    """The server half writes the result into the model from which the broadcast has its arrays."""
    model = {name: torch.full_like(value, 0.5) for name, value in SENT.items()}
    replies = [answer(seed) for seed in range(5)]
    replies[0] = changed(replies[0], weights__a=torch.full((3, 4), 100.0))
    asked = replace(ASKED, broadcast=model)
    untouched, found = (one(replies, every("cap"), asked).payload for _ in range(2))
    wanted = untouched["weights.a"]
    for value in model.values():
        value.fill_(HUGE)
    assert torch.equal(found["weights.a"], wanted)


def test_the_combined_reply_names_the_number_of_devices_of_each_class():
    replies = [answer(0), answer(1, labels=(0, 2)), answer(2, labels=(2, 2))]
    assert one(replies, every("clip_median")).devices_of_class == {0: 2, 1: 1, 2: 3}
