"""Claims of samples are capped before a server half gets them: examples, arrays of counts, and counts of a hello."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from protofleet.coordinator.server.capped import at_most, capped_members, capped_replies
from protofleet.methods.contract.base import Member, Reply
from protofleet.methods.contract.bridge import LazyPayload
from protofleet.methods.contract.wants import TensorSpec

WANTS = {"means": TensorSpec(("n",)), "counts": TensorSpec(("n",), "int64", of_examples=True)}


def reply(device, examples, *counts):
    means = np.ones(len(counts), np.float32) * 9
    return Reply(device, examples, LazyPayload({"means": means, "counts": np.array(counts)}))


def test_the_examples_and_the_counts_of_a_liar_are_capped_at_three_times_the_median():
    said = [reply("a", 10, 5, 5), reply("b", 12, 6, 6), reply("liar", 1_000_000, 999_999, 1)]
    *honest, liar = capped_replies(said, WANTS, 3.0)
    assert [r.examples for r in (*honest, liar)] == [10, 12, 36]
    assert [r.payload["counts"].tolist() for r in (*honest, liar)] == [[5, 5], [6, 6], [35, 1]]
    assert liar.payload["counts"].dtype == torch.int64
    assert liar.payload["means"].tolist() == [9, 9] and liar.payload.flat("counts", 1, 2).tolist() == [1]
    assert list(liar.payload) == ["means", "counts"] and len(liar.payload) == 2 and "counts" in liar.payload


def test_counts_that_a_method_caps_itself_are_not_changed_and_the_examples_are_capped():
    wants = {**WANTS, "counts": TensorSpec(("n",), "int64", of_examples=True, capped=False)}
    said = [reply("a", 10, 5, 5), reply("b", 12, 6, 6), reply("liar", 1_000, 999, 1)]
    liar = capped_replies(said, wants, 3.0)[2]
    assert liar.examples == 36 and liar.payload["counts"].tolist() == [999, 1]


def test_kept_answers_are_capped_and_their_arrays_in_the_server_half_are_not_changed():
    sent = [reply("a", 10, 5), reply("b", 12, 6), reply("liar", 1_000, 999, 1)]
    kept = [replace(one, payload=dict(one.payload)) for one in sent]
    liar = capped_replies(kept, WANTS, 3.0)[2]
    assert (liar.examples, liar.payload["counts"].tolist()) == (36, [35, 1])
    assert kept[2].payload["counts"].tolist() == [999, 1]


def test_a_device_that_claims_few_examples_and_many_counted_samples_is_capped_too():
    said = [reply("a", 10, 5, 5), reply("b", 10, 5, 5), reply("liar", 1, 500_000, 500_000)]
    assert capped_replies(said, WANTS, 3.0)[2].payload["counts"].tolist() == [15, 15]


def test_without_a_cap_the_replies_are_not_changed():
    said = [reply("a", 10, 5), reply("liar", 1_000_000, 999_999)]
    assert capped_replies(said, WANTS, 0.0) is said


def test_the_counts_of_a_hello_are_capped_and_its_examples_are_not_changed():
    members = [Member("a", 10, (4, 6)), Member("b", 12), Member("liar", 900, (900, 0))]
    assert capped_members(members, 3.0) == [*members[:2], Member("liar", 900, (36, 0))]
    assert capped_members(members, 0.0) == members


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=20), st.integers(20, 1 << 30))
def test_scaled_counts_add_up_to_the_cap_and_no_class_is_lost(counts, most):
    found = at_most(torch.tensor(counts), most)
    assert int(found.sum()) <= most or int(found.max()) == 1 or int(found.sum()) <= most + len(counts)
    assert [n > 0 for n in found.tolist()] == [n > 0 for n in counts]
    assert sum(counts) > most or found.tolist() == counts
