"""Tests that a forked program behaves as a separate process that has already done all imports."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.forked_program import forked_program


@pytest.fixture
def waiting(tmp_path):
    """Start a program that waits for ever, because its settings file is a FIFO that no process writes."""
    os.mkfifo(tmp_path / "settings.toml")
    made = forked_program(["device", str(tmp_path / "settings.toml")], tmp_path / "log")
    yield made
    made.kill()


def test_a_forked_program_appends_to_its_log_and_returns_its_exit_code(tmp_path):
    log = tmp_path / "log"
    log.write_text("before\n")
    made = forked_program(["coordinator", str(tmp_path / "nowhere.toml")], log)
    assert (made.wait(60.0), made.poll()) == (2, 2)
    first, second = log.read_text().splitlines()
    assert first == "before" and "nowhere.toml" in second


def test_the_log_of_a_forked_program_exists_from_its_start(waiting, tmp_path):
    assert (tmp_path / "log").read_text() == ""


def test_a_forked_program_has_its_own_session_and_torch_in_memory(waiting):
    while os.getsid(waiting.pid) != waiting.pid:  # A forked program starts a new session first.
        assert waiting.poll() is None
        time.sleep(0.01)
    assert "libtorch" in Path(f"/proc/{waiting.pid}/maps").read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_exit_code_of_a_forked_program_names_the_signal_that_ended_it(waiting, number):
    waiting.send_signal(number)
    assert waiting.wait(60.0) == -number


def test_a_planted_fault_runs_before_our_modules_are_imported(tmp_path):
    planted = (
        "import sys\nprint('torch' in sys.modules, 'protofleet.coordinator.main' in sys.modules, flush=True)"
    )
    made = forked_program(["coordinator", str(tmp_path / "nowhere.toml")], tmp_path / "log", planted=planted)
    assert made.wait(60.0) == 2
    first, second = (tmp_path / "log").read_text().splitlines()
    assert first == "True False" and "nowhere.toml" in second
