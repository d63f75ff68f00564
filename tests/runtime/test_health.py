"""Tests that a process reports its health, and that a process that hangs ends itself."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from prometheus_client import CollectorRegistry

from protofleet.cli.main import main
from protofleet.federation.brokers.ports import free_port
from protofleet.methods.contract.liveness import tensors_work
from protofleet.runtime.health import STUCK, Heartbeats, disk_is_writable, loop_is_running, watchdog
from protofleet.runtime.metrics_page import Endpoint, exposed

ROOT = Path(__file__).parents[2]

# The program of a device whose loop hangs, or whose work hangs, with or without signs of life.
HANGING = """\
import queue, sys, time, torch
from protofleet.methods.parts.averaging import weighted_mean
from protofleet.methods.contract.base import Reply
from protofleet.methods.contract.liveness import on_progress
from protofleet.methods.parts.local import LocalHyper, train
from protofleet.methods.maths.finch import partition
from protofleet.methods.parts.hyperspheres import spread
from protofleet.methods.maths.means import merge_class_means
from tests.methods.tiny import shard, tiny
from protofleet.runtime.event_loop import ThreadWorker, serve
from protofleet.protocol.transport.base import Done, StopRequest
from protofleet.runtime.health import Heartbeats, watchdog

how = sys.argv[1]
heartbeats, inbox = Heartbeats(), queue.SimpleQueue()
on_progress(lambda: heartbeats.beat_if_working("work"))

class App:
    finished, wake_at = False, float("inf")
    def wake(self, now): pass
    def end_turn(self, now): pass
    def take(self, item, now):
        if isinstance(item, StopRequest): self.finished = True
        else: item.call()

def hang(seconds=60):
    until = time.monotonic() + seconds
    while time.monotonic() < until: time.sleep(0.01)

def slowly(more, seconds=3.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        more(); time.sleep(0.01)

def train_once():
    model = tiny()
    loss = lambda x, y: torch.nn.functional.cross_entropy(model(x), y)
    train(model, shard(0), loss, LocalHyper(epochs=1), torch.Generator())

def average_once():
    sent = [Reply(name, 1, {"w": torch.ones(8)}) for name in "ab"]
    dict(weighted_mean(sent, ["w"]))

WORK = {  # Each entry is a loop of the server half or of the client half.
    "training": train_once,
    "spreading anchors": lambda: spread(torch.rand(3, 4), 2, 0.1, 0.9, 0.0),
    "clustering": lambda: partition(torch.rand(30, 4)),
    "averaging": average_once,
    "merging": lambda: merge_class_means([(torch.ones(3, 4), torch.ones(3))] * 2),
}
for once in WORK.values(): once()  # The first call imports many modules.
worker = ThreadWorker(inbox, heartbeats)
if how == "loop": inbox.put(Done(hang))
if how == "work": worker.submit(hang, lambda result: None)
if how in WORK: worker.submit(lambda: slowly(WORK[how]), lambda result: inbox.put(StopRequest("done")))
import protofleet.runtime.event_loop; protofleet.runtime.event_loop.IDLE_SECONDS = 0.2
with watchdog(heartbeats, 1.0):
    print("begun", flush=True)
    serve(App(), inbox, time.monotonic, heartbeats)
print("ended by itself")
"""


def start_hanging(how):
    return subprocess.Popen(
        [sys.executable, "-c", HANGING, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def run_hanging(how):
    """Return the exit code, the standard output and the errors of a process that hangs."""
    process = start_hanging(how)
    try:
        said, errors = process.communicate(timeout=240)
    finally:
        process.kill()
    return process.returncode, said, errors


@pytest.mark.parametrize("how", ["loop", pytest.param("work", marks=pytest.mark.slow)])
def test_a_process_that_hangs_ends_itself_and_prints_its_stacks(how):
    code, _, errors = run_hanging(how)
    assert code == STUCK
    assert f"{how} has shown no sign of life" in errors and "in hang" in errors


@pytest.mark.slow
@pytest.mark.parametrize("how", ["training", "spreading anchors", "clustering", "averaging", "merging"])
def test_the_watchdog_does_not_end_long_work_that_makes_progress(how):
    code, said, errors = run_hanging(how)  # It hangs three times as long as the watchdog waits.
    assert (code, said) == (0, "begun\nended by itself\n"), errors


@pytest.mark.slow
def test_the_watchdog_does_not_end_a_process_that_sigstop_paused():
    process = start_hanging("training")
    try:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(2.0)  # Twice as long as the watchdog waits.
        process.send_signal(signal.SIGCONT)
        said, errors = process.communicate(timeout=240)
    finally:
        process.kill()
    assert (process.returncode, said) == (0, "ended by itself\n"), errors


def test_an_idle_part_is_not_reported_as_hanging():
    now = [0.0]
    heartbeats = Heartbeats(lambda: now[0])
    heartbeats.beat("loop"), heartbeats.beat("work")
    now[0] = 100.0
    heartbeats.beat("loop"), heartbeats.stop("work"), heartbeats.beat_if_working("work")
    assert heartbeats.longest_gap() == (0.0, "loop") and loop_is_running(heartbeats)() == ""
    now[0] = 200.0
    assert (
        heartbeats.longest_gap() == (100.0, "loop")
        and "loop has shown no sign of life for 100 s" in loop_is_running(heartbeats)()
    )


def test_a_watchdog_with_zero_seconds_starts_no_thread():
    def watchdogs():
        return {one for one in threading.enumerate() if one.name == "watchdog"}

    before = watchdogs()  # The watchdogs of other tests may still be ending.
    with watchdog(Heartbeats(), 0.0):
        assert watchdogs() <= before


def test_a_disk_that_is_not_writable_is_reported_and_checked_again(tmp_path):
    now, folder = [0.0], tmp_path / "state"
    check = disk_is_writable(folder, lambda: now[0])
    assert "cannot be written to (No such file or directory)" in check()
    folder.mkdir()
    assert check() == "" and not list(folder.iterdir())
    folder.rmdir()
    assert check() == "", "a good answer holds for a minute"
    now[0] = 61.0
    assert check() != ""


def test_the_check_of_torch_reports_a_device_that_cannot_compute():
    assert tensors_work() == ""
    assert "torch cannot compute on cuda" in tensors_work("cuda") or torch.cuda.is_available()


def test_the_command_health_prints_the_checks_of_the_running_process(tmp_path, capsys):
    settings, port, wrong = tmp_path / "device.toml", free_port(), {"disk": ""}
    settings.write_text(f'name = "d"\nmetrics_port = {port}\n')
    assert main(["health", str(settings)]) == 1 and "is it running?" in capsys.readouterr().out
    with exposed(
        CollectorRegistry(), Endpoint("127.0.0.1", port), {"loop": lambda: "", "disk": lambda: wrong["disk"]}
    ):
        assert main(["health", str(settings)]) == 0
        assert capsys.readouterr().out == "PASS loop\nPASS disk\n"
        wrong["disk"] = "it is full"
        assert main(["health", str(settings)]) == 1
        assert capsys.readouterr().out == "PASS loop\nFAIL disk: it is full\n"
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health")
        assert error.value.code == 503 and json.load(error.value)["disk"] == "it is full"
        assert urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").status == 200


def test_the_command_health_without_a_metrics_port_gives_one_line(tmp_path, capsys):
    (tmp_path / "device.toml").write_text('name = "d"\n')
    assert main(["health", str(tmp_path / "device.toml")]) == 2
    assert "has no metrics_port" in capsys.readouterr().err
