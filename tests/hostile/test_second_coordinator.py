"""Two coordinators of one federation, one of which does not look before it acts: the later one continues."""

import re
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.hostile.device import honest
from tests.hostile.federation import Federation

# With this option, a coordinator acts as those of earlier releases do: it does not look whether another one leads.
BLIND = ["--own-broker"]


class Gate(threading.Event):
    """A gate for the work of a device: until a test opens it, the run cannot end."""

    def work(self, task):
        return honest(task) if self.is_set() or task.round == 1 else None


@pytest.fixture
def gate():
    return Gate()


def test_the_earlier_of_two_coordinators_ends_and_names_the_epoch_of_the_later_one(tmp_path, gate):
    with Federation(tmp_path, "one", "two", rounds=3) as f:
        first = f.coordinator(folder=str(tmp_path / "first"))
        one, two = f.raw("one", gate.work), f.raw("two", gate.work)
        one.wait("receipt")
        before = one.epoch
        time.sleep(1.1)  # An epoch is a second of the clock.
        second = f.coordinator(folder=str(tmp_path / "second"), options=BLIND)
        assert f.wait_for_end(first) == 3
        one.wait_until(lambda: one.epoch > before, "the later coordinator")
        words = first.last_word()
        assert str(one.epoch) in words and str(before) in words, words
        assert f"the other is {socket.gethostname()} pid {second.child.pid} folder " in f.log_of(first)
        assert str(tmp_path) not in "".join(h.fields.get("who", "") for h in one.heard if h.kind == "state")
        assert "Traceback" not in f.log_of(first)
        gate.set()
        assert f.wait_for_end(second) == 0, second.last_word()
        two.wait("finished")


TWINS = """
import time, os, platform, pathlib
import protofleet.coordinator.spool.epochs as epochs, protofleet.coordinator.connection as connection
now, process_identity = {now}, epochs.process_identity
time.time = lambda: now
os.getpid = lambda: 1
platform.node = lambda: "coordinator"
connection.process_identity = lambda folder: process_identity(pathlib.Path("/srv/runs/run"))
"""


def test_one_of_two_containers_with_the_same_name_and_start_time_continues(tmp_path):
    """Both have the same host name, the same process id and the same path."""
    planted = TWINS.format(now=int(time.time()) + 0.5)
    with Federation(tmp_path, "one", rounds=1) as f:
        pair = [
            f.coordinator(planted=planted, folder=str(tmp_path / name), options=BLIND)
            for name in ("first", "second")
        ]
        f.wait_until(lambda: any(p.child.poll() is not None for p in pair), "one of them to end")
        ended, other = sorted(pair, key=lambda p: p.child.poll() is None)
        assert f.wait_for_end(ended) == 3
        assert "started in the same second" in ended.last_word()
        f.raw("one")
        assert f.wait_for_end(other) == 0, other.last_word()


def test_a_second_coordinator_with_a_slow_clock_ends_and_the_first_run_continues(tmp_path, gate):
    with Federation(tmp_path, "one", "two", rounds=3) as f:
        first = f.coordinator(ahead=3600.0, folder=str(tmp_path / "first"))
        one, two = f.raw("one", gate.work), f.raw("two", gate.work)
        one.wait("receipt")
        second = f.coordinator(folder=str(tmp_path / "second"), options=BLIND)
        assert f.wait_for_end(second) == 3
        assert str(one.epoch) in second.last_word(), second.last_word()
        gate.set()
        assert f.wait_for_end(first) == 0, first.last_word()
        two.wait("finished")


def test_an_outranked_coordinator_leads_when_it_is_restarted(tmp_path, gate):
    """It continues its own run."""
    with Federation(tmp_path, "one") as f:
        first = f.coordinator(folder=str(tmp_path / "first"))
        one = f.raw("one", gate.work)
        one.wait("receipt")
        time.sleep(1.1)  # An epoch is a second of the clock.
        second = f.coordinator(folder=str(tmp_path / "second"), rounds=40, options=BLIND)
        assert f.wait_for_end(first) == 3
        again = f.coordinator(folder=str(tmp_path / "first"), options=BLIND)
        assert f.wait_for_end(second) == 3
        gate.set()
        assert f.wait_for_end(again) == 0, again.last_word()
        one.wait("finished")


def test_a_run_under_a_fast_clock_does_not_stop_later_runs(tmp_path):
    """Devices, the broker and the folder of runs remember its epoch. With another folder, the log names a step."""
    with Federation(tmp_path, "one", rounds=1) as f:
        spring = f.coordinator(ahead=86_400.0, name="spring")
        one = f.raw("one")
        assert f.wait_for_end(spring) == 0, spring.last_word()
        summer = f.coordinator(name="summer")
        assert f.wait_for_end(summer) == 0, summer.last_word()
        elsewhere = f.coordinator(name="autumn", folder=str(tmp_path / "elsewhere"), options=BLIND)
        assert f.wait_for_end(elsewhere) == 3
        number, path = re.search(r"write (\d+) into (\S+) and start", f.log_of(elsewhere)).groups()
        Path(path).write_text(number)
        again = f.coordinator(name="autumn", folder=str(tmp_path / "elsewhere"))
        assert f.wait_for_end(again) == 0, again.last_word()
        assert one.epoch > int(number) > time.time() + 80_000
