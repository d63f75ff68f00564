"""Tests of a client whose broker has several nodes: settings, the order of tries, errors and log lines."""

import logging
import os
import re
import signal
import socket
import time
from dataclasses import replace

import pytest

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.edge_client.config import DeviceSettings
from protofleet.federation.remote.settings import OperatorSettings
from protofleet.lab.local.experiment import BrokerChoice
from protofleet.protocol.settings.reader import SettingsError, decode, encode
from protofleet.protocol.transport import mqtt, network
from protofleet.protocol.transport.address import BrokerAddress, preflight
from protofleet.protocol.transport.base import Connected, Disconnected
from protofleet.protocol.transport.broker_nodes import BrokerNode, drawn_index
from tests.conftest import PATIENCE
from tests.support.scripted_broker import WELCOME, connack, disconnect

TWO = ["a.example:8883", "b.example:8884"]
NOT_AUTHORIZED, SERVER_BUSY, USE_ANOTHER_SERVER = 135, 137, 156


def with_nodes(*ports):
    return BrokerAddress(hosts=tuple(f"127.0.0.1:{port}" for port in ports))


@pytest.fixture
def closed_ports():
    """Return three ports that stay bound, so that no server listens there and no other process takes them."""
    silent = [socket.socket() for _ in range(3)]
    for one in silent:
        one.bind(("127.0.0.1", 0))
    yield [one.getsockname()[1] for one in silent]
    for one in silent:
        one.close()


@pytest.fixture
def two(start_mosquitto):
    return start_mosquitto(), start_mosquitto()


def drawn_first(name, brokers):
    """Return the brokers in the order in which the client with this name tries them."""
    first = drawn_index(name, len(brokers))
    return [*brokers[first:], *brokers[:first]]


@pytest.mark.parametrize(
    ("cls", "table"),
    [
        (DeviceSettings, {"name": "d1"}),
        (CoordinatorSettings, {"name": "r", "rounds": 1, "classes": 2, "method": {"name": "fedavg"}}),
        (OperatorSettings, {}),
    ],
)
def test_the_settings_of_each_party_accept_several_nodes_and_write_them_unchanged(cls, table):
    made = decode(cls, {**table, "broker": {"hosts": TWO}})
    assert made.broker.nodes == (BrokerNode("a.example", 8883), BrokerNode("b.example", 8884))
    assert str(made.broker) == "a.example:8883, b.example:8884"
    written = encode(made)
    assert written["broker"]["hosts"] == TWO and not {"host", "port"} & written["broker"].keys()
    assert decode(cls, written) == made


def test_an_experiment_accepts_several_nodes():
    choice = decode(BrokerChoice, {"kind": "external", "address": {"hosts": TWO}}, "broker")
    assert [str(node) for node in choice.address.nodes] == TWO


def test_an_address_of_one_node_is_read_and_written_as_host_and_port():
    assert encode(BrokerAddress()) == {
        "host": "127.0.0.1", "port": 1883, "block_qos": 1, "block_bytes": 65_536,
    }  # fmt: skip
    made = decode(BrokerAddress, {"host": "hall", "port": 8883})
    assert made.nodes == (BrokerNode("hall", 8883),) and str(made) == "hall:8883"
    assert decode(BrokerAddress, {"host": "hall"}).nodes == (BrokerNode("hall", 1883),)
    assert replace(made, port=2).nodes == (BrokerNode("hall", 2),)


def test_an_ipv6_address_in_brackets_is_read():
    assert decode(BrokerAddress, {"hosts": ["[::1]:8883"]}).nodes == (BrokerNode("::1", 8883),)


@pytest.mark.parametrize(
    ("broker", "words"),
    [
        ({"hosts": []}, 'broker.hosts is empty, it must name an address, such as "broker-1.example:8883"'),
        ({"hosts": TWO, "host": "c"}, "broker.hosts is set beside host; leave out host and port, or leave out hosts"),
        # The default is no exception.
        ({"hosts": TWO, "host": "127.0.0.1"}, "broker.hosts is set beside host; leave out host and port"),
        ({"hosts": TWO, "port": 1883}, "broker.hosts is set beside port; leave out host and port"),
        ({"hosts": [*TWO, "A.example:8883"]}, "broker.hosts is wrong, it names A.example:8883 twice"),
        ({"hosts": ["a"]}, "broker.hosts is wrong, 'a' is not of the form HOST:PORT with a port from 1 to 65535"),
        ({"hosts": ["a:0"]}, "broker.hosts is wrong, 'a:0' is not of the form HOST:PORT"),
        ({"hosts": ["a:65536"]}, "broker.hosts is wrong, 'a:65536' is not of the form HOST:PORT"),
        ({"hosts": ["a:" + "9" * 5000]}, "is not of the form HOST:PORT"),
        ({"hosts": ["a:\u0661"]}, "is not of the form HOST:PORT"),
        ({"hosts": [":8883"]}, "broker.hosts is wrong, ':8883' is not of the form HOST:PORT"),
        ({"hosts": ["::1:8883"]}, "an IPv6 address is in brackets"),
        ({"hosts": ["a..b:8883"]}, "broker.hosts is wrong, 'a..b:8883' is not of the form HOST:PORT"),
        ({"hosts": "a:8883"}, 'broker.hosts is "a:8883", but must be a list'),
        ({"hosts": [8883]}, "broker.hosts[0] is 8883, but must be a string"),
    ],
)  # fmt: skip
def test_a_wrong_list_of_nodes_is_refused_in_one_line(broker, words):
    with pytest.raises(SettingsError, match=re.escape(words)) as caught:
        decode(DeviceSettings, {"name": "d1", "broker": broker})
    assert "\n" not in str(caught.value)


def test_each_name_always_draws_the_same_node_and_all_nodes_are_drawn_evenly():
    names = [f"protofleet.device-{i}" for i in range(900)]
    drawn = [drawn_index(name, 3) for name in names]
    assert drawn == [drawn_index(name, 3) for name in names]
    assert all(250 < drawn.count(i) < 350 for i in range(3))


def test_a_client_begins_at_the_node_that_its_name_draws_and_the_log_names_it(two, peer, federation, caplog):
    caplog.set_level(logging.INFO)
    names = iter(f"d{i}" for i in range(100))
    for place, broker in enumerate(two):
        name = next(name for name in names if drawn_index(f"{federation}.{name}", 2) == place)
        peer(name, with_nodes(*(one.port for one in two))).ready()
        assert f"{federation}.{name} is connected to the broker at 127.0.0.1:{broker.port}" in caplog.text


def test_a_client_of_one_node_does_not_log_where_it_is_connected(broker, peer, caplog):
    caplog.set_level(logging.INFO)
    peer("d", broker.address).ready()
    assert "is connected to the broker" not in caplog.text


def test_a_client_goes_to_the_other_node_with_its_topics_when_its_node_is_killed(
    two, peer, federation, caplog
):
    caplog.set_level(logging.INFO)
    topic = f"{federation}/down/d"
    device = peer("d", with_nodes(*(one.port for one in two)), subscriptions=[topic]).ready()
    first, second = drawn_first(f"{federation}.d", two)
    first.kill()
    lost = device.next(Disconnected)
    assert not lost.final and lost.reason.startswith(f"127.0.0.1:{first.port}: ")
    device.ready()
    assert f"connected to the broker at 127.0.0.1:{second.port}" in caplog.text
    peer("c", second.address).ready().mqtt.publish(topic, b"task")
    assert device.frame(topic) == b"task"


def test_a_client_connects_to_the_only_node_that_answers_without_an_error(broker, peer, closed_ports):
    for place in range(4):
        ports = [*closed_ports[:place], broker.port, *closed_ports[place:]]
        assert isinstance(peer(f"d{place}", with_nodes(*ports)).inbox.get(timeout=PATIENCE), Connected)


def test_the_error_names_each_node_in_the_order_of_the_setting_if_none_answers(peer, closed_ports):
    device = peer("d", with_nodes(*closed_ports))
    lost = device.next(Disconnected)
    places = [f"127.0.0.1:{port}: nothing listens there" for port in closed_ports]
    assert not lost.final and lost.reason.startswith(
        "none of the 3 addresses of the broker accepts this client: "
    )
    assert re.search(".*; ".join(map(re.escape, places)), lost.reason) and "\n" not in lost.reason
    # A log shows a reason again only when it has changed.
    assert device.next(Disconnected).reason == lost.reason


def test_the_preflight_passes_if_one_node_answers_and_names_all_nodes_if_none_does(broker, closed_ports):
    assert preflight(with_nodes(*closed_ports, broker.port), seconds=PATIENCE) is None
    problem = preflight(with_nodes(*closed_ports), seconds=PATIENCE) or ""
    assert all(f"127.0.0.1:{port}: nothing listens there" in problem for port in closed_ports)


def test_a_final_refusal_by_one_node_does_not_end_a_client_that_another_accepts(scripted, peer, federation):
    refusing, accepting = scripted([connack(NOT_AUTHORIZED), None]), scripted([WELCOME])
    pair = [refusing, accepting]
    if drawn_first(f"{federation}.d", pair)[0] is accepting:
        pair.reverse()
    device = peer("d", with_nodes(*(one.address.port for one in pair)))
    assert isinstance(device.inbox.get(timeout=PATIENCE), Connected)


def test_a_refusal_by_all_nodes_is_final(scripted, peer):
    pair = [scripted([connack(NOT_AUTHORIZED), None]) for _ in range(2)]
    lost = peer("d", with_nodes(*(one.address.port for one in pair))).next(Disconnected)
    assert lost.final
    assert all(f"{one.address}: it does not allow this" in lost.reason for one in pair)


def test_a_refusal_by_one_node_is_not_final_while_another_node_is_unreachable(scripted, peer, closed_ports):
    refusing = scripted([connack(NOT_AUTHORIZED), None])
    lost = peer("d", with_nodes(refusing.address.port, closed_ports[0])).next(Disconnected)
    assert (
        not lost.final and "it does not allow this" in lost.reason and "nothing listens there" in lost.reason
    )


def test_a_client_goes_to_another_node_if_its_node_requests_it(scripted, peer, federation):
    pair = [scripted([WELCOME]), scripted([WELCOME])]
    first, second = drawn_first(f"{federation}.d", pair)
    device = peer("d", with_nodes(*(one.address.port for one in pair)))
    device.next(Connected)
    first.say(disconnect(USE_ANOTHER_SERVER))
    assert not device.next(Disconnected).final
    device.next(Connected)
    assert second.connected


def test_a_client_of_one_node_ends_when_it_is_sent_to_another_server(scripted, peer):
    only = scripted([WELCOME])
    device = peer("d", only.address)
    device.next(Connected)
    only.say(disconnect(USE_ANOTHER_SERVER))
    assert device.next(Disconnected).final


def test_the_time_limits_allow_a_change_of_node_within_twice_the_keepalive():
    silence = mqtt.KEEPALIVE_SECONDS + network.CHECK_SECONDS + mqtt.ANSWER_SECONDS + network.CHECK_SECONDS
    assert silence + mqtt.CONNECT_SECONDS <= 2 * mqtt.KEEPALIVE_SECONDS


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_client_of_a_hanging_node_moves_to_the_other_node_within_two_keepalives(two, peer, federation):
    device = peer("d", with_nodes(*(one.port for one in two))).ready()
    first, _ = drawn_first(f"{federation}.d", two)
    began = time.monotonic()
    os.killpg(first.process_group, signal.SIGSTOP)
    try:
        deadline = began + 2 * mqtt.KEEPALIVE_SECONDS
        lost = device.inbox.get(timeout=deadline - time.monotonic())
        assert isinstance(lost, Disconnected) and "it is silent" in lost.reason
        assert isinstance(device.inbox.get(timeout=deadline - time.monotonic()), Connected)
    finally:
        os.killpg(first.process_group, signal.SIGCONT)
