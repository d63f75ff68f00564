"""What a run says of its processes when they fail: the last line of a log, and a full disk before anything else."""

import subprocess
import sys

import pytest

from protofleet.deploy.local.processes import Processes
from protofleet.protocol.storage.disk import PAUSED
from protofleet.runtime import children


@pytest.fixture
def processes(tmp_path, monkeypatch):
    """Their commands are Python programs of the test's own."""
    monkeypatch.setattr(children, "command", lambda module, source: [sys.executable, "-c", source])
    with Processes(tmp_path) as processes:
        yield processes


def ended(processes, name, source):
    child = processes.start(name, source)
    child.wait(60)
    return child


def test_the_reason_of_a_failure_is_the_last_line_of_the_log(processes):
    ended(processes, "one", "import sys; print('first'); print(); sys.exit('protofleet: no key')")
    ended(processes, "two", "import sys; sys.exit(3)")
    ended(processes, "well", "print('done')")
    assert processes.failed() == {"one": "no key", "two": "its log is empty"}


def test_a_process_that_waits_for_room_on_its_disk_is_the_reason_of_all(processes, tmp_path):
    assert processes.disk_problem() == ""
    ended(processes, "one", f"print('the disk is full: no work is taken on {PAUSED}')")
    ended(processes, "two", "import sys; sys.exit('protofleet: broken')")
    assert processes.failed() == {
        "two": f"the disk that holds {tmp_path} is full; make room and run the same command again"
    }


def test_processes_are_stopped_when_their_run_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "command", lambda module, source: [sys.executable, "-c", source])
    with Processes(tmp_path) as processes:
        child = processes.start("one", "import time; print('up', flush=True); time.sleep(600)", piped=True)
        assert child.stdout.readline() == "up\n"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.1)
    assert child.returncode is not None
    child.stdout.close()
