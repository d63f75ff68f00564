"""Tests of classes with too few samples, for all methods that train and send class means."""

import logging

import pytest

from protofleet.methods.contract.catalog import load, names
from protofleet.methods.parts.small_classes import ClassMeansHyper
from tests.methods.tiny import clients_of, play, server_of

METHODS = [name for name in names() if issubclass(load(name).Hyper, ClassMeansHyper)]
LOCAL = {"epochs": 1, "batch": 8, "lr": 0.05}


def played(method, **hyper):
    chosen = load(method).Hyper(**LOCAL, **hyper)
    server, clients = server_of(load(method), chosen), clients_of(load(method), chosen)
    sent = play(server, clients, 1)[0]
    return {name: answer["labels"].tolist() for name, answer in sent.items()}, server.monitor()


def test_the_methods_that_send_class_means_have_the_setting():
    assert METHODS == ["feddap", "fedgh", "fedpcl", "tinyproto"]


@pytest.mark.parametrize("method", METHODS)
def test_a_class_with_few_samples_is_not_sent_and_both_parties_say_so(method, caplog):
    with caplog.at_level(logging.WARNING, "protofleet.device"):
        sent, figures = played(method)  # device-2 has 5 samples of class 2 and only 2 of class 0.
    assert sent == {"device-0": [0, 1, 2], "device-1": [0, 1], "device-2": [2]}
    (line,) = [record.getMessage() for record in caplog.records if record.name == "protofleet.device"]
    assert "round 1: the classes 0 have fewer than method.least_samples = 5 samples here, so nothing" in line
    assert [figures[f"devices.{label}"] for label in range(3)] == [2, 2, 2]


@pytest.mark.parametrize("method", METHODS)
def test_with_the_papers_number_every_class_is_sent(method):
    sent, figures = played(method, least_samples=1)
    assert sent["device-2"] == [0, 2] and figures["devices.0"] == 3
    with pytest.raises(ValueError, match="least_samples is 0, it must be at least 1"):
        load(method).Hyper(least_samples=0)
