"""Brokers that say what a test has written down."""

import pytest

from protofleet.protocol.transport import mqtt
from tests.conftest import PATIENCE
from tests.support.scripted_broker import ScriptedBroker


@pytest.fixture
def scripted():
    brokers = []

    def start(*scripts):
        brokers.append(ScriptedBroker(*scripts))
        return brokers[-1]

    yield start
    for broker in brokers:
        broker.close()


@pytest.fixture
def time_to_leave(monkeypatch):
    """For what has to leave, or to be over, when a connection is closed: a program waits a second, and then goes."""
    monkeypatch.setattr(mqtt, "LEAVE_SECONDS", PATIENCE)
