"""Tests of classes with too few samples, for all methods that train and send rows of classes."""

import logging

import pytest
import torch

from protofleet.methods.contract.base import Reply
from protofleet.methods.contract.catalog import load, names
from protofleet.methods.parts.clusters import large_clusters
from protofleet.methods.parts.small_classes import ClassMeansHyper, LeastSamplesHyper
from tests.methods.tiny import clients_of, play, same, server_of

METHODS = [name for name in names() if issubclass(load(name).Hyper, LeastSamplesHyper)]
CAREFUL = [name for name in METHODS if issubclass(load(name).Hyper, ClassMeansHyper)]
WITH_LABELS = [name for name in METHODS if "labels" in load(name).arrays]
LOCAL = {"epochs": 1, "batch": 8, "lr": 0.05}


def played(method, **hyper):
    """Return the answers of the first phase of a round, by device, and the figures of the server half."""
    chosen = load(method).Hyper(**LOCAL, **hyper)
    server, clients = server_of(load(method), chosen), clients_of(load(method), chosen)
    return play(server, clients, 1)[0], server.monitor()


def labels_of(sent):
    return {name: sorted(set(answer["labels"].tolist())) for name, answer in sent.items()}


def test_the_methods_that_send_rows_of_classes_have_the_setting_least_samples():
    assert CAREFUL == ["feddap", "fedgh", "fedpcl", "tinyproto"]
    assert sorted({*METHODS} - {*CAREFUL}) == [
        "feddistill", "fedhp", "fednh", "fedpall", "fedplcc", "fedplvm", "fedproto", "fedsa", "fedtgp", "fpl", "rucr",
    ]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_least_samples_is_5_for_methods_of_class_means_and_otherwise_1(method):
    assert load(method).Hyper().least_samples == (5 if method in CAREFUL else 1)
    with pytest.raises(ValueError, match="least_samples is 0, it must be at least 1"):
        load(method).Hyper(least_samples=0)


@pytest.mark.parametrize("method", METHODS)
def test_a_class_with_few_samples_is_not_sent_and_both_parties_report_it(method, caplog):
    with caplog.at_level(logging.WARNING, "protofleet.device"):
        sent, figures = played(
            method, least_samples=5
        )  # device-2 has 5 samples of class 2 and only 2 of class 0.
    if method in WITH_LABELS:
        assert labels_of(sent) == {"device-0": [0, 1, 2], "device-1": [0, 1], "device-2": [2]}
    (line,) = [record.getMessage() for record in caplog.records if record.name == "protofleet.device"]
    assert "round 1: the classes 0 have fewer than method.least_samples = 5 samples here, so nothing" in line
    assert [figures[f"devices.{label}"] for label in range(3)] == [2, 2, 2]


@pytest.mark.parametrize("method", WITH_LABELS)
def test_each_class_is_sent_if_least_samples_is_1(method):
    sent, figures = played(method, least_samples=1)
    assert labels_of(sent)["device-2"] == [0, 2]
    assert figures.get("devices.0") == (3 if method in CAREFUL else None), "the paper's records do not change"


@pytest.mark.parametrize("method", METHODS)
def test_a_limit_below_the_size_of_each_class_changes_no_bit(method):
    usual, limited = played(method, least_samples=1)[0], played(method, least_samples=2)[0]
    if method in ("fedplcc", "fedplvm"):  # A cluster of one sample is pooled with others.
        assert labels_of(usual) == labels_of(limited)
    else:
        assert all(same(usual[name], limited[name]) for name in usual)


def test_small_clusters_are_merged_and_a_merged_cluster_that_is_small_is_left_out():
    means = torch.tensor([[0.0], [1.0], [4.0], [9.0]])
    rows, counts = large_clusters(means, torch.tensor([5, 1, 3, 6]), 4)
    assert counts.tolist() == [5, 6, 4] and rows.flatten().tolist() == [0.0, 9.0, (1.0 + 3 * 4.0) / 4]
    rows, counts = large_clusters(means, torch.tensor([5, 1, 2, 6]), 4)
    assert counts.tolist() == [5, 6] and rows.flatten().tolist() == [0.0, 9.0]
    rows, counts = large_clusters(means[:1], torch.tensor([4]), 4)
    assert counts.tolist() == [4] and torch.equal(rows, means[:1])


def test_fedhp_sends_the_row_of_a_small_class_unchanged():
    method, chosen = load("fedhp"), load("fedhp").Hyper(**LOCAL, least_samples=5, init_steps=2)
    server, clients = server_of(method, chosen), clients_of(method, chosen)
    received = server.payload()["prototypes"].clone()
    sent = play(server, clients, 1)[0]["device-2"]["prototypes"]
    assert torch.equal(sent[0], received[0]), "of class 0 the device has 2 samples"
    assert not torch.equal(sent[1], received[1]), (
        "of class 1 it has none, so other classes have moved the row"
    )
    assert not torch.equal(sent[2], received[2])


def test_fedpall_mixes_no_feature_of_a_small_class():
    method, chosen = load("fedpall"), load("fedpall").Hyper(**LOCAL, least_samples=5)
    mixed = play(server_of(method, chosen), clients_of(method, chosen), 1)[1]["device-2"]
    assert mixed["labels"].tolist() == [2] * 5 and len(mixed["features"]) == 5


def test_a_combined_reply_counts_each_of_its_devices():
    method, chosen = load("fedproto"), load("fedproto").Hyper(**LOCAL, least_samples=5)
    server, clients = server_of(method, chosen), clients_of(method, chosen)
    sent = play(server, clients, 1)[0]["device-0"]
    server.begin(2, [])
    round = server.round()
    next(round)
    with pytest.raises(StopIteration):
        round.send([Reply("combined", 20, sent, devices_of_class={0: 3, 2: 1})])
    figures = server.monitor()
    assert [figures[f"devices.{label}"] for label in range(3)] == [3, 0, 1]
