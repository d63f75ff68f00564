"""Tests of child processes: stopped in order, killed if they do not stop, ended with their parent, and logged."""

import os
import select
import signal
import subprocess
import sys
import time

import pytest

from protofleet.runtime import children

WAIT = "import time; time.sleep(600)"
POLITE = f"print('up', flush=True); {WAIT}"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {POLITE}"
PARENT = f"""
import subprocess, sys
from protofleet.runtime import children
child = "from protofleet.runtime import children; children.end_with_parent(); print('up', flush=True); {WAIT}"
subprocess.Popen([sys.executable, "-c", child], env=children.environment_of_child())
{WAIT}
"""


class Noted(subprocess.Popen):
    """A process that adds up the time-outs of all waits for it."""

    def __init__(self, command, **how):
        self.seconds = 0.0
        super().__init__(command, **how)

    def wait(self, timeout=None):
        self.seconds += timeout or 0.0
        return super().wait(timeout)


class Impatient(Noted):
    """A process whose first wait with a time-out is interrupted, as by a second Ctrl-C."""

    interrupted = False

    def wait(self, timeout=None):
        if timeout is not None and not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        return super().wait(timeout)


@pytest.fixture
def start():
    started = []

    def start(source, kind=Noted):
        child = kind([sys.executable, "-c", source], stdout=subprocess.PIPE)
        started.append(child)
        assert child.stdout.readline() == b"up\n"
        return child

    yield start
    for child in started:
        child.kill()
        child.wait()
        child.stdout.close()


def test_children_that_ignore_sigterm_are_killed_after_one_common_wait(start):
    processes = [start(STUBBORN), start(POLITE), start(STUBBORN)]
    began = time.monotonic()
    children.stop(processes, 5.0)
    assert [child.returncode for child in processes] == [-signal.SIGKILL, -signal.SIGTERM, -signal.SIGKILL]
    assert time.monotonic() - began >= 5.0 and sum(child.seconds for child in processes) < 6.0


def test_an_interrupt_while_children_are_stopped_leaves_no_child(start):
    stubborn = [start(STUBBORN, Impatient), start(STUBBORN)]
    with pytest.raises(KeyboardInterrupt):
        children.stop(stubborn, 30.0)
    assert [child.returncode for child in stubborn] == [-signal.SIGKILL] * 2


def test_wait_returns_the_children_that_still_run(start):
    ended, running = start(POLITE), start(POLITE)
    ended.kill()
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # Its exit code can still be read.
    assert children.wait([ended, running], 0.5) == [running]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends children with their parent")
def test_a_child_ends_with_a_parent_that_is_killed(start):
    parent = start(PARENT)  # The child of this parent writes to the same pipe.
    parent.kill()
    assert select.select([parent.stdout], [], [], 30)[0] and os.read(parent.stdout.fileno(), 1) == b""


def test_the_last_lines_of_a_log_are_lines_of_this_start(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(b"earlier\n")
    assert children.last_lines(log) == ["earlier"]
    begin = log.stat().st_size
    assert children.last_lines(log, begin) == []
    with log.open("ab") as file:
        file.write(b"x" * 2 * children.TAIL + b"\n\nlast \xff\n \n")
    assert children.last_lines(log, begin)[1:] == ["last �"]
