"""A run is stopped while its devices train, and another begins: no answer to one may count in the other."""

import contextlib
import json
import shutil
import sys
from pathlib import Path

import pytest

from protofleet.coordinator.round.policy import Policy
from protofleet.protocol.security.enrolment import CURRENT
from tests.chaos.world import Process
from tests.hostile.federation import CLASSES, Federation

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "device.py"
ALONE = Policy(quorum=1, gather=1, settle_seconds=0.2)
BOTH = Policy(quorum=2, gather=2, settle_seconds=0.2)
HELD = """
import os, time
from protofleet.edge_client.job_runner import JobRunner
answer, folder, least = JobRunner.answer, {folder!r}, {least}
def held(runner, job, question, run):
    if question.round >= least and not os.path.exists(folder + "/go"):
        open(folder + "/at-" + os.path.basename(runner.state.folder), "w").close()
        while not os.path.exists(folder + "/go"):
            time.sleep(0.02)
    return answer(runner, job, question, run)
JobRunner.answer = held
"""


def held_in(f, least, *devices, planted=""):
    """Start devices that delay their work from round `least` on until a file `go` exists.

    Return the devices, and a check whether all of them have come so far.
    """
    planted += HELD.format(folder=str(f.folder), least=least)
    started = [f.device(name, planted=planted) for name in devices]
    return started, lambda: all((f.folder / f"at-{name}").exists() for name in devices)


def begun_anew(f, first, name, devices, **more):
    """Start a new run whose welcome its devices get before they finish the task of the old run."""
    first.say(15)
    first.child.wait(60)
    f.settings["name"] = name
    welcomed = len(f.proxy.frames("welcome", down=True)) + devices
    asked = len(f.proxy.frames("task", down=True)) + devices
    second = f.coordinator(name=name, **more)
    f.wait_until(lambda: len(f.proxy.frames("welcome", down=True)) >= welcomed, "the new run's welcomes")
    with contextlib.suppress(AssertionError):  # A task arrives this early only if the runs are confused.
        f.wait_until(lambda: len(f.proxy.frames("task", down=True)) >= asked, "tasks", seconds=2)
    (f.folder / "go").touch()
    return second


def counted(f, process):
    """Return the answers that a run counted, by round and phase."""
    lines = [json.loads(line) for line in f.log_of(process).splitlines() if line.startswith("{")]
    return [(e["round"], e["phase"], e["answers"]) for e in lines if e["event"] == "counted"]


@pytest.mark.parametrize("kind", ["same plan", "other plan", "same name"])
def test_a_late_answer_to_a_stopped_run_does_not_end_the_next_run(tmp_path, kind):
    with Federation(tmp_path, "one", "two", taken_over=True, rounds=3, policy=BOTH) as f:
        first = f.coordinator(name="spring")
        f.settings["name"] = "spring"
        devices, held = held_in(f, 3, "one", "two")
        f.wait_until(held, "round 3")
        if kind == "same name":
            first.say(15)
            first.child.wait(60)
            shutil.move(f.run, f.folder / "moved")
        name = "spring" if kind == "same name" else "summer"
        plan = {} if kind == "same plan" else {"seed": 2, "rounds": 2}
        before = len(f.proxy.frames("update", down=False))
        second = begun_anew(f, first, name, 2, **plan)
        assert f.wait_for_end(second) == 0, f.log_of(second)[-3000:]
        assert all(f.wait_for_end(device) == 0 for device in devices), f.last_words()
        assert "has answered round" not in f.log_of(second)
        assert {tuple(line["participants"]) for line in f.rounds()} == {("one", "two")}
        said = [frame.header for frame in f.proxy.frames("update", down=False)[before:]]
        assert {h["round"] for h in said[:2]} == {1} and {h["run"] for h in said} == {name}


def test_a_device_uses_no_state_of_an_earlier_run_with_the_same_plan(tmp_path):
    with Federation(
        tmp_path, "one", taken_over=True, rounds=2, policy=ALONE, method={"name": "fedproto"}
    ) as f:
        first = f.coordinator(name="spring")
        (device,), held = held_in(f, 1, "one")
        f.wait_until(held, "round 1")
        summer = begun_anew(f, first, "summer", 1)
        assert f.wait_for_end(summer) == 0 and f.wait_for_end(device) == 0, f.last_words()
        autumn, fresh = f.coordinator(name="autumn"), f.device("one")
        assert f.wait_for_end(autumn) == 0 and f.wait_for_end(fresh) == 0, f.last_words()
        said = [
            frame.header for frame in f.proxy.frames("update", down=False) if frame.header["run"] == "summer"
        ]
        assert sorted(h["round"] for h in said) == [1, 2, 3], "there is one answer to each task"
        assert counted(f, summer) == counted(f, autumn) != []
        assert "refused" not in f.log_of(device)


def smallest(f, name):
    """Start the device that docs/write-a-client.md explains."""
    address, keys = f.address(name), f.fleet.folder_of(name) / CURRENT
    given = [address.host, address.port, keys, f.folder / name, CLASSES, 10]
    made = Process(name, [sys.executable, "-I", str(EXAMPLE), *map(str, given)], f.folder / f"{name}.log")
    f.processes.append(made)
    made.start()
    return made


def test_a_device_repeats_no_answer_to_a_coordinator_that_has_not_sent_its_plan(tmp_path):
    with Federation(tmp_path, "one", "small", taken_over=True, rounds=100_000, policy=BOTH) as f:
        f.proxy.passes = lambda frame: not (frame.down and frame.kind == "receipt")
        first, devices = f.coordinator(), [f.device("one"), smallest(f, "small")]
        f.wait_until(lambda: len(f.rounds()) >= 2, "two rounds")
        first.say(15)
        first.child.wait(60)
        shutil.move(f.run, f.folder / "moved")
        f.proxy.passes = lambda frame: not (frame.down and frame.kind == "welcome")
        ended = max(frame.header["epoch"] for frame in f.proxy.frames("hello"))
        second = f.coordinator(rounds=1, seed=2)

        def said(kind, device=""):
            return [x for x in f.proxy.frames(kind, device, down=False) if x.header["epoch"] > ended]

        f.wait_until(lambda: min(len(said("hello", d)) for d in ("one", "small")) >= 2, "hellos 15 s apart")
        assert not said("update"), "updates are repeated after 5 s and 10 s"
        f.proxy.passes = lambda frame: True
        assert f.wait_for_end(second) == 0 and all(f.wait_for_end(d) == 0 for d in devices), f.last_words()
        assert "has answered round" not in f.log_of(second)
