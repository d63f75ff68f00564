"""A standby speaks with the coordinator over a real Mosquitto, and does not end the connection of the coordinator."""

import queue

import pytest

from protofleet.federation.enrol import disconnect
from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.link.standby import StandbyLink
from protofleet.protocol.security.keys import Identity, Keys
from protofleet.protocol.transport.address import BrokerError, preflight
from protofleet.protocol.transport.base import Arrived, Connected, Denied, Disconnected
from protofleet.protocol.wire.messages import Probe, State, StepDown
from protofleet.protocol.wire.names import COORDINATOR, STANDBY
from protofleet.protocol.wire.topics import Topics
from tests.conftest import PATIENCE, Peer, missing
from tests.support.secured_broker import start_enrolled

EPOCH = 1_800_000_000


@pytest.fixture
def secured(tmp_path):
    try:
        made = start_enrolled(tmp_path, "d1")
    except BrokerError as error:
        missing(error)
    yield made
    made.broker.stop()


@pytest.fixture
def pair(secured):
    """Yield the peer and the link of a coordinator that leads, and those of a standby."""
    topics, keys = Topics(secured.federation), Keys.new()
    subscriptions = topics.coordinator_subscriptions()
    leader = Peer(COORDINATOR, secured.address(COORDINATOR), subscriptions=subscriptions)
    standby = Peer(STANDBY, secured.address(STANDBY), subscriptions=topics.standby_subscriptions())
    for peer in (leader, standby):
        peer.next(Connected)
    # A broker works in order: when it has taken this message, it has taken the subscriptions before it.
    leader.mqtt.publish(topics.down("d1"), b"here")
    assert leader.mqtt.flush(PATIENCE)
    link = CoordinatorLink(Identity(COORDINATOR, EPOCH, keys), {}, topics, leader.mqtt)
    yield leader, link, standby, StandbyLink(keys, topics, standby.mqtt)
    leader.mqtt.close()
    standby.mqtt.close()


def test_a_standby_and_the_coordinator_exchange_messages_while_both_stay_connected(secured, pair):
    leader, link, standby, asks = pair
    topics = Topics(secured.federation)
    asks.probe()
    asks.step_down(EPOCH, "hall-2")
    heard = [leader.next(Arrived) for _ in range(2)]
    received = [one for item in heard for one in link.arrived(item.topic, item.frame, 0.0)]
    assert [one.message for one in received] == [Probe(), StepDown(EPOCH, "hall-2")]
    link.announce(State(True, who="hall-1"), retain=True)
    item = standby.next(Arrived)
    seen = asks.arrived(item.topic, item.frame, item.retained)
    assert (seen.epoch, seen.state.who, seen.retained) == (EPOCH, "hall-1", False)
    standby.mqtt.publish(topics.coord_state, b"x")
    assert "Not authorized" in standby.next(Denied).reason
    leader.next(Arrived)  # its own state
    with pytest.raises(queue.Empty):
        leader.inbox.get_nowait()


def test_a_revocation_of_the_coordinator_ends_both_connections(secured, pair, monkeypatch):
    monkeypatch.setattr(disconnect, "RELOAD_SECONDS", PATIENCE)
    leader, _, standby, _ = pair
    fleet = secured.fleet
    said = disconnect.revoke_and_disconnect(
        fleet.authority(), COORDINATOR, "stolen", fleet.folder_of("broker")
    )
    assert said.startswith("coordinator is revoked (2 certificates)")
    for peer in (leader, standby):
        peer.next(Disconnected, lambda item: item.final or "has been revoked" in item.reason)
        assert "has been revoked" in preflight(secured.address(peer.name))
