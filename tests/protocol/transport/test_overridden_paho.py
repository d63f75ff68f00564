"""Tests of the private methods of paho that StreamClient overrides; a new paho that moves one fails here."""

import inspect
import re

import pytest
from paho.mqtt.client import CallbackAPIVersion, Client

from protofleet.protocol.transport.stream import StreamClient

# The private methods of paho that StreamClient overrides: their parameters, and the method of paho that calls them.
OVERRIDDEN = {
    "_sock_recv": (["self", "bufsize"], "_packet_read"),
    "_sock_send": (["self", "buf"], "_packet_write"),
}


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_paho_has_the_private_method_that_we_override_with_the_same_parameters(name):
    parameters, _ = OVERRIDDEN[name]
    assert hasattr(Client, name), f"paho has no Client.{name} any more: see protocol/transport/stream.py"
    for client in (Client, StreamClient):
        assert list(inspect.signature(getattr(client, name)).parameters) == parameters


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_paho_reads_and_writes_its_socket_through_the_method_that_we_override(name):
    _, caller = OVERRIDDEN[name]
    assert f"self.{name}(" in inspect.getsource(getattr(Client, caller)), f"{caller} does not call {name}"


@pytest.mark.parametrize(
    ("call", "name"), [(r"_sock\.recv\(|_sock_recv\(", "_sock_recv"), (r"_sock\.send\(", "_sock_send")]
)
def test_no_other_method_of_paho_moves_bytes_of_the_mqtt_stream(call, name):
    """A method that used the socket itself would miss bytes that StreamClient has read, or overtake waiting bytes."""
    found = {
        method
        for method, function in inspect.getmembers(Client, inspect.isfunction)
        if re.search(call, inspect.getsource(function))
    }
    assert found - {name} <= {"_packet_read"}


def test_no_other_name_of_stream_client_exists_in_paho():
    """A new paho that used one of these names would share our state without an error."""
    theirs = {*dir(Client), *vars(Client(CallbackAPIVersion.VERSION2))}
    ours = {*vars(StreamClient), *vars(StreamClient(CallbackAPIVersion.VERSION2))} - vars(
        Client(CallbackAPIVersion.VERSION2)
    ).keys()
    dunder = {name for name in ours if name.startswith("__")}
    assert (ours - dunder) & theirs == set(OVERRIDDEN)
