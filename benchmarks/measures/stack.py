"""A start with `make up` when the images exist already.

The figures are the seconds until the first round, and the memory of each container in the third round. The
environment variable UP contains further arguments, like the variable ARGS of `make up`. Memory is the kernel's PSS:
pages that containers share, such as the pages of torch, are counted once and divided among the containers.
"""

from __future__ import annotations

import os
import shlex
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.harness.measure import Figure, MeasureError
from benchmarks.harness.processes import held
from benchmarks.harness.trees import Tree
from protofleet.coordinator.observe.rounds_file import read_rounds

ROUNDS = 3
PATIENCE = 300.0
NAME = f"bench{os.getpid()}"


@dataclass(frozen=True)
class Stack:
    name: str = "stack"
    what: str = "`make up` with existing images: seconds until its first round, memory in the third round"
    figures: ClassVar = {
        "up": Figure("s"), "first round": Figure("s"), "coordinator": Figure("MB", steady=True),
        "a device": Figure("MB", steady=True), "all containers": Figure("MB", steady=True),
    }  # fmt: skip

    def take(self, tree: Tree, folder: Path) -> dict[str, float]:
        place = folder / "stack"
        try:
            return measured(tree, place)
        except (TimeoutError, subprocess.CalledProcessError) as error:
            raise MeasureError(f"the stack: {error}") from None
        finally:
            stack(tree, place, "down", "--forget")


def measured(tree: Tree, folder: Path) -> dict[str, float]:
    began = time.monotonic()
    stack(tree, folder, "up", *shlex.split(os.environ.get("UP", "")))
    up = time.monotonic() - began
    first = seconds_to(folder, 1, began)
    seconds_to(folder, ROUNDS, began)
    names = told("docker", "ps", "--filter", f"name={NAME}-", "--format", "{{.Names}}")
    memory = {name.removeprefix(f"{NAME}-"): memory_of(name) for name in names}
    return {
        "up": up,
        "first round": first,
        "coordinator": memory["coordinator-1"],
        "a device": statistics.median(mb for name, mb in memory.items() if name.startswith("device-")),
        "all containers": sum(memory.values()),
    }


def stack(tree: Tree, folder: Path, job: str, *words: str) -> None:
    named = ("--name", NAME) if job == "up" else ()
    command = tree.command("protofleet.deploy.stack", job, "--folder", str(folder), *named, *words)
    quiet = subprocess.DEVNULL
    subprocess.run(command, check=True, stdout=quiet, stderr=quiet, env=tree.environment())


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
