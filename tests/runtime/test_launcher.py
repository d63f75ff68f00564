"""Tests that a forked child is like a new interpreter and ends with the process that forked it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from protofleet.runtime.children import Interpreters, Program
from protofleet.runtime.launcher import CAN_FORK, ForkedLauncher, Launcher, LauncherError
from tests.rooms import ROOT

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="processes are forked on Linux alone")
SOURCE = "tests.support.source"
FORKS = "tests.support.forks"
SLEEPS = "import time; print('up', flush=True); time.sleep(600)"
DESCRIBES = """
import json, logging, os, signal, sys, threading
import protofleet.runtime.launcher
print(json.dumps({
    "session": os.getsid(0) == os.getpid(), "folder": os.getcwd(), "argv": sys.argv,
    "handles": sorted(map(int, os.listdir("/proc/self/fd")))[:-1], "threads": len(os.listdir("/proc/self/task")),
    "environment": {k: v for k, v in os.environ.items() if k not in ("PROTOFLEET_PARENT", "LC_CTYPE")},
    "path": sys.path, "handlers": len(logging.getLogger().handlers), "input": sys.stdin.read(), "mask": os.umask(0),
    "signals": {n: repr(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)},
    "main": sys.modules["__main__"].__name__, "limits": __import__("resource").getrlimit(7),
    "end with": os.environ["PROTOFLEET_PARENT"] == str(os.getppid()),
}))
"""
DRAWS = "import os, random, numpy.random; print(random.random(), numpy.random.random(), os.urandom(8).hex())"
# `run` is an interpreter that only starts.
FORKS_ITSELF = f"""
import os, sys
from protofleet.runtime.children import Program
from protofleet.runtime.launcher import Launcher
launcher = Launcher(("numpy", "json"), here=True)
assert "numpy" in sys.modules and "OPENBLAS_NUM_THREADS" not in os.environ
needs_numpy = "import sys; sys.exit(5 * ('numpy' in sys.modules))"
child = launcher.start(Program("one", {SOURCE!r}, [needs_numpy]), stdout=1, stderr=2)
assert child.wait(60) == 5
launcher.start(Program("two", {SOURCE!r}, [{SLEEPS!r}]), stdout=1, stderr=2)
import time; time.sleep(600)
"""


@pytest.fixture
def launcher(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with Launcher(("json", "numpy.random")) as launcher:
        yield launcher


def start(starter, source, name="one", stdout=subprocess.PIPE, **more):
    return starter.start(Program(name, SOURCE, [source, "more"], **more), stdout, stderr=2)


def said(child):
    with child.stdout:
        return child.stdout.read()


def test_a_forked_child_has_the_state_of_a_new_interpreter(launcher, tmp_path):
    environment = {**os.environ, "HOME": str(tmp_path), "PROTOFLEET_PARENT": str(os.getpid())}
    given = {"environment": environment, "folder": str(tmp_path)}
    forked, fresh = (
        json.loads(said(start(starter, DESCRIBES, **given))) for starter in (launcher, Interpreters())
    )
    assert forked == fresh and forked["end with"]


def test_forked_children_draw_different_random_numbers(launcher):
    drawn = [said(start(launcher, DRAWS)).split() for _ in range(2)]
    assert all(one != other for one, other in zip(*drawn, strict=True))


@pytest.mark.parametrize(
    ("source", "code"), [("pass", 0), ("import sys; sys.exit(4)", 4), ("1 / 0", 1), ("import os; os.abort()", -6)]
)  # fmt: skip
def test_the_exit_code_of_a_forked_child_is_returned(launcher, source, code):
    child = start(launcher, source, stdout=2)
    assert (child.wait(60), child.poll()) == (code, code)


def test_a_forked_child_flushes_its_output_and_waits_for_its_threads(launcher):
    text = (
        "import threading, time; threading.Timer(0.3, lambda: print('late', end='')).start(); print('early')"
    )
    assert said(start(launcher, text)) == "early\nlate"


def test_a_forked_child_has_its_own_name_and_command_line(launcher):
    child = start(launcher, SLEEPS, name="device-7")
    assert child.stdout.readline() == "up\n"
    place = Path(f"/proc/{child.pid}")
    words = (place / "cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
    assert (place / "comm").read_text() == "device-7\n"
    assert words == [SOURCE, SLEEPS, "more"]
    child.kill()
    child.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_only_one_child_and_is_returned_as_its_exit_code(launcher, number):
    one, other = start(launcher, SLEEPS), start(launcher, SLEEPS)
    one.send_signal(number)
    assert one.wait(60) == -number and other.poll() is None
    one.send_signal(number)  # Another process may have its number by now.
    for child in (one, other):
        child.stdout.close()


def test_children_end_with_a_killed_launcher_and_the_next_child_has_a_new_launcher(launcher):
    child = start(launcher, SLEEPS)
    assert child.stdout.readline() == "up\n"
    os.kill(launcher.pid, signal.SIGKILL)
    assert said(child) == ""  # No process holds the other end any more.
    assert child.wait(60) == -signal.SIGKILL
    assert said(start(launcher, "print('again')")) == "again\n"


def test_a_thread_before_the_fork_is_refused_with_its_reason(tmp_path, monkeypatch):
    (tmp_path / "threaded.py").write_text(
        "import threading; threading.Thread(target=threading.Event().wait).start()"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Launcher(("threaded",)) as launcher, pytest.raises(LauncherError, match="2 threads run"):
        start(launcher, "pass", stdout=2)


def test_a_module_that_cannot_be_imported_does_not_affect_other_programs(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with Launcher(("nowhere", "json")) as launcher:
        assert said(start(launcher, "import sys; print('json' in sys.modules)")) == "True\n"


def test_children_of_a_forked_launcher_have_the_objects_of_its_program(launcher):
    with ForkedLauncher(launcher, Program("two", FORKS, ["import sys; sys.loaded = [1, 2]"])) as forked:
        assert said(start(forked, "import sys; print(sys.loaded)")) == "[1, 2]\n"
        assert said(start(launcher, "import sys; print(hasattr(sys, 'loaded'))")) == "False\n"


def test_a_child_of_a_forked_launcher_has_the_state_of_a_new_interpreter(launcher, tmp_path):
    given = {"environment": {**os.environ, "PROTOFLEET_PARENT": str(os.getpid())}, "folder": str(tmp_path)}
    with ForkedLauncher(launcher, Program("two", FORKS, ["pass"])) as forked:
        ours, fresh = (
            json.loads(said(start(starter, DESCRIBES, **given))) for starter in (forked, Interpreters())
        )
    assert ours == fresh and ours["end with"]


def test_the_first_launcher_forks_if_the_forked_launcher_has_started_a_thread(launcher):
    text = "import sys, threading; sys.loaded = 1; threading.Thread(target=threading.Event().wait).start()"
    with ForkedLauncher(launcher, Program("two", FORKS, [text])) as forked:
        assert said(start(forked, "import sys; print(hasattr(sys, 'loaded'))")) == "False\n"


def test_children_of_a_forked_launcher_end_with_it_and_with_the_first_launcher(launcher):
    for killed in ("forked", "launcher"):
        with ForkedLauncher(launcher, Program("two", FORKS, ["pass"])) as forked:
            child = start(forked, SLEEPS)
            assert child.stdout.readline() == "up\n"
            os.kill({"forked": forked, "launcher": launcher}[killed].pid, signal.SIGKILL)
            assert said(child) == "" and child.wait(60) == -signal.SIGKILL
            assert said(start(forked, "print('again')")) == "again\n"


def test_a_program_that_forks_its_own_launcher_leaves_nothing_when_it_is_killed():
    words = [sys.executable, "-c", FORKS_ITSELF]
    made = subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert made.stdout.readline() == "up\n"
    made.kill()
    assert said(made) == ""  # Neither the launcher nor its child holds the pipe.
    made.wait(60)


def test_a_request_longer_than_a_buffer_arrives_complete(launcher):
    environment = {**os.environ, **{f"LONG_{i}": "x" * 10_000 for i in range(100)}}
    assert (
        said(start(launcher, "import os; print(len(os.environ['LONG_99']))", environment=environment))
        == "10000\n"
    )


def test_a_wait_with_a_timeout_ends_while_the_child_still_runs(launcher):
    child = start(launcher, SLEEPS)
    begun = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.2)
    assert time.monotonic() - begun < 30
    child.stdout.close()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="names are not counted there")
def test_shared_memory_keeps_no_reference_to_a_name_that_was_looked_up():
    source = (
        "import sys; from protofleet.runtime.launcher_process import share_memory\n"
        "name = sys.intern('looked_up_once'); kind = type('Kind', (), {name: 1}); before = sys.getrefcount(name)\n"
        "getattr(kind, name); found = sys.getrefcount(name); share_memory()\n"
        "print(before, found, sys.getrefcount(name))"
    )
    said = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, cwd=ROOT, check=True
    )
    before, looked_up, shared = map(int, said.stdout.split())
    assert before == shared < looked_up, said.stdout
