"""Silent connections to a real process's metrics delay no others, and only allowed clients connect."""

import socket
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from protofleet.cli.main import main
from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.round.policy import Policy
from protofleet.deploy.fleet.settings import device_settings, read_fleet
from protofleet.deploy.stack.__main__ import with_devices
from protofleet.deploy.stack.layout import Stack
from protofleet.deploy.stack.prepare import prepare
from protofleet.edge_client.config import DeviceSettings
from protofleet.federation.brokers.ports import free_port
from protofleet.lab.local.experiment import Experiment
from protofleet.protocol.settings.reader import decode, read_toml
from tests.hostile.federation import Federation

TINY = {"name": "tiny", "rounds": 1, "method": {"name": "fedavg"}, "data": {"source": "digits"}}
SOON = 10.0  # Seconds; it takes milliseconds on an idle machine.


@pytest.fixture
def federation(tmp_path):
    with Federation(tmp_path, "board-1") as made:
        yield made


def answer(port, path="/metrics", host="127.0.0.1", timeout=SOON, **headers):
    asked = urllib.request.Request(f"http://{host}:{port}{path}", headers=headers)
    with urllib.request.urlopen(asked, timeout=timeout) as told:
        return told.read().decode()


def serves(federation, port, host="127.0.0.1"):
    def tried():
        try:
            return "protofleet_" in answer(port, host=host)
        except OSError:
            return False

    federation.wait_until(tried, f"metrics at {host}:{port}")


def is_healthy(port, host="127.0.0.1"):
    try:
        return "loop" in answer(port, "/health", host)
    except OSError:  # The status 503 is an OSError too.
        return False


def threads_of(process):
    lines = Path(f"/proc/{process.child.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Threads:"))


def test_five_hundred_silent_connections_delay_no_scrape_and_no_probe(federation):
    coordinator = federation.coordinator()
    serves(federation, federation.metrics_port)
    federation.wait_until(partial(is_healthy, federation.metrics_port), "the coordinator to be connected")
    before = threads_of(coordinator)
    for said in (b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\nX: "):
        with ExitStack() as held:
            for _ in range(500):
                idle = socket.create_connection(("127.0.0.1", federation.metrics_port), SOON)
                held.enter_context(idle).sendall(said)
            for path, words in (("/metrics", "protofleet_round"), ("/health", "loop")):
                began = time.monotonic()
                assert words in answer(federation.metrics_port, path)
                assert time.monotonic() - began < SOON
            assert threads_of(coordinator) <= before + 2


def test_metrics_are_served_on_the_loopback_by_default(federation):
    federation.coordinator()
    serves(federation, federation.metrics_port)
    with pytest.raises(urllib.error.URLError, match="refused"):
        answer(federation.metrics_port, host="127.0.0.2")


FLEET = """\
root = "root"
[device]
metrics_port = {port}
[hosts.board-1]
address = "127.0.0.3"
"""


def test_a_deployed_device_serves_its_metrics_at_its_address_in_the_fleet_file(federation, tmp_path, capsys):
    port = free_port()
    (tmp_path / "fleet.toml").write_text(FLEET.format(port=port))
    shipped = device_settings(read_fleet(tmp_path / "fleet.toml"), federation.name, "board-1")
    federation.coordinator()
    federation.device("board-1", metrics_port=shipped.metrics_port, metrics_host=shipped.metrics_host)
    serves(federation, port, "127.0.0.3")
    with pytest.raises(urllib.error.URLError, match="refused"):
        answer(port)
    settings = next(tmp_path.glob("board-1-*.toml"))
    federation.wait_until(lambda: main(["health", str(settings)]) == 0, "the probe to follow the address")
    assert "PASS loop" in capsys.readouterr().out


def test_a_stack_serves_metrics_at_an_address_that_other_containers_can_reach(federation, tmp_path):
    """Prometheus does the same from another container: it uses a name whose address differs each time."""
    stack = Stack(tmp_path / "stack", with_devices(decode(Experiment, TINY), 1))
    prepare(stack)
    told = decode(CoordinatorSettings, read_toml(stack.settings_file("coordinator")))
    (name,) = stack.devices
    device = decode(DeviceSettings, read_toml(stack.settings_file(name)))
    assert (told.metrics_port, told.metrics_host) == (device.metrics_port, device.metrics_host)
    federation.coordinator(metrics_host=told.metrics_host)
    serves(federation, federation.metrics_port, "127.0.0.4")
    # The coordinator is healthy as soon as it is connected.
    federation.wait_until(
        lambda: is_healthy(federation.metrics_port, "127.0.0.5"), "the coordinator to be healthy"
    )


@pytest.mark.parametrize(
    "headers", [{"X-Prometheus-Scrape-Timeout-Seconds": "10"}, {}], ids=["scraped", "looked_at"]
)
def test_a_coordinator_waits_for_the_scrape_after_its_end_only_if_a_scraper_was_there(federation, headers):
    coordinator = federation.coordinator(rounds=1, policy=Policy(quorum=1))
    serves(federation, federation.metrics_port)
    answer(federation.metrics_port, **headers)
    federation.device("board-1")
    federation.wait_until((federation.run / "summary.json").exists, "the end of the run")
    if headers:
        federation.stays(lambda: coordinator.child.poll() is None, "the coordinator to stay", 2.0)
        told = answer(federation.metrics_port, **headers)
        assert 'protofleet_run_over{how="finished"} 1.0' in told and "protofleet_round 2.0" in told
    began = time.monotonic()
    assert federation.wait_for_end(coordinator) == 0
    assert time.monotonic() - began < SOON
