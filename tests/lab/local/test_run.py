"""The command does whole runs in real processes, and reports each mistake in one line."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from html import escape
from pathlib import Path

import numpy as np
import pytest

from protofleet.coordinator.observe.rounds_file import read_rounds
from protofleet.runtime.host.machine import machine_words, software_words
from protofleet.runtime.installation.version import installed_version
from tests.support.forked_program import forked_program
from tests.support.held_run import HeldRun

ROOT = Path(__file__).parents[3]
SMALL = """
name = "small"
rounds = 2
classes = 3
[method]
name = "fedavg"
epochs = 1
batch = 8
[network]
name = "mlp"
[data]
source = "folder"
root = "{data}"
size = 8
split = "iid"
[devices]
count = 3
[broker]
kind = "{broker}"
"""


def command(*arguments):
    return [sys.executable, "-m", "protofleet", *map(str, arguments)]


def protofleet(*arguments, cwd, timeout=120):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command(*arguments), cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout
    )


@pytest.fixture
def place(tmp_path):
    return furnished(tmp_path)


def furnished(tmp_path):
    """Put data and an experiment into a folder, and return the folder."""
    from PIL import Image

    dice = np.random.default_rng(0)
    for label in ("circle", "line", "square"):
        folder = tmp_path / "data" / label
        folder.mkdir(parents=True)
        base = dice.integers(0, 255, (8, 8, 3))
        for i in range(40):
            noisy = np.clip(base + dice.integers(-20, 20, base.shape), 0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(folder / f"{i}.png")
    (tmp_path / "small.toml").write_text(SMALL.format(data=tmp_path / "data", broker="auto"))
    return tmp_path


def lines(place, name="small"):
    return [json.loads(line) for line in (place / "runs" / name / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("broker", ["mosquitto", pytest.param("embedded", marks=pytest.mark.slow)])
def test_a_run_writes_its_results_and_its_report(place, broker):
    (place / "small.toml").write_text(SMALL.format(data=place / "data", broker=broker))
    done = protofleet("run", "small.toml", cwd=place)
    assert done.returncode == 0, done.stderr + done.stdout
    assert [r["round"] for r in lines(place)] == [1, 2, 3]
    run = place / "runs" / "small"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["method"] == "fedavg" and summary["rounds"] == 2
    here = {"software": software_words(installed_version()), "machine": machine_words()}
    assert {(one["software"], one["machine"]) for one in summary["devices"].values()} == {
        tuple(here.values())
    }
    assert summary["versions"]["machine"] == machine_words()
    report = (run / "report.html").read_text()
    matrices = lines(place)[-1]["confusion"].values()
    assert matrices and all(len(matrix) == 3 for matrix in matrices) and "Confused classes" in report
    assert "<svg" in report and escape(machine_words()) in report
    held = [json.loads((run / "devices" / f"device-{i}" / "data.json").read_text()) for i in (1, 2, 3)]
    assert [sum(one["counts"]) for one in held] == [m["examples"] for m in summary["devices"].values()]
    assert "training samples of 3 classes on 3 devices" in report
    said = (run / "logs" / "coordinator.log").read_text()
    assert re.search(
        r"round 2 of 2: 3 of 3 devices answered, accuracy .*% \(global\), tensors up .* kB, down .* kB, .* s",
        said,
    )
    assert (
        "waiting for devices: 0 of 3 are here (policy.quorum is 3); not here: device-1, device-2, device-3"
        in said
    )
    device = "".join(path.read_text() for path in (run / "logs").glob("device*.log"))
    assert re.search(r"round 2 train: the update is accepted: .* s of work, .* kB, accuracy .*", device)
    assert {"experiment.toml", "rounds.copy.jsonl"} <= {p.name for p in run.iterdir()}
    assert "Traceback" not in done.stderr + "".join(p.read_text() for p in (run / "logs").glob("*.log"))


@pytest.mark.slow
def test_a_run_that_diverges_ends_with_exit_code_4_and_writes_a_report(place):
    wild = ("method.lr=1000.0", "method.momentum=0.99", "method.epochs=40")
    options = ("small.toml", *(part for change in wild for part in ("--set", change)))
    done = protofleet("run", *options, cwd=place)
    assert done.returncode == 4, done.stderr + done.stdout
    assert done.stderr.splitlines()[-1].startswith("protofleet: the run cannot continue: ")
    assert "lower method.lr" in done.stderr and "cannot continue" not in done.stdout, (
        "the error is printed once"
    )
    assert "Traceback" not in done.stderr
    run = place / "runs" / "small"
    assert "This run has come to nothing: " in (run / "report.html").read_text()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["rounds_done"] < summary["rounds"] == 2
    again = protofleet("run", *options, "--seeds", "0", cwd=place)
    assert again.returncode == 1 and "failed: small-s0: the run cannot continue: " in again.stdout
    once_more = protofleet("run", *options, "--seeds", "0", cwd=place)
    assert "this run has already ended: diverged: " in once_more.stdout and once_more.returncode == 1


@pytest.mark.slow
def test_a_run_with_a_spent_budget_ends_with_exit_code_5_and_writes_its_results(place):
    options = ("small.toml", "--set", "rounds=6", "--set", "budget.price_per_gb=4", "--set")
    done = protofleet("run", *options, "budget.bytes_per_device=220 kB", cwd=place)
    assert done.returncode == 5, done.stderr + done.stdout
    assert re.search(
        r"^budget: a round transfers about 5\d\.\d kB .* holds 3 of 6 rounds$", done.stdout, re.MULTILINE
    )
    (said,) = (line for line in done.stderr.splitlines() if "ended early" in line)
    assert said.startswith("protofleet: the run has ended early: the budget of 3 of 3 devices does not hold")
    assert "Traceback" not in done.stderr
    run = place / "runs" / "small"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["ended"] == "finished" and said.endswith(summary["stopped"])
    assert "budget.bytes_per_device is 220.0 kB (cost 0.00088)" in summary["stopped"]
    assert summary["rounds_done"] == 3 and len(read_rounds(run / "rounds.jsonl")) == 4
    assert "This run was stopped after 3 of 6 rounds" in (run / "report.html").read_text()
    seeds = protofleet("run", *options, "budget.bytes_per_device=220 kB", "--seeds", "0", cwd=place)
    assert seeds.returncode == 0 and "1 of 1 runs are finished" in seeds.stdout
    once_more = protofleet("run", *options, "budget.bytes_per_device=220 kB", "--seeds", "0", cwd=place)
    assert once_more.returncode == 0 and "this run has already ended: finished" in once_more.stdout


@pytest.mark.slow
def test_a_device_budget_too_small_for_one_round_is_refused_before_the_run_starts(place):
    done = protofleet("run", "small.toml", "--set", "budget.bytes_per_device=50 kB", cwd=place)
    assert done.returncode == 2 and not (place / "runs").exists()
    (said,) = done.stderr.splitlines()
    assert (
        "budget.bytes_per_device is 50.0 kB, but to join, one round and the evaluation at the end transfer"
        in said
    )
    assert said.endswith("raise the limit, or send less with a codec, a smaller network or another method")


@pytest.mark.slow
def test_a_run_budget_too_small_for_one_round_is_refused_before_the_run_starts(place):
    done = protofleet("run", "small.toml", "--set", "budget.bytes=100 kB", cwd=place)
    assert done.returncode == 2 and not (place / "runs").exists()
    (said,) = done.stderr.splitlines()
    assert (
        "budget.bytes is 100.0 kB, but to join and one round transfer" in said and "policy.quorum = " in said
    )


ROUNDS = 12


def start(place, held=None):
    """Start a run of ROUNDS rounds, or fewer if `held` stops it."""
    environment = held.environment if held else {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command("run", "small.toml", "--set", f"rounds={ROUNDS}"),
        cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def wait_for_rounds(place, number, name="small"):
    """Wait until the run has written `number` whole lines of rounds, as it may be in the middle of a line."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if len(read_rounds(place / "runs" / name / "rounds.jsonl")) >= number:
            return
        time.sleep(0.005)  # between two looks
    raise AssertionError(f"no {number} rounds after 90 s")


@pytest.mark.slow
def test_control_c_ends_a_run_cleanly_and_the_same_command_continues_it(place):
    first = start(place, held := HeldRun(place / "held", 4))
    wait_for_rounds(place, 3)
    first.send_signal(signal.SIGINT)
    held.let_go()
    out, err = first.communicate(timeout=40)
    assert first.returncode == 1 and "the same command continues the run" in err and "Traceback" not in err
    before = len(lines(place))
    assert 3 <= before <= ROUNDS
    second = start(place)
    out, err = second.communicate(timeout=120)
    assert second.returncode == 0, err
    assert "continuing" in out
    assert [r["round"] for r in lines(place)] == list(range(1, ROUNDS + 2))


@pytest.mark.slow
def test_a_sigterm_stops_a_sweep_and_the_same_command_continues_it(place):
    held = HeldRun(place / "held", 4)
    sweep = ("sweep", "small.toml", "--set", "rounds=8", "--grid", "method.lr=0.01,0.02", "--seeds", "1")
    first = subprocess.Popen(
        command(*sweep), cwd=place, env=held.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    wait_for_rounds(place, 2, "small-lr-0.01-s1")
    first.send_signal(signal.SIGTERM)
    held.let_go()
    out, err = first.communicate(timeout=60)
    assert first.returncode == 1 and "--- 2 of 2" not in out and "chosen" not in out
    said = "stopped in small-lr-0.01-s1; 0 of 2 runs are finished, and the same command goes on from here"
    assert err.splitlines()[-1] == f"protofleet: {said}"
    done = protofleet(*sweep, cwd=place)
    assert done.returncode == 0 and "2 of 2 runs are finished" in done.stdout and "continuing" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["mosquitto", "embedded"])
def test_a_killed_broker_of_the_run_is_restarted_at_once(place, broker):
    (place / "small.toml").write_text(SMALL.format(data=place / "data", broker=broker))
    run = start(place, held := HeldRun(place / "held", 4))
    wait_for_rounds(place, 3)
    (victim,) = processes_with("mosquitto" if broker == "mosquitto" else "brokers.embedded", str(place))
    os.kill(victim, signal.SIGKILL)
    held.let_go()
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, out + err
    assert "has ended (killed by signal 9); it is started again, and the run goes on" in out
    assert [r["round"] for r in lines(place)] == list(range(1, ROUNDS + 2))
    assert max(r["seconds"] for r in lines(place)) < 30, "the restart took 73 s in an earlier version"


def processes_with(*words):
    """Return the processes whose command line has all words, without the shells that started them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if line[0] != "sh" and all(any(word in part for part in line) for word in words):
            found.append(int(path.parent.name))
    return found


@pytest.mark.slow
def test_a_finished_run_is_renamed_and_an_unfinished_run_refuses_other_settings(place):
    run = place / "runs" / "small"
    run.mkdir(parents=True)
    (run / "experiment.toml").write_text("rounds = 99\n")
    (run / "rounds.jsonl").write_text("{}\n")
    done = protofleet("run", "small.toml", cwd=place)
    assert done.returncode == 2 and "rename the folder of this run with --fresh" in done.stderr
    (run / "summary.json").write_text("{}")
    done = protofleet("run", "small.toml", cwd=place)
    assert done.returncode == 0 and (place / "runs" / "small.1" / "experiment.toml").exists()


MISTAKES = {
    "unknown key": (["run", "small.toml", "--set", "method.tua=1"], 2, "method.tua is not a setting"),
    "wrong type": (["run", "small.toml", "--set", "rounds=many"], 2, 'rounds is "many", but must be a whole number'),
    "impossible value": (["run", "small.toml", "--set", "method.lr=-1"], 2, "lr is -1"),
    "unknown method": (["run", "small.toml", "--set", "method.name=fedmagic"], 2, "no method 'fedmagic'; did you"),
    "unknown network": (["run", "small.toml", "--set", "network.name=vgg"], 2, "no network 'vgg'; "),
    "unknown source": (["run", "small.toml", "--set", "data.source=moon"], 2, "moon"),
    "no such file": (["run", "none.toml"], 2, "there is no file none.toml"),
    "not TOML": (["run", "data/circle/1.png"], 2, "cannot be read"),
    "quorum too large": (["run", "small.toml", "--set", "policy.quorum=9"], 2, "policy.quorum is 9"),
    "gather too large": (
        ["run", "small.toml", "--set", "policy.gather=9"], 2, "policy.gather is 9, but there are 3 devices",
    ),
    "no broker": (
        ["run", "small.toml", "--set", "broker.kind=external", "--set", "broker.address.port=1"], 1,
        "nothing listens there",
    ),
    "empty data folder": (["run", "small.toml", "--set", "data.root={empty}"], 1, "{empty}"),
    "other classes": (["run", "small.toml", "--set", "classes=4"], 2, "classes is 4, but "),
    "no report": (["report", "nowhere"], 1, "nowhere"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gives_one_clear_line_and_its_exit_code(place, mistake):
    arguments, code, words = MISTAKES[mistake]
    empty = place / "empty"
    empty.mkdir()
    log = place / "mistake.log"
    made = forked_program([a.replace("{empty}", str(empty)) for a in arguments], log, place)
    assert made.wait(120) == code, log.read_text()
    said = log.read_text()
    assert words.replace("{empty}", str(empty)) in said, said
    assert "Traceback" not in said
    assert len([line for line in said.splitlines() if line.startswith("protofleet: ")]) == 1


@pytest.mark.slow
def test_a_second_thread_at_the_start_is_refused_for_fork_and_accepted_for_spawn(place):
    (place / "sitecustomize.py").write_text(
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{place}"}

    def run(*arguments):
        return subprocess.run(
            command("run", "small.toml", *arguments), cwd=place, env=environment, capture_output=True, text=True,
            timeout=120,
        )  # fmt: skip

    done = run()
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "protofleet: 2 threads run in the process that forks, it must be 1: " in done.stderr
    assert "devices.start=spawn" in done.stderr
    spawned = run("--set", "devices.start=spawn", "--fresh")
    assert spawned.returncode == 0, spawned.stderr


DEVICE = """
name = "a"
key = "keys/a.key"
coordinator_key = "keys/coordinator.pub"
patience_seconds = 1.0
[broker]
port = {port}
[data]
source = "folder"
root = "data"
size = 8
"""


@pytest.mark.slow
def test_a_device_without_a_key_or_a_broker_ends_with_the_reason(place):
    (place / "device.toml").write_text(DEVICE.format(port=1))
    done = protofleet("device", "device.toml", cwd=place)
    assert done.returncode == 2 and "there is no key file keys/a.key" in done.stderr
    assert protofleet("keys", "coordinator", "a", cwd=place).returncode == 0
    assert (place / "keys" / "a.key").stat().st_mode & 0o777 == 0o600
    done = protofleet("device", "device.toml", cwd=place)
    assert done.returncode == 1 and "127.0.0.1:1" in done.stderr and "gave up after 1 s" in done.stderr
    assert not re.search("Traceback", done.stderr)


def test_existing_keys_are_not_overwritten(place):
    assert protofleet("keys", "a", cwd=place).returncode == 0
    done = protofleet("keys", "a", cwd=place)
    assert done.returncode == 2 and "exists" in done.stderr


def mount(place, size):
    """Mount a separate small disk, or skip the test, as only root may mount one."""
    place.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True
    )
    if done.returncode:
        pytest.skip(f"cannot mount a small disk here: {done.stderr.decode().strip()}")


@pytest.mark.slow
def test_a_full_disk_gives_one_clear_line_and_the_run_continues_when_there_is_room(place):
    runs = place / "runs"
    mount(runs, "3m")
    try:
        done = protofleet(
            "run", "small.toml", "--set", "rounds=3", "--set", "network.feature_size=400", cwd=place
        )
        assert done.returncode == 1 and "is full; make room" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
        subprocess.run(["mount", "-o", "remount,size=100m", str(runs)], check=True)
        done = protofleet(
            "run", "small.toml", "--set", "rounds=3", "--set", "network.feature_size=400", cwd=place
        )
        assert done.returncode == 0, done.stderr
        assert [r["round"] for r in lines(place)] == [1, 2, 3, 4]
    finally:
        subprocess.run(["umount", str(runs)], check=True)
