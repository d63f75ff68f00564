"""A run whose process fails reports the last line of its log, or the full disk if the disk is full.

This is the same for forked processes and for separate interpreters.
"""

import subprocess
from dataclasses import dataclass, replace

import pytest

from protofleet.lab.local.processes import Processes
from protofleet.protocol.storage.full_disk import PAUSED
from protofleet.runtime.children import Interpreters, Starter
from protofleet.runtime.launcher import Launcher
from tests.rooms import ROOT

SOURCE = "tests.support.source"
SILENT = "and said nothing of why; {} has what it did until then"
SLEEPS = "import time; print('up', flush=True); time.sleep(600)"


@dataclass
class Sources:
    """A starter that starts the test's source in place of a command of the project."""

    starter: Starter
    problem = ""

    def start(self, program, stdout, stderr):
        return self.starter.start(replace(program, module=SOURCE), stdout, stderr)


@pytest.fixture(params=["fork", "spawn"])
def starter(request, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    if request.param == "spawn":
        yield Sources(Interpreters())
        return
    with Launcher(()) as launcher:
        yield Sources(launcher)


@pytest.fixture
def processes(tmp_path, starter):
    with Processes(tmp_path, starter) as processes:
        yield processes


def ended(processes, name, source):
    child = processes.start(name, source)
    child.wait(60)
    return child


def test_the_reason_of_a_failure_is_the_last_line_of_the_log(processes, tmp_path):
    ended(processes, "one", "import sys; print('first'); print(); sys.exit('protofleet: no key')")
    ended(processes, "two", "import sys; sys.exit(3)")
    ended(processes, "three", "raise ValueError('none')")
    ended(processes, "well", "print('done')")
    assert processes.failed() == {
        "one": "no key",
        "two": f"its process ended with exit code 3 {SILENT.format(tmp_path / 'logs' / 'two.log')}",
        "three": "ValueError: none",
    }


@pytest.mark.parametrize(
    ("last", "how"),
    [
        ("os._exit(0)", "ended with exit code 0"),
        ("os._exit(5)", "ended with exit code 5"),
        ("os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
    ],
)
def test_an_ordinary_last_line_of_the_log_is_not_the_reason_of_a_failure(processes, tmp_path, last, how):
    said = "2026-11-27 02:00:00,000 INFO round 1 train: question"
    ended(processes, "one", f"import os; print('{said}', flush=True); {last}")
    assert processes.reason("one") == f"its process {how} {SILENT.format(tmp_path / 'logs' / 'one.log')}"


def test_a_failed_import_is_the_reason_in_one_line(processes):
    ended(processes, "one", "import protofleet.nowhere")
    assert processes.failed() == {"one": "ModuleNotFoundError: No module named 'protofleet.nowhere'"}


def test_a_process_that_waits_for_disk_space_makes_the_full_disk_the_reason(processes, tmp_path):
    assert processes.disk_problem() == ""
    ended(processes, "one", f"print('the disk is full: no work is taken on {PAUSED}')")
    ended(processes, "two", "import sys; sys.exit('protofleet: broken')")
    assert processes.failed() == {
        "two": f"the disk that holds {tmp_path} is full; make room and run the same command again"
    }


def test_processes_are_stopped_when_their_run_ends(tmp_path, starter):
    with Processes(tmp_path, starter) as processes:
        child = processes.start("one", SLEEPS, piped=True)
        assert child.stdout.readline() == "up\n"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.1)
    assert child.returncode is not None
    child.stdout.close()


COUNTS = """
import signal, sys, time
seen = []
signal.signal(signal.SIGTERM, lambda *one: seen.append(one))
print('up', flush=True)
while not seen:
    time.sleep(0.05)
print('asked', flush=True)
time.sleep(1)  # The time in which a second signal would come.
sys.exit(len(seen) - 1)
"""


def test_a_process_that_was_asked_to_end_gets_no_second_signal(tmp_path, starter):
    with Processes(tmp_path, starter) as processes:
        child = processes.start("one", COUNTS, piped=True)
        assert child.stdout.readline() == "up\n"
        processes.ask_to_end()
        assert child.stdout.readline() == "asked\n"
    assert child.returncode == 0
    child.stdout.close()
