"""One coordinator, and devices on two machines that reach it only through the broker.

The machines are network namespaces.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from protofleet.edge_client.trainer.slots import Slots
from protofleet.federation.brokers.local import LocalBroker
from protofleet.federation.brokers.ports import free_port
from protofleet.lab.local.experiment import read_experiment
from protofleet.lab.local.run import RunningBroker, enrol_all, write_settings
from tests.lab.local.test_run import ROOT, furnished

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
COUNTER = itertools.count()


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True)


@pytest.fixture
def machine():
    """Yield a maker of machines.

    It returns the name of a machine, and the address at which that one reaches this machine.
    """
    made = []

    def make():
        number = os.getpid() % 16_000 * 4 + 65_536 * next(COUNTER)  # The first address of this network.
        name, here, there = (f"pf{end}{number:x}" for end in "nht")
        net = f"10.{200 + number // 65_536}.{number // 256 % 256}.{number % 256}"
        prefix, last = net.rsplit(".", 1)
        if ip("netns", "add", name).returncode:
            pytest.skip("this user cannot make network namespaces")
        made.append((name, here))
        for words in (
            ("link", "add", here, "type", "veth", "peer", "name", there, "netns", name),
            ("addr", "add", f"{prefix}.{int(last) + 1}/30", "dev", here),
            ("link", "set", here, "up"),
            ("-n", name, "addr", "add", f"{prefix}.{int(last) + 2}/30", "dev", there),
            ("-n", name, "link", "set", there, "up"),
        ):
            done = ip(*words)
            assert done.returncode == 0, (words, done.stderr)
        return name, f"{prefix}.{int(last) + 1}"

    yield make
    for name, here in made:
        ip("netns", "del", name)
        ip("link", "del", here)


@pytest.mark.slow
def test_devices_on_two_machines_learn_with_one_coordinator(tmp_path, machine):
    place, runs = furnished(tmp_path), tmp_path / "runs"
    experiment = read_experiment(place / "small.toml", ["devices.count=4"])
    port = free_port()
    lines = [f"listener {port} 0.0.0.0", "allow_anonymous true"]
    with LocalBroker(tmp_path / "broker", "mosquitto", extra_lines=lines) as broker:
        enrol_all(experiment, runs / "small")
        write_settings(experiment, RunningBroker(broker.address, "two machines"), runs, (), Slots())
        started = [start("coordinator", runs / "small" / "coordinator.toml")]
        for i, devices in enumerate((("device-1", "device-2"), ("device-3", "device-4"))):
            name, host = machine()
            for device in devices:
                shutil.copytree(runs / "small" / "devices" / device, tmp_path / f"machine-{i}" / device)
            options = ("--broker", f"{host}:{port}", "--processes", "1")
            started.append(start("fleet", tmp_path / f"machine-{i}", *options, inside=name))
        said = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], said
    rounds = [json.loads(line) for line in (runs / "small" / "rounds.jsonl").read_text().splitlines()]
    assert [len(line["participants"]) for line in rounds[:-1]] == [4, 4]
    assert "device-1 to device-2 (2 devices) has finished" in said[1]


def start(command, path: Path, *options, inside=""):
    within = ["ip", "netns", "exec", inside] if inside else []
    return subprocess.Popen(
        [*within, sys.executable, "-m", "protofleet", command, str(path), *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT,
    )  # fmt: skip
