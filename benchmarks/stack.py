"""How soon `make up` has its first round on images that are there, and the memory of each container in the third.

UP has more words for it, as `make up ARGS=` takes them. Memory is the kernel's PSS: pages that containers share, such
as torch's, are counted once and shared out.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.flower_app.processes import held
from protofleet.coordinator.observe.journal import read_rounds

ROUNDS = 3
PATIENCE = 300.0
NAME = f"bench{os.getpid()}"


def measure() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "stack"
        try:
            return measured(folder)
        finally:
            stack(folder, "down", "--forget")


def measured(folder: Path) -> dict[str, object]:
    began = time.monotonic()
    stack(folder, "up", *shlex.split(os.environ.get("UP", "")))
    up = time.monotonic() - began
    first = seconds_to(folder, 1, began)
    seconds_to(folder, ROUNDS, began)
    names = told("docker", "ps", "--filter", f"name={NAME}-", "--format", "{{.Names}}")
    memory = {name.removeprefix(f"{NAME}-"): memory_of(name) for name in sorted(names)}
    return {"up_s": round(up, 1), "first_round_s": round(first, 1), "memory_MB": memory}


def stack(folder: Path, job: str, *words: str) -> None:
    named = ("--name", NAME) if job == "up" else ()
    command = [sys.executable, "-m", "protofleet.deploy.stack", job, "--folder", str(folder), *named, *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def seconds_to(folder: Path, rounds: int, began: float) -> float:
    while not any(len(read_rounds(f)) >= rounds for f in folder.glob("state/coordinator/*/rounds.jsonl")):
        if time.monotonic() > began + PATIENCE:
            raise TimeoutError(f"round {rounds} did not end within {PATIENCE:.0f} s")
        time.sleep(0.1)
    return time.monotonic() - began


def memory_of(container: str) -> float:
    processes = told("docker", "top", container, "-eo", "pid")[1:]
    return held(int(number) for number in processes)["pss_MB"]


def told(*command: str) -> list[str]:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
