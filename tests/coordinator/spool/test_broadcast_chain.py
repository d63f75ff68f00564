"""The chain of broadcasts: replays, references, deltas from each of them, and what is deleted."""

import numpy as np
import pytest
import torch

from protofleet.coordinator.round.events import Advance
from protofleet.coordinator.spool.broadcast_chain import BroadcastChain
from protofleet.methods.contract.base import Ask
from protofleet.methods.contract.plan import Plan
from protofleet.methods.parts.weights import first_weights
from protofleet.protocol.coding.delta import apply_delta, body_of, bytes_of
from protofleet.protocol.settings.codec import CodecSettings, CodecStage
from protofleet.protocol.storage.store import ObjectStore

INT8 = CodecStage("int8", "broadcast")
BEGIN = None  # The phase of an Advance that begins a round.


def ask(number, phase="train", kind="weights"):
    dice = torch.Generator().manual_seed(number)
    return Ask(phase, {f"{kind}.w": torch.randn(60, 50, generator=dice)})


@pytest.fixture
def store(tmp_path):
    return ObjectStore(tmp_path / "chain")


def chain(store, links=(), method="fedavg", **stages):
    stages = stages or {"weights": INT8}
    return BroadcastChain(Plan(method, 3, 9, codec=CodecSettings({}, stages)), store, links)


def put(made, round, after=BEGIN, **more):
    return made.put(Advance(round, after, ()), ask(**more))


def decoded(made, base, reference):
    """Return what a device that holds `reference` decodes from its delta."""
    steps = made.deltas(base)[reference]
    held = made.store.open(reference) if reference else None
    delta = body_of(bytes_of(made.join(steps)))
    return apply_delta(delta, {"weights": INT8}, held, made.store.size(base))


def test_a_replay_of_a_round_makes_the_same_objects_again(store):
    made = chain(store)
    for number in range(1, 5):
        put(made, number, number=number)
    before = made.links
    put(made, 4, number=4)
    assert made.links == before
    again = chain(store, before)
    put(again, 4, number=4)
    assert again.links == before


def test_a_round_that_is_rolled_back_removes_the_later_broadcasts(store):
    made = chain(store)
    for number in range(1, 5):
        put(made, number, number=number)
    put(made, 2, number=20)
    assert [link.round for link in made.links] == [1, 2]
    assert made.links[1].reference == made.links[0].base


def test_the_arrays_of_the_method_are_stored_as_they_were_sent(store):
    """A method may overwrite its model while it reads the updates, which are added to the arrays of the task."""
    made, question = chain(store), ask(1)
    base = made.put(Advance(1, BEGIN, ()), question)
    sent = question.payload["weights.w"].numpy().copy()
    name = made.links[-1].base
    question.payload["weights.w"].mul_(2)
    assert np.array_equal(store.open(made.exact(name))["weights.w"], sent)
    assert not np.array_equal(base["weights.w"], sent), "the broadcast is rounded"


def test_the_reference_of_a_phase_is_the_phase_before_it(store):
    made = chain(store)
    put(made, 1, number=1)
    put(made, 1, "train", number=2, phase="mix")
    put(made, 1, "train", number=2, phase="mix")
    assert [link.phase for link in made.links] == ["train", "mix"]
    assert made.links[1].reference == made.links[0].base


def test_the_reference_has_all_kinds_that_are_coded_as_differences(store):
    made = chain(store, method="fedplcc", weights=INT8, prototypes=CodecStage("uint4"))
    put(made, 1, number=1)
    made.put(Advance(1, "train", ()), ask(2, "mix", "prototypes"))
    put(made, 2, number=3)
    assert [link.reference for link in made.links] == [b"", b"", made.links[0].base]


def test_each_broadcast_of_the_chain_is_a_reference_for_a_delta(store):
    made = chain(store)
    for number in range(1, 4):
        put(made, number, number=number)
    one, two, three = (link.base for link in made.links)
    assert list(made.deltas(three)) == [two, one]
    assert list(made.deltas(two)) == [one, b""]
    for newest, reference in ((three, two), (three, one), (two, one), (two, b""), (one, b"")):
        assert decoded(made, newest, reference) == store.read(newest, 0, store.size(newest))


def test_deltas_that_need_no_fewer_bytes_than_the_broadcast_are_not_offered(store):
    made = chain(store)
    for number in range(1, 9):
        put(made, number, number=number)
    newest = made.links[-1].base
    for steps in made.deltas(newest).values():
        assert sum(store.size(step) for step in steps) < store.size(newest)
    assert 1 < len(made.deltas(newest)) < 8


def test_the_first_weights_are_the_first_link_if_a_broadcast_has_them(store):
    made = chain(store)
    first = first_weights(Plan("fedavg", 3, 9))
    made.put(Advance(1, BEGIN, ()), Ask("train", first))
    assert made.first and [link.round for link in made.links] == [0, 1]
    assert store.size(made.links[1].step) < 0.01 * store.size(made.first)


def test_a_chain_of_other_weights_than_the_first_weights_has_no_first_link(store):
    made = chain(store)
    put(made, 1, number=1)
    assert not made.first and [link.round for link in made.links] == [1]


def test_a_missing_reference_is_not_used(store):
    made = chain(store)
    put(made, 1, number=1)
    store.drop(made.links[0].base)
    put(made, 2, number=2)
    assert made.links[1].reference == b""


def test_only_objects_that_are_not_needed_are_deleted(store):
    made = chain(store)
    for number in range(1, 13):
        put(made, number, number=number)
    oldest = made.links[0]
    made.prune({oldest.base})
    assert all(store.has(link.step) for link in made.links)
    kept = [link.round for link in made.links if store.has(link.base)]
    assert kept == [1, 9, 10, 11, 12] and store.has(oldest.exact)
    put(made, 12, number=12)


def test_the_exact_arrays_of_a_broadcast_are_the_arrays_of_the_method(store):
    made = chain(store)
    put(made, 1, number=1)
    put(made, 2, number=2)
    base = made.links[1].base
    exact = store.open(made.exact(base))["weights.w"]
    assert np.array_equal(exact, ask(2).payload["weights.w"].numpy())
    assert not np.array_equal(store.open(base)["weights.w"], exact)
    assert made.exact(bytes(32)) == b""


def test_a_run_without_stages_for_broadcasts_has_no_chain(store):
    assert not BroadcastChain(Plan("fedavg", 3, 9), store)
    assert not BroadcastChain(Plan("fedavg", 3, 9, codec=CodecSettings({"weights": INT8})), store)
