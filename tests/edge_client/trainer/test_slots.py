"""Devices of one machine work in turn, never more than there are slots, even if the holder of a slot dies."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.trainer.job import SECONDS_WAITED
from protofleet.edge_client.trainer.slot_job import SlotJob
from protofleet.edge_client.trainer.slots import Slots
from protofleet.protocol.settings.reader import encode, write_toml
from protofleet.runtime.health import STUCK

ROOT = Path(__file__).parents[3]
PATIENCE = 120.0  # seconds that a process may need to import torch on a busy machine

# It prints "ready", works after a line on its standard input, and prints the times of its first and last pass.
DEVICE = """
import sys, time
from pathlib import Path
from torch.nn.modules.module import register_module_forward_hook
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.trainer.local import LocalTrainer
from protofleet.methods.contract.bridge import to_numpy
from protofleet.methods.contract.plan import Network, Plan
from protofleet.protocol.settings.reader import decode_file, read_toml
path = Path(sys.argv[1])
trainer = LocalTrainer(decode_file(DeviceSettings, path, read_toml(path), []))
plan = Plan("fedavg", 10, 3, 1, 16, Network("cnn23"), {"epochs": 20, "batch": 16, "lr": 0.05})
server = plan.server_half()
server.begin(1, [])
ask = next(server.round())
job, passes = trainer.start(plan), []
register_module_forward_hook(lambda *_: passes.append(time.monotonic()))
print("ready", flush=True)
sys.stdin.readline()
job.run("train", 1, to_numpy(ask.payload))
print(passes[0], passes[-1])
"""

# Its worker prints when it requests a slot and when it gets it, and keeps the slot if the argument is "keeps".
WORKER = """
import sys, threading, time
from protofleet.edge_client.group.device import Process
from protofleet.edge_client.trainer.slots import Slots
from protofleet.runtime.health import watchdog
process, done = Process("worker"), threading.Event()
def work():
    with Slots(sys.argv[1], 1).taken():
        print(time.monotonic(), flush=True)
        if sys.argv[2] == "keeps":
            time.sleep(600)
    done.set()
process.start_work(1)
print(time.monotonic(), flush=True)
process.work.put(work)
with watchdog(process.heartbeats, float(sys.argv[3])):
    done.wait()
"""


@pytest.fixture
def start():
    started = []

    def program(text, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", text, *map(str, arguments)], cwd=ROOT, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        started.append(process)
        return process

    yield program
    for process in started:
        process.kill()
        process.communicate()


def at_once(spans):
    """Return the largest number of spans that share one moment."""
    return max(sum(first <= moment <= last for first, last in spans) for moment, _ in spans)


def state_of(process):
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_taken(slot):
    with slot.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class Work:
    def run(self, phase, number, received):
        return received, {"accuracy": 1.0}


def has_it(worker):
    """Return the times at which the worker asked for a slot and got it."""
    return float(worker.stdout.readline()), float(worker.stdout.readline())


def device(folder, name, slots):
    data = DataSettings(source="digits", domain="mnist", samples=80, test_samples=20, size=16)
    settings = DeviceSettings(
        name, folder=str(folder / name), data=data, threads=1, compute="cpu", slots=slots
    )
    path = folder / f"{name}.toml"
    path.write_text(write_toml(encode(settings)))
    return path


@pytest.mark.slow
def test_five_device_processes_with_two_slots_train_two_at_a_time(tmp_path, start):
    slots = Slots(str(tmp_path / "slots"), 2)
    devices = [start(DEVICE, device(tmp_path, f"d{i}", slots)) for i in range(5)]
    assert [one.stdout.readline() for one in devices] == ["ready\n"] * 5
    for one in devices:
        one.stdin.write("\n")
        one.stdin.flush()
    spans = [tuple(map(float, one.communicate(timeout=PATIENCE)[0].split())) for one in devices]
    assert at_once(spans) == 2


def test_freed_memory_is_returned_before_the_slot_is_released(tmp_path, monkeypatch):
    slots, taken = Slots(str(tmp_path), 1), []
    monkeypatch.setattr(
        "protofleet.edge_client.trainer.slot_job.return_all_free_blocks",
        lambda: taken.append(is_taken(tmp_path / "0.slot")),
    )
    SlotJob(Work(), slots).run("train", 1, {})
    assert taken == [True], "they are given back once, before another has the slot"


@pytest.mark.slow
def test_the_slot_of_a_killed_process_becomes_free(tmp_path, start):
    holder = start(WORKER, tmp_path, "keeps", 0)
    has_it(holder)
    waiting = start(WORKER, tmp_path, "gives it back", 0)
    assert waiting.stdout.readline()
    killed = time.monotonic()
    holder.kill()
    assert float(waiting.stdout.readline()) > killed
    assert waiting.wait(PATIENCE) == 0


@pytest.mark.slow
def test_a_watchdog_ends_a_stuck_holder_of_a_slot_but_no_process_that_waits(tmp_path, start):
    asked, _ = has_it(stuck := start(WORKER, tmp_path, "keeps", 5))  # its last heartbeat was at the request
    waiting = start(WORKER, tmp_path, "gives it back", 1)  # much shorter than its wait
    _, since = has_it(waiting)
    assert since > asked + 5
    assert (waiting.wait(PATIENCE), stuck.wait(PATIENCE)) == (0, STUCK)


def test_the_wait_for_a_slot_is_reported_separately_in_the_metrics(tmp_path, monkeypatch):
    slots, answers, looked = Slots(str(tmp_path), 1), [], threading.Event()
    monkeypatch.setattr("protofleet.edge_client.trainer.slots.report_progress", looked.set)
    job = SlotJob(Work(), slots)
    arrays = {"w": np.zeros(1)}
    waiting = threading.Thread(target=lambda: answers.append(job.run("train", 1, arrays)))
    with slots.taken() as waited:
        assert waited == 0.0
        begun = time.monotonic()
        waiting.start()
        assert looked.wait(PATIENCE)
    waiting.join()
    ((payload, metrics),) = answers
    assert payload is arrays and metrics["accuracy"] == 1.0
    assert 0 < metrics[SECONDS_WAITED] < time.monotonic() - begun


def test_a_process_does_not_wait_for_a_stopped_holder_of_a_slot(start, tmp_path):
    holder = start(WORKER, tmp_path, "keeps", 60)
    has_it(holder)
    holder.send_signal(signal.SIGSTOP)
    while state_of(holder) != "T":
        time.sleep(0.001)
    comes = start(WORKER, tmp_path, "gives it back", 60)
    too_late = threading.Timer(PATIENCE, comes.kill)
    too_late.start()
    assert comes.wait() == 0 and is_taken(tmp_path / "0.slot"), "the stopped process still holds the slot"
    too_late.cancel()
