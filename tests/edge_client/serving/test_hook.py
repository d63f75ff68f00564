"""The owner's command runs after each change of version, and the device continues even if the command fails."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from protofleet.edge_client.serving.hook import ModelHook


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def python(text, *more):
    return [sys.executable, "-c", text, *more]


def test_the_hook_gets_the_version_in_its_environment_and_runs_without_a_shell(tmp_path):
    seen, words = tmp_path / "seen", "$HOME; touch here && *"
    text = "import os, sys; open(sys.argv[1], 'w').write(os.environ['PROTOFLEET_MODEL'] + '|' + sys.argv[2])"
    hook = ModelHook(python(text, str(seen), words))
    hook.changed(tmp_path / "v000003")
    until(lambda: seen.exists() and seen.read_text())
    assert seen.read_text() == f"{tmp_path / 'v000003'}|{words}" and not hook.failures


def test_a_hook_that_does_not_end_is_killed_with_its_children(tmp_path):
    note = tmp_path / "pid"
    text = (
        "import subprocess, sys, time; child = subprocess.Popen(['sleep', '600']); "
        "open(sys.argv[1], 'w').write(str(child.pid)); time.sleep(600)"
    )
    hook = ModelHook(python(text, str(note)), seconds=2.0)
    hook.changed(tmp_path)
    until(lambda: hook.failures)
    assert hook.failures == 1

    until(lambda: not is_running(int(note.read_text())))


def test_a_program_that_a_finished_hook_started_is_not_killed(tmp_path):
    note = tmp_path / "pids"
    text = "import subprocess, sys; print(subprocess.Popen(['sleep', '30']).pid, file=open(sys.argv[1], 'a'))"
    hook = ModelHook(python(text, str(note)))
    for told in (1, 2):  # and the device does not wait for it
        hook.changed(tmp_path)
        until(lambda told=told: note.exists() and len(note.read_text().split()) == told)
    for pid in map(int, note.read_text().split()):
        assert is_running(pid)
        os.kill(pid, signal.SIGKILL)
    assert not hook.failures


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["/no/such/program"], "No such file or directory"),
        (python("import sys; sys.exit('it is not there')"), "exit code 1: it is not there"),
    ],
)
def test_a_failed_hook_is_counted_and_logged(tmp_path, caplog, command, words):
    hook = ModelHook(command)
    hook.changed(tmp_path / "v000004")
    until(lambda: hook.failures == 1)
    until(lambda: "v000004" in caplog.text)
    assert words in caplog.text


def test_changes_during_a_hook_cause_one_more_hook_with_the_last_version(tmp_path):
    seen = tmp_path / "seen"
    text = (
        "import os, sys, time; open(sys.argv[1], 'a').write(os.path.basename(os.environ['PROTOFLEET_MODEL']) + ' '); "
        "time.sleep(0.5)"
    )
    hook = ModelHook(python(text, str(seen)))
    for name in ("v1", "v2", "v3"):
        hook.changed(tmp_path / name)
        if name == "v1":
            until(seen.exists)
    until(lambda: "v3" in seen.read_text())
    assert seen.read_text().split() == ["v1", "v3"]


def test_stop_kills_a_running_hook_and_prevents_new_ones(tmp_path):
    note = tmp_path / "pid"
    text = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    hook = ModelHook(python(text, str(note)))
    hook.changed(tmp_path)
    until(lambda: note.exists() and note.read_text())
    hook.stop()
    until(lambda: not is_running(int(note.read_text())))
    hook.changed(tmp_path)  # and no new command starts
    assert not hook.failures
