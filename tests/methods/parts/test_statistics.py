"""Tests of all methods that send statistics of features, without the name of any method."""

import logging
import math
from functools import partial

import pytest
import torch

from protofleet import Data
from protofleet.coordinator.server.capped import capped_replies
from protofleet.methods.contract.base import Reply
from protofleet.methods.contract.catalog import load, names
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.statistics import ROW_ROOM, StatisticsServer
from protofleet.protocol.settings.reader import SettingsError
from protofleet.testing import simulate
from tests.methods.tiny import SHARDS, Shard, answer, clients_of, member, play, same, server_of, shard, tiny

METHODS = [name for name in names() if issubclass(load(name).Server, StatisticsServer)]
every_method = pytest.mark.parametrize("method", METHODS)
FOUR = {**SHARDS, "device-3": shard(3, (1,) * 6)}


def fresh(method, shards=FOUR, **hyper):
    chosen = load(method).Hyper(**hyper)
    return server_of(load(method), chosen), clients_of(load(method), chosen, shards)


def after(server, clients, *rounds):
    for number, present in enumerate(rounds, 1):
        play(server, {name: clients[name] for name in present}, number)
    return snapshot({**server.payload(), **server.state()})


@every_method
def test_the_order_and_the_round_of_answers_and_repeated_answers_change_no_bit(method):
    once = after(*fresh(method), sorted(FOUR))
    late = after(*fresh(method), ["device-3", "device-0"], ["device-2", "device-1"])
    again = after(*fresh(method), ["device-1", "device-2", "device-3"], sorted(FOUR), ["device-2"])
    assert same(once, late) and same(once, again)
    server, clients = fresh(method)
    server.begin(1, [member(name, client) for name, client in clients.items()])
    story = server.round()
    ask = next(story)
    replies = [Reply(n, len(c.data.y), answer(c, ask, 1)) for n, c in sorted(clients.items(), reverse=True)]
    with pytest.raises(StopIteration):
        story.send(replies)
    assert same(once, {**server.payload(), **server.state()})


@every_method
def test_the_cap_on_stated_samples_depends_on_all_kept_answers(method):
    """Median and cap are those of all devices; without device-3, which has 6 samples, they are higher."""

    def capped(*rounds, gone=()):
        server, clients = fresh(method)
        server.capped = partial(capped_replies, factor=1.0)
        after(server, clients, *rounds)
        server.forget(gone)
        return snapshot({**server.payload(), **server.state()})

    names, few = sorted(FOUR), sorted(FOUR)[:3]
    assert same(capped(names), capped(few, names[3:])) and same(capped(names), capped(names[3:], few))
    assert same(capped(names, gone=names[3:]), capped(few))
    assert not same(capped(names), after(*fresh(method), names))


@every_method
def test_a_late_device_is_added_to_the_head_of_the_earlier_devices(method):
    few = ["device-0", "device-2"]
    server, clients = fresh(method)
    alone = after(server, clients, few)
    assert same(alone, after(*fresh(method, {name: FOUR[name] for name in few}), few))
    assert not same(alone, after(server, clients, ["device-3"]))
    server.answers.drop("device-3")
    assert same(server.solve(server.answers.replies()), {k: alone[k] for k in server.payload()})


@every_method
def test_a_device_with_changed_data_replaces_its_earlier_answer(method):
    server, clients = fresh(method)
    after(server, clients, sorted(FOUR))
    moved = {**FOUR, "device-1": shard(9)}
    play(server, {"device-1": fresh(method, moved)[1]["device-1"]}, 2)
    assert same({**server.payload(), **server.state()}, after(*fresh(method, moved), sorted(FOUR)))


@every_method
def test_a_class_that_no_device_holds_is_never_predicted(method):
    shards = {name: Shard(part.x[part.y != 1], part.y[part.y != 1]) for name, part in SHARDS.items()}
    server, clients = fresh(method, shards)
    after(server, clients, sorted(shards))
    assert all(1 not in reply.payload["labels"] for reply in server.answers.replies())
    client = clients["device-0"]
    client.receive(server.payload())
    scores = client.predict(client.data.x)
    assert (scores[:, 1] == -math.inf).all() and scores[:, [0, 2]].isfinite().all()
    assert server.monitor()["devices.1"] == 0


@every_method
def test_a_class_with_few_samples_is_not_sent_and_both_parties_report_it(method, caplog):
    server, clients = fresh(method)  # device-2 has 5 samples of class 2 and only 2 of class 0.
    with caplog.at_level(logging.WARNING, "protofleet.device"):
        play(server, clients, 1)
    kept = {reply.device: reply.payload for reply in server.answers.replies()}
    assert kept["device-2"]["labels"].tolist() == [2] and kept["device-2"]["counts"].tolist() == [5]
    words = "round 1: the classes 0 have fewer than method.least_samples = 5 samples here"
    assert [words in record.getMessage() for record in caplog.records] == [True]
    figures = server.monitor()
    assert [figures[f"devices.{c}"] for c in range(3)] == [2, 3, 2]
    assert (figures["samples.counted"], figures["samples.left_out"]) == (24 + 18 + 5 + 6, 2)


@every_method
def test_a_device_whose_classes_are_all_too_small_takes_part_without_effect(method):
    shards = {**SHARDS, "device-9": shard(5, (0, 1, 2))}
    with_it, without = fresh(method, shards), fresh(method, SHARDS)
    after(*with_it, sorted(shards))
    after(*without, sorted(SHARDS))
    assert same(with_it[0].payload(), without[0].payload())
    alone, clients = fresh(method, {"device-9": shards["device-9"]})
    after(alone, clients, ["device-9"])
    clients["device-9"].receive(alone.payload())
    assert dict(alone.payload()) == {} and clients["device-9"].rule() is clients["device-9"].model.head
    assert alone.lacking() == (
        "none of the 1 devices that have answered has a class with method.least_samples = 5 samples, so there is no "
        "head; set method.least_samples lower, or give the devices more samples"
    )
    assert without[0].lacking() == "" and fresh(method)[0].lacking().startswith(
        "no device has sent statistics that"
    )


@every_method
def test_a_device_without_samples_takes_no_part_and_both_parties_report_it(method, caplog):
    nobody = {"device-9": Shard(SHARDS["device-0"].x[:0], SHARDS["device-0"].y[:0])}
    with_it, without = fresh(method, {**SHARDS, **nobody}), fresh(method, SHARDS)
    after(*with_it, [*SHARDS, "device-9"])
    after(*without, sorted(SHARDS))
    assert same(with_it[0].payload(), without[0].payload())
    assert "round 1: this device has no training sample, so it takes no part" in caplog.text
    words = (
        "device-9 takes no part in the head of round 1: it has no class with method.least_samples = 5 samples"
    )
    assert words in caplog.text
    assert (with_it[0].unused(), without[0].unused()) == ({"device-9"}, set())


@pytest.mark.parametrize("method", [name for name in METHODS if "counts" in load(name).arrays])
def test_impossible_counts_are_refused_with_value_and_limit(method):
    server, clients = fresh(method)
    server.begin(1, [])
    ask = next(server.round())
    sent = answer(clients["device-0"], ask, 1)
    for counts, words in (
        ([8, 8, 9], "counts add up to 25, of a device with 24 examples"), ([0, 8, 8], "counts has 0, below 1"),
        ([-5, 8, 8], "counts has -5, below 1"), ([1.5, 8, 8], "counts is float32, not int64"),
    ):  # fmt: skip
        wrong = {**sent, "counts": torch.tensor(counts)}
        assert ask.problem_with(wrong, 24).message == words


@every_method
def test_an_answer_that_the_server_half_refuses_is_named_and_left_out(method, caplog, monkeypatch):
    kind, without = load(method).Server, {n: s for n, s in FOUR.items() if n != "device-1"}
    refusal = "its trace is 9, not 7"
    monkeypatch.setattr(kind, "refusal", lambda self, reply: refusal if reply.device == "device-1" else "")
    found = after(*fresh(method), sorted(FOUR))
    assert same(found, after(*fresh(method, without), sorted(without)))
    assert f"the answer of device-1 to round 1 is not used: {refusal}" in caplog.text


@every_method
def test_impossible_settings_are_refused_with_value_and_limit(method):
    with pytest.raises(ValueError, match="least_samples is 0, it must be at least 1"):
        load(method).Hyper(least_samples=0)
    with pytest.raises(ValueError, match="features is 'half', it must be one of normalised, raw"):
        load(method).Hyper(features="half")


MEANS = [name for name in METHODS if "prototypes" in load(name).arrays]


@pytest.mark.parametrize("method", MEANS)
def test_means_of_normalised_features_have_a_largest_norm_and_raw_means_have_none(method):
    server, clients = fresh(method)
    ask = next(server.round())
    sent = answer(clients["device-0"], ask, 1)
    most = ROW_ROOM * math.sqrt(tiny().embedding_size)
    long = {**sent, "prototypes": sent["prototypes"] * 1.01 * most / sent["prototypes"].norm(dim=1).max()}
    words = f"prototypes has a row with a norm of {1.01 * most:.4g}"
    assert ask.problem_with(long, 24).message.startswith(words)
    raw = next(fresh(method, features="raw")[0].round())
    assert raw.problem_with(long, 24) is None


def test_a_simulation_whose_devices_can_give_no_head_raises_the_reason():
    few = SHARDS["device-0"].x[:3].numpy(), SHARDS["device-0"].y[:3].numpy()
    data = {name: Data(train=few, test=few, classes=3) for name in ("a", "b")}
    words = (
        "fedncm: none of the 2 devices that have answered has a class with method.least_samples = 5 samples"
    )
    with pytest.raises(SettingsError, match=words):
        simulate("fedncm", data, rounds=1)
