"""A process says how it is, and one that hangs ends itself."""

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from prometheus_client import CollectorRegistry

from deploy.cli import main
from methods.liveness import tensors_work
from protocol.exposition import Endpoint, exposed
from protocol.vitals import STUCK, Pulse, disk_takes, loop_turns, watchdog
from tests.fleets import free_port

ROOT = Path(__file__).parent.parent

# A device's shell with a party whose loop hangs, or whose work does: with optimizer steps, or without.
HANGING = """\
import queue, sys, threading, time, torch
from methods.liveness import on_every_step
from protocol.party import ThreadWorker, serve
from protocol.transport import Done, Stop
from protocol.vitals import Pulse, watchdog

how = sys.argv[1]
pulse, inbox = Pulse(), queue.SimpleQueue()
on_every_step(lambda: pulse.step("work"))

class Party:
    finished, wake_at = False, float("inf")
    def wake(self, now): pass
    def take(self, item, now):
        if isinstance(item, Stop): self.finished = True
        else: item.call()

def hang(seconds=60):
    until = time.monotonic() + seconds
    while time.monotonic() < until: time.sleep(0.01)

def steps(seconds=2.0):
    weight = torch.nn.Parameter(torch.zeros(1)); optimizer = torch.optim.SGD([weight], lr=0.1)
    until = time.monotonic() + seconds
    optimizer.step()
    while time.monotonic() < until:
        optimizer.step(); time.sleep(0.01)

steps(0)  # torch imports much at the first
worker = ThreadWorker(inbox, pulse)
if how == "loop": inbox.put(Done(hang))
if how == "work": worker.submit(hang, lambda result: None)
if how == "slow": worker.submit(steps, lambda result: inbox.put(Stop("done")))
import protocol.party; protocol.party.TURN_SECONDS = 0.2
with watchdog(pulse, 1.0):
    serve(Party(), inbox, time.monotonic, pulse)
print("ended by itself")
"""


def run_hanging(how):
    command = [sys.executable, "-c", HANGING, how]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)


@pytest.mark.parametrize("how", ["loop", "work"])
def test_a_process_that_hangs_ends_itself_and_leaves_its_stacks(how):
    done = run_hanging(how)
    assert done.returncode == STUCK
    assert f"{how} has shown no sign of life" in done.stderr and "in hang" in done.stderr


def test_work_may_last_as_long_as_it_makes_steps():
    done = run_hanging("slow")  # twice as long as the watchdog waits
    assert (done.returncode, done.stdout.strip()) == (0, "ended by itself"), done.stderr


def test_a_part_that_rests_is_not_missed():
    now = [0.0]
    pulse = Pulse(lambda: now[0])
    pulse.beat("loop"), pulse.beat("work")
    now[0] = 100.0
    pulse.beat("loop"), pulse.rest("work"), pulse.step("work")
    assert pulse.silence() == (0.0, "loop") and loop_turns(pulse)() == ""
    now[0] = 200.0
    assert (
        pulse.silence() == (100.0, "loop")
        and "loop has shown no sign of life for 100 s" in loop_turns(pulse)()
    )


def test_no_watch_is_kept_where_none_is_asked_for():
    before = threading.active_count()
    with watchdog(Pulse(), 0.0):
        assert threading.active_count() == before


def test_a_disk_that_takes_nothing_is_said_and_asked_again(tmp_path):
    now, folder = [0.0], tmp_path / "state"
    check = disk_takes(folder, lambda: now[0])
    assert "cannot be written to (No such file or directory)" in check()
    folder.mkdir()
    assert check() == "" and not list(folder.iterdir())
    folder.rmdir()
    assert check() == "", "a good answer holds for a minute"
    now[0] = 61.0
    assert check() != ""


def test_torch_is_asked_for_a_sum_that_is_known():
    assert tensors_work() == ""
    assert "torch cannot compute on cuda" in tensors_work("cuda") or torch.cuda.is_available()


def test_health_is_asked_of_the_process_that_runs(tmp_path, capsys):
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


def test_health_without_a_port_to_ask_at_is_a_mistake_in_one_line(tmp_path, capsys):
    (tmp_path / "device.toml").write_text('name = "d"\n')
    assert main(["health", str(tmp_path / "device.toml")]) == 2
    assert "has no metrics_port" in capsys.readouterr().err
