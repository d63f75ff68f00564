"""Fixtures with brokers that send the packets that a test has written down."""

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
    """Give a closing connection PATIENCE seconds to send its last packets; a program waits only one second."""
    monkeypatch.setattr(mqtt, "LEAVE_SECONDS", PATIENCE)
