"""Tests of the log lines of a party about its connection, and of the time after which it gives up."""

import logging

import pytest

from protofleet.protocol.transport.address import BrokerError
from protofleet.runtime.broker_session import NEVER, BrokerSession


@pytest.fixture
def session(caplog):
    caplog.set_level(logging.INFO)
    return BrokerSession(logging.getLogger("protofleet.tests"))


def test_a_lost_connection_each_new_reason_and_the_return_are_logged_once(session, caplog):
    session.accepted()
    session.stands(1.0)
    for at, reason in ((10.0, "reset"), (11.0, "refused"), (15.0, "refused"), (20.0, "no route")):
        assert session.lost(reason, final=False, now=at) == ""
    session.accepted()
    session.stands(72.0)
    assert caplog.messages == [
        "connection to the broker lost: reset",
        "still no connection: refused",
        "still no connection: no route",
        "connected to the broker again, after 62 s",
    ]
    session.lost("reset", final=False, now=100.0)
    session.stands(101.0)
    assert caplog.messages[4:] == [
        "connection to the broker lost: reset",
        "connected to the broker again, after 1 s",
    ]


def test_the_first_connection_is_not_logged_as_a_return(session, caplog):
    session.lost("refused", final=False, now=0.0)
    session.accepted()
    session.stands(5.0)
    assert caplog.messages == ["refused; trying again"]


def test_a_connection_that_its_party_rejects_is_not_logged_as_a_return(session, caplog):
    session.accepted()
    session.stands(0.0)
    session.lost("reset", final=False, now=10.0)
    session.accepted()
    session.lost("it takes packets of 1024 bytes", final=False, now=12.0)
    assert not any("again" in line for line in caplog.messages)
    session.stands(30.0)
    assert caplog.messages[-1] == "connected to the broker again, after 20 s"


def test_a_session_gives_up_with_the_last_reason_if_no_connection_was_accepted(session):
    session.give_up_after(60.0, now=5.0)
    assert session.wake_at == 65.0
    session.lost("connection refused", final=False, now=6.0)
    session.check(64.9)
    with pytest.raises(BrokerError, match="connection refused; gave up after 60 s"):
        session.check(65.0)
    session.accepted()
    session.check(1e9)
    assert session.wake_at == NEVER


def test_a_final_refusal_and_the_end_of_a_session_have_different_reasons(session):
    assert session.lost("not authorised", final=True, now=0.0) == "not authorised"
    session.accepted()
    assert session.lost("taken over", final=True, now=1.0) == "the broker ended the session: taken over"
