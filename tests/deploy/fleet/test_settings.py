"""The fleet file determines the settings of the coordinator and of each device."""

import io
import re
import socket
import sys
import tarfile

import pytest

from protofleet.coordinator.service_settings import ServiceSettings
from protofleet.deploy.fleet.copies import check
from protofleet.deploy.fleet.device.facts import read_facts
from protofleet.deploy.fleet.device.scripts import HostRole
from protofleet.deploy.fleet.settings import Fleet, coordinator_settings, device_settings, queue_settings
from protofleet.deploy.fleet.setup.daily_bytes import describe_bytes
from protofleet.deploy.fleet.ssh import run_program
from protofleet.protocol.settings.reader import SettingsError, decode, parse_toml, write_toml

METRICS = {"metrics_port": 9101}


def shipped(address, device=METRICS, own=None):
    fleet = decode(
        Fleet, {"root": "root", "device": device, "hosts": {"b": {"address": address, "device": own or {}}}}
    )
    return device_settings(fleet, "lab", "b")


@pytest.mark.parametrize("address", ["10.0.0.11", "fd00::11"])
def test_metrics_are_served_at_the_address_in_the_fleet_file(address):
    assert shipped(address).metrics_host == address


def test_a_host_with_a_name_as_address_needs_metrics_host():
    """On the device the name may mean the loopback, as on Debian, or may be unknown."""
    with pytest.raises(
        SettingsError, match=r"the address of this host is a name, 'board-1'; set metrics_host to the address"
    ):
        shipped("board-1")
    assert shipped("board-1", own={"metrics_host": "10.0.0.11"}).metrics_host == "10.0.0.11"
    assert shipped("board-1", {**METRICS, "metrics_host": "0.0.0.0"}).metrics_host == "0.0.0.0"
    assert shipped("board-1", {}).metrics_host == "127.0.0.1", "there are no metrics to serve"


@pytest.mark.parametrize(
    ("first", "second", "refused"),
    [
        ({"address": "b.example"}, {"address": "B.example"}, True),
        ({"address": "10.0.0.1", "port": 22}, {"address": "10.0.0.1", "port": 22, "user": "root"}, True),
        ({"address": "10.0.0.1", "port": 22}, {"address": "10.0.0.1", "port": 2222}, False),
        ({"address": "10.0.0.1"}, {"address": "10.0.0.2"}, False),
    ],
)
def test_two_devices_on_one_host_are_refused_with_both_names(first, second, refused):
    table = {"root": "root", "hosts": {"a_b": first, "a.b": second}}
    if not refused:
        assert {*decode(Fleet, table).hosts} == {"a_b", "a.b"}
        return
    with pytest.raises(
        SettingsError, match=r"hosts a_b and a\.b have the same address, .*: leave out one of the two hosts"
    ):
        decode(Fleet, table)


def with_coordinator(**coordinator):
    hosts = {"coordinator": {"address": "10.0.0.10", "role": "coordinator"}}
    return decode(Fleet, {"root": "root", "coordinator": coordinator, "hosts": hosts})


def test_a_coordinator_table_without_a_run_is_deployed_as_a_queue():
    fleet = with_coordinator(slots=3, page_port=9180)
    found = queue_settings(fleet, "lab")
    assert found.queue.slots == 3 and found.own == coordinator_settings(fleet, "lab")
    assert (found.own.folder, found.own.page_port) == ("/var/lib/protofleet-coordinator/runs", 9180)
    there = ServiceSettings.of(parse_toml(write_toml(found.encoded()).encode(), "the file on the host"))
    assert there.own == found.own and there.queue == found.queue
    assert "depend on the runs that are submitted" in describe_bytes(found.own, has_queue=True)
    run = {"name": "first", "rounds": 3, "classes": 10, "method": {"name": "fedavg"}}
    assert queue_settings(with_coordinator(**run), "lab") is None


def test_a_setting_of_a_run_is_refused_for_a_coordinator_with_a_queue():
    with pytest.raises(
        SettingsError, match="^coordinator: policy belongs to a run, and this file names no run"
    ):
        queue_settings(with_coordinator(policy={"quorum": 2}), "lab")


@pytest.mark.parametrize(("held", "wanted", "words"), [
    ("runs/.queue/service.sqlite", "", ""), ("runs/first/coordinator/spool.sqlite", "", "holds no queue of runs"),
    ("runs/first/coordinator/spool.sqlite", "first", ""),
])  # fmt: skip
def test_a_backup_is_restored_only_for_a_coordinator_that_can_use_it(tmp_path, held, wanted, words):
    with tarfile.open(tmp_path / "runs.tar", "w") as copy:
        copy.addfile(tarfile.TarInfo(held), io.BytesIO())
    if not words:
        return check(tmp_path, wanted)
    with pytest.raises(SettingsError, match=words):
        check(tmp_path, wanted)


NODES = ["a.example:8883", "b.example:8883"]


def with_brokers(common, device=None, coordinator=None, **more):
    hosts = {
        "b": {"address": "10.0.0.11", "device": {"broker": device} if device else {}},
        "coordinator": {"address": "10.0.0.10", "role": "coordinator"}, **more,
    }  # fmt: skip
    table = {"root": "root", "broker": "broker", "device": {"broker": common}, "hosts": hosts}
    return decode(Fleet, {**table, "coordinator": {"broker": coordinator} if coordinator else {}})


@pytest.mark.parametrize(
    ("common", "own", "nodes"),
    [
        ({"hosts": NODES}, None, NODES),
        ({"hosts": NODES}, {"host": "c.example", "port": 8884}, ["c.example:8884"]),
        ({"host": "c.example", "port": 8884}, {"hosts": NODES}, NODES),
        ({"hosts": NODES}, {"hosts": NODES[:1]}, NODES[:1]),
        ({"host": "c.example", "port": 8884}, {"host": "d.example"}, ["d.example:8884"]),
        ({"hosts": NODES}, {"block_qos": 0}, NODES),
    ],
)
def test_a_broker_address_of_one_host_replaces_the_common_address(common, own, nodes):
    device = device_settings(with_brokers(common, device=own), "lab", "b")
    assert [str(node) for node in device.broker.nodes] == nodes
    coordinator = coordinator_settings(with_brokers(common, coordinator=own), "lab")
    assert [str(node) for node in coordinator.broker.nodes] == nodes


def test_several_broker_nodes_are_refused_if_the_fleet_deploys_a_broker():
    words = (
        "device.broker.hosts names the nodes of a cluster, but the broker of host m is a single Mosquitto; set "
        "device.broker.host and port, or leave out [hosts.m]"
    )
    with pytest.raises(SettingsError, match=re.escape(words)):
        with_brokers({"hosts": NODES}, m={"address": "10.0.0.12", "role": "broker"})


@pytest.mark.slow
def test_a_host_reaches_the_broker_if_one_of_its_nodes_listens():
    with socket.socket() as silent, socket.create_server(("127.0.0.1", 0)) as server:
        silent.bind(("127.0.0.1", 0))
        closed, open_ = (str(one.getsockname()[1]) for one in (silent, server))
        assert read_deep_facts(closed, open_).probe.broker_tcp
        assert read_deep_facts(closed).probe.broker_tcp is False


def read_deep_facts(*ports):
    hosts = ",".join("127.0.0.1" for _ in ports)
    command = ["sh", "-s", "--", "deep", sys.executable, hosts, ",".join(ports)]
    return read_facts(run_program(command, HostRole().facts, 120.0).out)
