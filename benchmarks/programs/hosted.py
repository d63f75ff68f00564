"""Measure the memory and the CPU per device and round if devices share processes.

The coordinator and the broker are included.

The network has 53,002 parameters, and each device trains one epoch on 600 samples, as in `round_cost`. The
coordinator runs in this process. CPU is counted from the end of the first training phase to the end of the
last training phase.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.harness.processes import held
from benchmarks.programs.fleet import FEDERATION, PATIENCE, broker, conduct
from benchmarks.programs.keys import make_keys
from benchmarks.programs.member import made_up
from benchmarks.programs.round_cost import EXAMPLES, CpuClock, of_group
from benchmarks.programs.rounds import MODEL
from protofleet.coordinator.observe.view import RunView
from protofleet.coordinator.round.policy import Policy
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import NO_PLUGINS, Shard, Shards, TensorSamples
from protofleet.edge_client.group.main import run_devices
from protofleet.edge_client.host.loaded_settings import LoadedSettings
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.protocol.transport.address import LARGEST_BLOCK, BrokerAddress
from protofleet.protocol.wire.messages import Update
from protofleet.protocol.wire.names import COORDINATOR

ROUNDS = 3


class MadeUpShards(Shards):
    """Random images. Each device has its own images."""

    def load(self, settings: DataSettings, plugins: PlugIns = NO_PLUGINS) -> Shard:
        data = made_up(f"device-{settings.part}", MODEL.classes, MODEL.size, EXAMPLES)
        train, none = (TensorSamples(part.x, part.y) for part in (data.train, data.test))
        return Shard(FEDERATION, data.classes, train, none, none)


class MemoryClock(CpuClock):
    """An observer that also notes the memory of its processes at the end of the first training phase.

    The phase ends with its last update.
    """

    def __init__(self) -> None:
        super().__init__()
        self.began, self.first_round, self.memory = time.monotonic(), 0.0, 0.0

    def answered(self, run: RunView, update: Update, now: float) -> None:
        super().answered(run, update, now)
        if self.marks and not self.memory:
            self.first_round = time.monotonic() - self.began
            self.memory = held(self.processes)["pss_MB"]


def measure(devices: int, processes: int = 1, rounds: int = ROUNDS, epochs: int = 1) -> dict[str, float]:
    plan, clock = replace(MODEL, rounds=rounds, hyper={**MODEL.hyper, "epochs": epochs}), MemoryClock()
    names = [f"device-{i:05}" for i in range(devices)]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in (COORDINATOR, *names):
            make_keys(folder / "keys", name)
        policy = Policy(quorum=devices, cohort=devices, settle_seconds=PATIENCE)
        groups = [names[i::processes] for i in range(processes)]
        with broker(folder) as running, hosts(folder, groups, running.address) as pids:
            clock.processes, clock.began = (
                [os.getpid(), *pids, *of_group(running.process_group)],
                time.monotonic(),
            )
            conduct(folder, plan, policy, running.address, clock)
    (first, began), (last, ended), counted = clock.marks[0], clock.marks[-1], len(clock.marks) - 1
    if counted != rounds - 1:
        raise RuntimeError(f"only {counted + 1} of {rounds} training phases have ended")
    return {
        "memory of all": clock.memory, "first round": clock.first_round,
        "CPU a device's round": 1000 * (last - first) / counted / devices,
        "seconds a round": (ended - began) / counted,
    }  # fmt: skip


@contextlib.contextmanager
def hosts(folder: Path, groups: Sequence[Sequence[str]], address: BrokerAddress) -> Iterator[list[int]]:
    started = []
    try:
        for group in groups:
            wish = {"names": group, "folder": str(folder), "port": address.port}
            command = [sys.executable, "-m", "benchmarks.programs.hosted"]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
            started.append(process)
            assert process.stdin is not None
            process.stdin.write(json.dumps(wish))
            process.stdin.close()
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(30)


def host(names: Sequence[str], folder: Path, port: int) -> None:
    keys = folder / "keys"
    given = [
        DeviceSettings(
            name, FEDERATION, str(folder / "devices" / name), durable=False, threads=1, stays=False,
            key=str(keys / f"{name}.key"), coordinator_key=str(keys / "coordinator.pub"),
            broker=BrokerAddress(port=port, block_bytes=LARGEST_BLOCK), data=DataSettings(part=i, parts=len(names)),
            patience_seconds=PATIENCE,
        )
        for i, name in enumerate(names)
    ]  # fmt: skip
    run_devices([LoadedSettings(one) for one in given], "benchmark", shards=MadeUpShards())


if __name__ == "__main__":
    told = json.loads(sys.stdin.read())
    host(told["names"], Path(told["folder"]), told["port"])
