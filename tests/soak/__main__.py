"""`make soak ROUNDS=5000`: very many rounds of a tiny method in real processes; figures that grow are named."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from protofleet.federation.brokers.ports import free_port
from protofleet.lab.local.experiment import Experiment
from protofleet.protocol.settings.reader import decode
from protofleet.protocol.wire.names import COORDINATOR
from tests.chaos.campaign import pictures
from tests.chaos.world import World
from tests.soak.samples import of_folder, of_process, sizes
from tests.soak.slopes import Slope, slope

Series = dict[str, list[tuple[float, float]]]  # Figure -> pairs of round and value.
# The growth over the whole run that a figure may surely have before it counts as a leak.
ALLOWED = {
    "memory, MB": 8.0,
    "handles": 2.0,
    "threads": 1.0,
    "state, bytes": 100_000.0,
    "seconds a round": 0.05,
}
BY_DESIGN = "written, bytes"  # rounds.jsonl, its copy and the logs grow with every round.


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make soak")
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two samples")
    parser.add_argument(
        "--minutes", type=float, default=600.0, help="then it ends, with the rounds there are"
    )
    parser.add_argument("--json", type=Path, help="where all samples go")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"{options.rounds} rounds, {options.devices} devices, in {folder}", flush=True)
    began = time.monotonic()
    until = began + 60 * options.minutes
    series, problem = soak(folder, options.rounds, options.devices, options.every, until)
    if problem:
        print(f"{problem}; kept: {folder}")
        return 1
    if options.json:
        options.json.write_text(json.dumps(series))
    seconds, rounds = time.monotonic() - began, len(series["seconds a round"])
    print(f"{rounds} rounds in {seconds:.0f} s, {rounds / seconds:.1f} a second")
    leaks = report(series, rounds)
    print(f"leaks: {', '.join(leaks) or 'none'}; kept: {folder}")
    return 1 if leaks else 0


def soak(folder: Path, rounds: int, devices: int, every: float, until: float) -> tuple[Series, str]:
    pictures(folder / "data", 0)
    port = free_port()
    table = {
        "name": "soak", "rounds": rounds, "classes": 3, "method": {"name": "fedavg", "epochs": 1, "batch": 32},
        "network": {"name": "mlp"}, "devices": {"count": devices},
        "data": {"source": "folder", "root": str(folder / "data"), "size": 8, "split": "iid"},
    }  # fmt: skip
    names = [COORDINATOR, *(f"device-{i + 1}" for i in range(devices))]
    lines = {name: SimpleNamespace(port=port) for name in names}
    series: Series = {}
    with World(folder / "run", decode(Experiment, table), lines, port, None) as world:
        while not world.finished and time.monotonic() < until:
            time.sleep(every)
            if died := [d for p in world.processes.values() for d in p.deaths]:
                return series, died[0]
            world.watch()
            sample(world, series)
    for line in (world.results / "rounds.jsonl").read_text().splitlines():
        record = json.loads(line)
        series.setdefault("seconds a round", []).append((record["round"], record["seconds"]))
    return series, ""


def sample(world: World, series: Series) -> None:
    """Add a sample of each process to the series; add nothing while processes start or end."""
    number = world.rounds
    pids = {name: process.child.pid for name, process in world.processes.items() if process.child}
    if number == 0 or world.finished:
        return
    try:
        found = {
            f"{name}: {key}": value for name, pid in pids.items() for key, value in of_process(pid).items()
        }
    except (FileNotFoundError, ProcessLookupError):
        return
    found["coordinator: state, bytes"] = of_folder(world.results / "coordinator")
    for name in world.devices:
        found[f"{name}: state, bytes"] = of_folder(world.folder / "devices" / name)
    found[BY_DESIGN] = of_folder(world.logs) + sum(sizes(world.results.glob("*.*")))
    for key, value in found.items():
        series.setdefault(key, []).append((number, value))


def report(series: Series, rounds: int) -> list[str]:
    """Print a line for each figure, and return the figures that grow."""
    print(f"{'':32}{'mean':>14}{'per 1,000 rounds':>18}{'+-':>12}")
    leaks = []
    for key, pairs in sorted(series.items()):
        line = slope([x for x, _ in pairs], [y for _, y in pairs])
        kind = key.split(": ")[-1]
        leaks += [key] if kind in ALLOWED and line.surely_over(ALLOWED[kind], rounds) else []
        print(f"{key:32}{words(line)}")
    return leaks


def words(line: Slope) -> str:
    return f"{line.mean:>14.4g}{1000 * line.per_round:>18.4g}{1000 * line.margin:>12.3g}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
