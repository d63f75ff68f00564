"""Tests of an update of one block that its task requests in advance: the block follows without a want."""

import contextlib
import hashlib

import numpy as np
import pytest

from protofleet.lab.simulation.network import NetworkConditions
from protofleet.protocol.link import block_budget
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.transport.address import LARGEST_BLOCK
from protofleet.protocol.wire import forms
from protofleet.protocol.wire.arrays import encode
from protofleet.protocol.wire.blocks import pack
from protofleet.protocol.wire.messages import Manifest, Task, Update
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.reasons import Reason
from tests.protocol.ends import TOPICS, Ends, weights

PACKET = 1 << 21
MODEL = 50_000  # Numbers in the model: 200 kB, which is one block of the largest size.
SMALL = 1_000
BAD_NETWORKS = [
    NetworkConditions(jitter=0.2, loss=0.2, repeat=0.2),
    NetworkConditions(loss=0.5),
    NetworkConditions(jitter=2.0, repeat=0.9),
]


def asked(folder, devices="a", model=MODEL, can=(forms.INLINE, forms.CREDIT), conditions=NetworkConditions()):
    """Return ends whose devices have a task that may already have requested the one block of their updates."""
    ends = Ends(folder, devices, conditions)
    for link in ends.parts.values():
        link.most_block = LARGEST_BLOCK
        link.adapt(PACKET)
    ends.coordinator.party.device_forms.update({device: frozenset(can) for device in devices})
    ask(ends, devices, model)
    return ends


def ask(ends, devices, model=MODEL, round=1):
    coordinator = ends.coordinator
    store = ObjectStore(ends.folder / "broadcasts", durable=False)
    offer = coordinator.tasks.offer(store.put(weights(model), coordinator.block), store, list(devices), set())
    for device in devices:
        coordinator.tasks.send(device, Task(round, "train", offer), holds=False)
    coordinator.tasks.flush(ends.clock.now)
    ends.run()


def requests(ends, device="a"):
    """Return how many wants the device has received."""
    return sum(n for (kind, _), n in ends.results(device, "down").items() if kind == "want")


def blocks(ends, result="accepted"):
    return ends.results(COORDINATOR, "up")["block", result]


def heard_updates(ends):
    return ends.results(COORDINATOR, "up").get(("update", "accepted"), 0)


def answers(ends):
    return [r for r in ends.heard[COORDINATOR] if isinstance(r.message, Update)]


@contextlib.contextmanager
def held_back(link):
    """Hold back the blocks that a link sends meanwhile; yield a list of functions that send them."""
    held, send = [], link.send_block
    link.send_block = lambda *what, **how: held.append(lambda: send(*what, **how))
    yield held
    link.send_block = send


def test_the_block_of_an_update_arrives_without_a_want_if_the_task_gave_credit(tmp_path):
    ends = asked(tmp_path)
    name = ends.update("a", weights(MODEL, 1))
    ends.run()
    (answer,) = answers(ends)
    assert answer.object == name and requests(ends) == 0 and not ends.rejected[COORDINATOR]
    np.testing.assert_array_equal(answer.message.arrays["weights.w"], weights(MODEL, 1)["weights.w"])
    up = ends.coordinator.meter.payload
    assert sum(n for key, n in up.items() if "weights" in key and "up" in key) == 4 * MODEL


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ({"can": (forms.INLINE,)}, MODEL),  # The device does not know credit.
        ({"model": SMALL}, MODEL),  # An answer to a small broadcast is usually small.
        ({}, 2 * MODEL),  # The answer has two blocks.
    ],
)
def test_any_other_update_is_fetched_with_one_want(tmp_path, given, answer):
    ends = asked(tmp_path, **given)
    ends.update("a", weights(answer, 1))
    ends.run()
    assert len(answers(ends)) == 1 and requests(ends) == 1 and not ends.rejected[COORDINATOR]


def test_a_lost_block_is_requested_although_the_update_is_not_sent_again(tmp_path):
    ends = asked(tmp_path)
    with held_back(ends.links["a"]):
        ends.update("a", weights(MODEL, 1))
        ends.run(until=lambda: heard_updates(ends) == 1)
    assert not answers(ends) and requests(ends) == 0
    ends.run()
    assert len(answers(ends)) == 1 and requests(ends) == 1


def test_an_update_that_is_sent_again_causes_no_want_while_its_block_is_in_flight(tmp_path):
    ends, arrays = asked(tmp_path), weights(MODEL, 1)
    with held_back(ends.links["a"]) as blocks_on_the_way:
        for said in (1, 2, 3):
            ends.update("a", arrays)
            ends.run(until=lambda said=said: heard_updates(ends) == said)
    for arrives in blocks_on_the_way:
        arrives()
    ends.run()
    assert len(answers(ends)) == 1 and requests(ends) == 0 and blocks(ends) == 1


def test_a_block_that_arrives_before_its_update_is_rejected_and_then_requested(tmp_path):
    ends, sent = asked(tmp_path), []
    publish, transport = ends.links["a"].transport.publish, ends.links["a"].transport
    transport.publish = lambda *what, **how: sent.append((what, how))
    ends.update("a", weights(MODEL, 1))
    transport.publish = publish
    assert len(sent) == 2
    for what, how in reversed(sent):
        publish(*what, **how)
    ends.run()
    assert [f.reason for f in ends.rejected[COORDINATOR]] == [Reason.UNKNOWN_OBJECT]
    assert len(answers(ends)) == 1 and requests(ends) == 1


def test_the_block_of_an_unwanted_update_is_rejected_only_if_it_was_not_requested(tmp_path):
    ends = asked(tmp_path)
    ends.gate.open = False
    ends.update("a", weights(MODEL, 1))
    ends.run()
    assert not answers(ends) and not ends.rejected[COORDINATOR] and blocks(ends, "duplicate") == 1
    link = ends.links["a"]
    name = link.store.put(weights(MODEL, 2)).object
    offer = link.with_new_key(link.store.manifest(name, link.block))
    link.publish(TOPICS.up("a"), Update("a", 1, "train", 10, follows=True), COORDINATOR, offer)
    link.send_block(TOPICS.up("a"), link.store, offer, 0, fresh=True)
    ends.run()
    assert [fault.reason for fault in ends.rejected[COORDINATOR]] == [Reason.UNKNOWN_OBJECT]


BROKEN = {
    "no table": bytes(range(256)) * 300,
    "a table that is no msgpack": b"\x04\0\0\0\xc1\xc1\xc1\xc1" + bytes(70_000),
    "cut short": b"".join(encode(weights(MODEL)))[:-8],
    "one byte": b"x",
}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("can", [(forms.INLINE, forms.CREDIT), ()], ids=["credit", "none"])
def test_a_block_without_a_valid_body_is_refused_with_and_without_credit(tmp_path, broken, can):
    ends, data = asked(tmp_path, can=can), BROKEN[broken]
    link, name = ends.links["a"], hashlib.sha256(data).digest()
    offer = link.with_new_key(Manifest(name, len(data), len(data), (name[:16],), ()))
    link.publish(TOPICS.up("a"), Update("a", 1, "train", 10, follows=True), COORDINATOR, offer)
    link.transport.publish(TOPICS.up("a"), pack(offer, 0, data))
    ends.run()
    assert [fault.reason for fault in ends.gate.faults] == [Reason.BAD_BODY]
    assert not answers(ends) and requests(ends) == (not can) and not ends.coordinator.answers.fetches


def test_a_block_that_a_device_sends_without_credit_is_requested_and_accepted(tmp_path):
    ends = asked(tmp_path, can=(forms.INLINE,))
    link = ends.links["a"]
    name = link.store.put(weights(MODEL, 1)).object
    offer = link.with_new_key(link.store.manifest(name, link.block))
    update = Update("a", 1, "train", 10, follows=True)
    link.publish(TOPICS.up("a"), update, COORDINATOR, offer)
    ends.run(0.1)
    assert requests(ends) == 1
    link.send_block(TOPICS.up("a"), link.store, offer, 0, fresh=True)
    ends.run()
    assert [a.object for a in answers(ends)] == [name]


def test_a_cohort_gets_credit_only_up_to_the_limit_of_credits(tmp_path, monkeypatch):
    monkeypatch.setattr(block_budget, "MOST_CREDIT", 2)
    ends = asked(tmp_path, "abc")
    assert {r.message.credit for d in "abc" for r in ends.heard[d]} == {0}
    ask(ends, "ab", round=2)
    assert {r.message.credit for d in "ab" for r in ends.heard[d] if r.message.round == 2} == {1}


def test_blocks_that_tasks_requested_count_towards_the_budget(tmp_path, monkeypatch):
    monkeypatch.setattr(block_budget, "BUDGET", 40)
    ends, most = asked(tmp_path, "abcde"), []
    ends.links["e"].most_block = 1024
    ends.links["e"].adapt(PACKET)
    ends.update("e", weights(MODEL, 5))  # 196 blocks.

    def in_flight():
        most.append(sum(len(fetch.asked) for fetch, _ in ends.coordinator.answers.fetches.values()))

    ends.run(5.0, in_flight)
    assert len(answers(ends)) == 1 and max(most) == 40 - 4, "four devices have not answered"


def test_a_lost_block_is_requested_while_an_earlier_update_waits_for_the_budget(tmp_path, monkeypatch):
    monkeypatch.setattr(block_budget, "BUDGET", 20)
    ends = asked(tmp_path, "ae")
    ends.links["e"].most_block = 1024
    ends.links["e"].adapt(PACKET)
    ends.update("e", weights(MODEL, 5))  # The budget has no space for a window of its blocks.
    ends.run(until=lambda: heard_updates(ends) == 1)
    with held_back(ends.links["a"]):
        ends.update("a", weights(MODEL, 1))
        ends.run(until=lambda: heard_updates(ends) == 2)
    ends.run(10.0)
    assert [a.sender for a in answers(ends)] == ["a"] and requests(ends) == 1


@pytest.mark.parametrize("conditions", BAD_NETWORKS)
def test_updates_with_credit_arrive_over_any_network(tmp_path, conditions):
    devices = "abcd"
    ends = asked(tmp_path, devices, conditions=conditions)
    for _ in range(20):
        for device in devices:
            ends.update(device, weights(MODEL, ord(device)))
        ends.run(20)
    for device in devices:
        arrays = next(a.message.arrays for a in answers(ends) if a.sender == device)
        np.testing.assert_array_equal(arrays["weights.w"], weights(MODEL, ord(device))["weights.w"])


def test_a_restarted_coordinator_requests_the_block_that_was_sent_before_the_restart(tmp_path):
    ends = asked(tmp_path)
    with held_back(ends.links["a"]):
        ends.update("a", weights(MODEL, 1))
    ends.boot_coordinator(epoch=2)
    ends.update("a", weights(MODEL, 1))
    ends.run()
    assert len(answers(ends)) == 1 and requests(ends) == 1
