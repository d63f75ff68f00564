"""A run of many devices by `protofleet run`, and its use of the GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protofleet.protocol.settings.reader import write_toml

NAME = "gpu"
NETWORK = "cnn23"
POLL_SECONDS = 0.05
LIMIT_SECONDS = 1800.0
RAN_OUT = "ran out of"  # The words in the log of a process whose work ran out of memory.


@dataclass(frozen=True)
class Wanted:
    devices: int
    rounds: int
    compute: str


@dataclass(frozen=True)
class Run:
    method: str
    seconds: float
    answers: int  # The number of answers in the round with the fewest.
    peak_bytes: int  # The peak of the used bytes of the GPU.
    out_of_memory: int
    accuracy: float | None  # The mean over domains after the last round.
    devices_per_second: float | None  # Devices that trained and answered, in the fastest round.
    problems: list[str] = field(default_factory=list)


def run_of(
    method: str, wanted: Wanted, folder: Path, used_bytes: Callable[[], int], network: str = NETWORK
) -> Run:
    (folder / "experiment.toml").write_text(write_toml(experiment(method, wanted, network)))
    command = ["protofleet", "run", str(folder / "experiment.toml"), "--runs", str(folder / "runs")]
    began, peak = time.monotonic(), 0
    with (folder / "output").open("w") as output:
        process = subprocess.Popen([sys.executable, "-m", *command], stdout=output, stderr=output)
        while process.poll() is None and time.monotonic() < began + LIMIT_SECONDS:
            peak = max(peak, used_bytes())
            time.sleep(POLL_SECONDS)
    stopped = process.poll() is None
    process.terminate()
    code = process.wait()
    rounds = rounds_of(folder / "runs" / NAME / "rounds.jsonl")
    answers = [min(len(phase["answered"]) for phase in one["phases"]) for one in rounds]
    problems = [f"not over after {LIMIT_SECONDS:.0f} s"] if stopped else [last_line(folder)] if code else []
    if answers and min(answers) < wanted.devices:
        problems.append(f"{min(answers)} of {wanted.devices} devices answered in the worst round")
    seconds = time.monotonic() - began
    return Run(
        method, seconds, min(answers, default=0), peak, out_of_memory(folder), accuracy_of(folder),
        devices_per_second(rounds), problems,
    )  # fmt: skip


def accuracy_of(folder: Path) -> float | None:
    file = folder / "runs" / NAME / "summary.json"
    return json.loads(file.read_text())["accuracy"]["final"].get("mean") if file.exists() else None


def devices_per_second(rounds: list[dict[str, Any]]) -> float | None:
    """Return the devices per second of the fastest round; the first round includes work that happens once."""
    trained = [len(one["participants"]) / one["seconds"] for one in rounds if one["kind"] == "training"]
    return max(trained, default=None)


def experiment(method: str, wanted: Wanted, network: str = NETWORK) -> dict[str, object]:
    return {
        "name": NAME,
        "rounds": wanted.rounds,
        "compute": wanted.compute,
        "method": {"name": method},
        "network": {"name": network},
        "data": {"source": "digits", "samples": 60, "test_samples": 100},
        "devices": {"count": wanted.devices},
    }


def rounds_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def out_of_memory(folder: Path) -> int:
    logs = (folder / "runs" / NAME / "logs").glob("device*.log")
    return sum(RAN_OUT in line for path in logs for line in path.read_text(errors="replace").splitlines())


def last_line(folder: Path) -> str:
    return (folder / "output").read_text(errors="replace").strip().rpartition("\n")[2]


def report(run: Run) -> str:
    return (
        f"{run.method:10} {run.seconds:7.1f} s, {run.devices_per_second or 0:6.1f} devices a second, accuracy "
        f"{100 * (run.accuracy or 0):5.1f} %, {run.answers:4} answers in each round, the GPU's peak "
        f"{run.peak_bytes / 1e6:7,.0f} MB, out of memory {run.out_of_memory} times"
    )
