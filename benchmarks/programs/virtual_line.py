"""How far off virtual time is: six device processes behind slow lines, and the same run in virtual time.

Each device has a network namespace and a line of its own (`shaped_lines`). It needs root. TCP is CUBIC, as in the
model of lines, also on a machine whose default is another one.

Processes need time to compute, which virtual time does not have. So the same run is repeated behind lines that take
no time: the difference of its rounds is what this machine computes for a round. A part of it is hidden behind the
time of slow lines. So the truth is between virtual time and virtual time with all of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

from protofleet.edge_client.trainer.slots import Slots
from protofleet.federation.brokers.local import LocalBroker
from protofleet.federation.brokers.ports import free_port
from protofleet.lab.local.class_check import agreed_names
from protofleet.lab.local.experiment import Experiment, device_settings, read_experiment
from protofleet.lab.local.run import RunningBroker, enrol_all, write_settings
from protofleet.lab.virtual.validate import FILE, validate
from protofleet.protocol.settings.reader import encode, write_toml
from protofleet.protocol.transport.address import BrokerAddress

DEVICES = 6
LIMIT_SECONDS = 600.0
FAST_MBITS = 10_000.0  # Rate of a line that takes no time.
CUBIC = ("congctl", "cubic")  # Congestion control of a route.
ROUND = "seconds of a round (median)"
EXPERIMENT = """
name = "line"
rounds = {rounds}
classes = 10
method = {{ name = "{method}", lr = 0.05, batch = 32, epochs = 1 }}
network = {{ name = "mlp", feature_size = {width} }}
[data]
source = "digits"
domain = "mnist"
split = "iid"
[devices]
count = {devices}
[broker]
kind = "external"
"""
PROFILES = """
[boards.pc]
share = 1
from = "metrics"
[lines.shaped]
share = 1
up = {mbits}
down = {mbits}
delay = {delay}
loss = {loss}
"""


def measure(
    mbits: float = 8.0,
    delay: float = 0.05,
    loss: float = 0.0,
    width: int = 64,
    rounds: int = 8,
    method: str = "fedavg",
) -> dict[str, float]:
    """Return how far off the virtual run is, as shares of the real run, and the real seconds of a round."""
    text = EXPERIMENT.format(devices=DEVICES, rounds=rounds, width=width, method=method)
    found, fast = compared(text, mbits, delay, loss), compared(text, FAST_MBITS, 0.0, 0.0)
    computing = fast[ROUND] * -fast[f"{ROUND}: off"]
    virtual = found[ROUND] * (1 + found[f"{ROUND}: off"])
    return {
        **found,
        "computing in a round": computing,
        f"{ROUND}: off, with computing": (virtual + computing) / found[ROUND] - 1,
    }


def compared(text: str, mbits: float, delay: float, loss: float) -> dict[str, float]:
    """Run an experiment behind lines and in virtual time; return the real values, and how far off virtual time is."""
    with tempfile.TemporaryDirectory(prefix="bench-line-") as place:
        folder = Path(place)
        (folder / "line.toml").write_text(textwrap.dedent(text))
        (folder / "profiles.toml").write_text(PROFILES.format(mbits=mbits, delay=delay, loss=loss))
        experiment = read_experiment(folder / "line.toml", [])
        conduct(experiment, folder / "runs", mbits, delay, loss)
        print(
            validate(folder / "runs" / "line", folder / "profiles.toml", folder / "virtual"), file=sys.stderr
        )
        rows = json.loads((folder / "virtual" / "line-virtual" / FILE).read_text())["rows"]
    return {
        name: row[key]
        for row in rows
        for name, key in ((f"{row['what']}: off", "off"), (row["what"], "real"))
    }


def conduct(experiment: Experiment, runs: Path, mbits: float, delay: float, loss: float) -> None:
    """Run the experiment with one process for each device, each behind its own shaped line."""
    folder, names = runs / experiment.name, list(experiment.shards)
    port = free_port()
    lines = [f"listener {port} 0.0.0.0", "allow_anonymous true"]
    with (
        LocalBroker(folder / "logs", "mosquitto", extra_lines=lines) as broker,
        shaped(mbits, delay, loss) as places,
    ):
        enrol_all(experiment, folder)
        running = RunningBroker(broker.address, f"mosquitto behind slow lines, {mbits:g} Mbit/s, {delay:g} s")
        write_settings(experiment, running, runs, agreed_names(experiment), Slots())
        started = [start(folder, "coordinator", folder / "coordinator.toml")]
        for name, (space, host) in zip(names, places, strict=True):
            own = device_settings(experiment, name, BrokerAddress(host=host, port=port), runs)
            path = folder / "devices" / name / "device.toml"
            path.write_text(write_toml(encode(own)))
            started.append(start(folder, "device", path, space))
        codes = [process.wait(LIMIT_SECONDS) for process in started]
    if any(codes):
        raise RuntimeError(f"the processes ended with {codes}; see {folder / 'logs'}")


def start(folder: Path, program: str, settings: Path, space: str = "") -> subprocess.Popen[bytes]:
    inside = ["ip", "netns", "exec", space] if space else []
    log = (folder / "logs" / f"{space or program}.log").open("wb")
    command = [*inside, sys.executable, "-m", "protofleet", program, str(settings)]
    return subprocess.Popen(command, stdout=log, stderr=log)


@contextlib.contextmanager
def shaped(mbits: float, delay: float, loss: float) -> Iterator[list[tuple[str, str]]]:
    """Make a network namespace for each device; yield their names, and the address of the broker as each sees it."""
    base = f"vl{os.getpid() % 10_000}"
    spaces = [f"{base}n{i}" for i in range(DEVICES)]
    pairs = [(f"{base}h{i}", f"{base}t{i}") for i in range(DEVICES)]
    wish = {"pairs": pairs, "mbits": mbits, "delay": delay, "loss": loss}
    line = [sys.executable, "-m", "benchmarks.programs.shaped_lines", json.dumps(wish)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shaper:
        assert shaper.stdin is not None and shaper.stdout is not None
        try:
            if shaper.stdout.readline() != b"ready\n":
                raise RuntimeError("the lines cannot be made; this needs root and /dev/net/tun")
            yield [joined(space, *pair, i) for i, (space, pair) in enumerate(zip(spaces, pairs, strict=True))]
        finally:
            shaper.stdin.close()
            for space in spaces:
                subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


def joined(space: str, here: str, there: str, number: int) -> tuple[str, str]:
    """Put one end of a line into a new network namespace; return the namespace and the address of the other end."""
    net = f"10.{210 + number}.{os.getpid() % 250}"
    command("ip", "netns", "add", space)
    command("ip", "link", "set", there, "netns", space)
    command("ip", "addr", "add", f"{net}.1/30", "dev", here)
    command("ip", "link", "set", here, "up")
    command("ip", "-n", space, "addr", "add", f"{net}.2/30", "dev", there)
    command("ip", "-n", space, "link", "set", there, "up")
    command("ip", "route", "replace", f"{net}.0/30", "dev", here, "src", f"{net}.1", *CUBIC)
    command("ip", "-n", space, "route", "replace", f"{net}.0/30", "dev", there, "src", f"{net}.2", *CUBIC)
    return space, f"{net}.1"


def command(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
