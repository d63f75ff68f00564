"""Tests that each benchmark that a page quotes starts with the smallest size, and names the version of a peer."""

import fnmatch
import os
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from benchmarks.flower_app import __file__ as flower_app
from benchmarks.harness.compare import once
from benchmarks.harness.trees import ROOT, this_tree
from benchmarks.measures.answers import Answers
from benchmarks.measures.broadcast import Broadcast
from benchmarks.measures.catalog import ALL, LARGE_DEVICE
from benchmarks.measures.crowd import Crowd, Restart
from benchmarks.measures.engine_tasks import EngineTasks
from benchmarks.measures.federation_tasks import FederationTasks
from benchmarks.measures.first_question import FirstQuestion
from benchmarks.measures.flower import PEER, VERSION, WANTED, Flower, NotInstalled, environment
from benchmarks.measures.flower_simulation import WANTED as SIMULATION_WANTED
from benchmarks.measures.flower_simulation import FlowerSimulation
from benchmarks.measures.idle import Idle, IdleService
from benchmarks.measures.program import Program
from benchmarks.measures.run import Run
from benchmarks.measures.run_memory import RunMemory
from benchmarks.measures.several_nodes import SeveralNodes
from benchmarks.measures.stack import Stack
from benchmarks.measures.sweep_tasks import SweepTasks
from benchmarks.measures.two_slots import TwoSlots
from protofleet.protocol.settings.reader import read_toml

PAGES = ("README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
PEERS = ("flower", "flower-simulation-1", "flower-simulation-10")
TUN = "/dev/net/tun"
ENGINES = ("engine-tasks",)  # They start a Slurm and a Ray, which only some machines have.
# Peers are installed from the network, and Ray starts slowly: two benchmarks took 180 s. The others took 227 s of CPU
# together, half of this test. `make peers` starts them.
WITH_PEERS = bool(os.environ.get("PROTOFLEET_PEERS"))
LONG = (
    "virtual-line", "memory", "sweep-tasks", "two-slots", "several-nodes", "rounds", "round-run", "federation-tasks",
    "virtual-large",
)  # fmt: skip
INSTALLED = (
    (Flower, "flower-venv", WANTED),
    (FlowerSimulation, "flower-simulation-venv", SIMULATION_WANTED),
)
# The arguments of the programs, in place of their usual sizes.
SMALLEST = {
    "bare": {"devices": 1, "examples": 64, "rounds": 2},
    "beside": {},
    "coding": {"times": 1},
    "hosted": {"devices": 2, "rounds": 2},
    "hosted_round": {"devices": 2, "rounds": 2},
    "large": {"megabytes": 0.1, "devices": 1, "rounds": 2},
    "memory": {"cohorts": [2]},
    "rounds": {"devices": 2, "rounds": 2},
    "sealing": {"size": 1_000_000, "rounds": 2},
    "transfer": {"size": 1 << 20},
    "virtual_fleet": {"devices": 6, "cohort": 3, "rounds": 1},
    "virtual_line": {"rounds": 2, "width": 4, "loss": 0.0, "mbits": 20.0, "delay": 0.01},
    "wear": {"methods": ["fedavg"], "rounds": 2},
}


def quoted_in(text):
    """Return the names of measures after a command, or alone between backticks if they contain a hyphen."""
    commands = re.findall(r"python -m benchmarks ([^`\n]+)", text)
    words = {word for command in commands for word in command.split()} | set(
        re.findall(r"`(\w+-[\w.-]+)`", text)
    )
    return {word for word in words if word in ALL}


QUOTED = sorted({name for page in PAGES for name in quoted_in((ROOT / page).read_text())})


def smallest(measure):
    match measure:
        case Answers():
            return Answers(2, rounds=2)
        case Broadcast():
            return Broadcast(3, rounds=2)
        case Crowd():
            return Crowd(3, asked=2, rounds=2)
        case Restart():
            return Restart(3)
        case Idle():
            return Idle(2, asked=1, settle_seconds=1.0, seconds=2.0)
        case IdleService():
            return IdleService(2, settle_seconds=1.0, seconds=2.0)
        case TwoSlots():
            # On a busy machine, the first of two short runs is over when the second is submitted.
            return TwoSlots(1, devices=2, rounds=2, overlap=0.0)
        case FirstQuestion():
            return FirstQuestion(devices=2, runs=1)
        case Run():
            return Run(devices=2, rounds=2, process_each=measure.process_each)
        case RunMemory():
            return RunMemory(replace(measure.run, devices=2, rounds=3))
        case SeveralNodes():
            return SeveralNodes(devices=2, rounds=2)
        case EngineTasks():
            return EngineTasks(rates=("0.01",), rounds=1)
        case SweepTasks():
            return SweepTasks(rates=("0.01",), sampled=1, rounds=1)
        case FederationTasks():
            # Without the options, all three runs are on this machine. This is enough to show that the measure works.
            return FederationTasks(devices=2, rounds=4, epochs=1, options=())
        case Flower():
            return Flower(devices=2, rounds=2)
        case FlowerSimulation():
            return replace(measure, epochs=1, rounds=2)
        case Program():
            given = {**measure.arguments, **SMALLEST[measure.program]}
            figures = {name: figure for name, figure in measure.figures.items() if measured(name, given)}
            return replace(measure, name=measure.program, arguments=given, figures=figures)
    return measure


def measured(figure, given):
    """Return whether a program with these arguments still takes a figure of a method or of a cohort."""
    part = figure.partition(": ")
    return part[0] in given.get("methods", [part[0]]) and (
        not part[2].startswith("cohort_") or int(part[2].removeprefix("cohort_")) in given.get("cohorts", [])
    )


def started():
    """Return one measure of each group that starts in the same way, with the figures of all of its group."""
    found = {}
    for name in QUOTED:
        if name in ENGINES or (name in PEERS or name.startswith(LONG)) and not WITH_PEERS:
            continue
        if ALL[name] is LARGE_DEVICE:  # tests/over_broker/test_memory_of_a_large_model.py starts it.
            continue
        one = smallest(ALL[name])
        if isinstance(one, Program):
            one = replace(one, what="")
            key = repr(replace(one, figures={}))
            figures = found[key][1].figures if key in found else {}
            one = replace(one, figures={**figures, **one.figures})
        else:
            key = repr(one)
        found[key] = (found.get(key, (name,))[0], one)
    return [pytest.param(one, id=name) for name, one in found.values()]


def test_names_of_measures_are_found_in_a_page():
    text = "## A: `python -m benchmarks training round-run-1 --times 2`, `transfer-loaded`\n`nothing` and training"
    assert quoted_in(text) == {"training", "round-run-1", "transfer-loaded"}
    assert {"flower", "flower-simulation-1", "rounds", "answers-10", "model-45-MB", "stack"} <= set(QUOTED)


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.timeout(900)  # Flower starts Ray, which takes minutes on a busy machine.
@pytest.mark.parametrize("measure", started())
def test_each_quoted_benchmark_starts_and_gives_its_figures(measure, tmp_path):
    if isinstance(measure, Program) and measure.program == "virtual_line" and not os.access(TUN, os.W_OK):
        pytest.skip("this user cannot make lines between network namespaces")
    if isinstance(measure, Stack):
        docker = shutil.which("docker")
        if docker is None or subprocess.run([docker, "info"], capture_output=True).returncode:
            pytest.skip("no container engine here")
    try:
        for kind, *wanted in INSTALLED:
            if isinstance(measure, kind):
                environment(*wanted)
    except NotInstalled as error:
        pytest.skip(f"the peer cannot be installed here: {error}")
    found = once(measure, this_tree(tmp_path))
    assert found.keys() == measure.figures.keys()
    # The error of the virtual time may be negative.
    assert all(value >= 0 or name.endswith(": off") for name, value in found.items())


def test_the_version_of_each_peer_is_pinned_and_named_in_the_tables():
    assert f"flwr=={VERSION}" in WANTED and f"flwr[simulation]=={VERSION}" in SIMULATION_WANTED
    for name in PEERS:
        assert PEER.removeprefix("Flower ") in ALL[name].what
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    tables = [table for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE) if "Flower" in table]
    assert tables and all(PEER in table for table in tables), f"a table with Flower does not name {PEER}"


def test_the_flower_app_has_the_files_that_its_settings_name():
    folder = ROOT / "benchmarks" / "flower_app"
    assert flower_app.startswith(str(folder))
    app, files = (
        read_toml(folder / "pyproject.toml")["tool"]["flwr"]["app"],
        [p.name for p in folder.iterdir()],
    )
    for pattern in (*app.get("fab-include", ()), *app.get("fab-exclude", ())):
        assert fnmatch.filter(files, pattern), f"{pattern} names no file; Flower then refuses the app"
    for component in app["components"].values():
        assert f"{component.partition(':')[0]}.py" in app["fab-include"]
