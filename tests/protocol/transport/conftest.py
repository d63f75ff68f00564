"""Brokers that say what a test has written down."""

import pytest

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
