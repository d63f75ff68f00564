"""`python -m benchmarks.poisoning [--only METHOD]` measures all cells that have no line in the results yet.

Each finished cell is one line of benchmarks/results/poisoning.jsonl, with the commit that measured it. A program that
was stopped goes on where it stopped. `python -m tools.pages.robust_figures` writes the tables of docs/robust.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

import torch

from benchmarks.poisoning.attacks import ATTACKS, OF_PROTOTYPES
from benchmarks.poisoning.federation import Cell, mean, run
from protofleet.coordinator.round.robust import RULES
from protofleet.edge_client.data.shard import Shards
from protofleet.methods.contract.torch_setup import compute_deterministically

RESULTS: Final = Path(__file__).parent.parent / "results" / "poisoning.jsonl"
SEEDS: Final = (1, 2, 3, 4, 5)
# The rules for which docs/robust.md sets bars.
WITH_BAR: Final = {"fedavg": "trimmed", "fedproto": "clip_median"}
ATTACKS_WITH_BAR: Final = ("nobody", "sign flip", "scaling", "ALIE", "label flip")
# The rules that `protofleet init` writes, and the mean, are measured next.
NEXT: Final = {"fedavg": ("mean", "cap", "trimmed"), "fedproto": ("mean", "clip_median")}


def cells() -> Iterator[Cell]:
    """Yield all cells, those of the bars first; some cells come twice."""
    for seed in SEEDS:
        for method, rule in WITH_BAR.items():
            yield Cell(method, "mean", "nobody", "six", seed)
            yield from (Cell(method, rule, attack, "six", seed) for attack in ATTACKS_WITH_BAR)
    for seed in SEEDS:
        for method, rules in NEXT.items():
            yield from (Cell(method, rule, "nobody", "minority", seed) for rule in rules)
            yield from (Cell(method, r, a, "six", seed) for r in rules for a in attacks_on(method))
    for seed in SEEDS:
        for method in WITH_BAR:
            yield from (Cell(method, r, a, "six", seed) for r in RULES for a in attacks_on(method))
            yield from (Cell(method, rule, "nobody", "minority", seed) for rule in RULES)


def attacks_on(method: str) -> list[str]:
    return [name for name in ATTACKS if method == "fedproto" or name not in OF_PROTOTYPES]


def measured() -> set[Cell]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    found = (json.loads(line) for line in lines)
    return {Cell(*(one[key] for key in ("method", "rule", "attack", "domains", "seed"))) for one in found}


def commit() -> str:
    """Return the commit of this tree, with a + if the measuring code has changes that are not committed."""
    head = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
    )
    places = ("benchmarks/poisoning", "coordinator", "methods", "edge_client")
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", *places], check=False).returncode
    return head.stdout.strip() + ("+" if changed else "")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.poisoning", description=__doc__)
    parser.add_argument("--only", choices=list(WITH_BAR), help="measure only this method")
    options = parser.parse_args()
    compute_deterministically(strict=False)
    torch.set_num_threads(1)
    done, shards, tree = measured(), Shards(), commit()
    for cell in cells():
        if cell in done or options.only not in (None, cell.method):
            continue
        began = time.process_time()
        found = run(cell, shards)
        done.add(cell)
        line = {
            **asdict(cell), "accuracy": round(mean(found), 3),
            "devices": {name: round(value, 2) for name, value in found.items()},
            "cpu_seconds": round(time.process_time() - began, 1), "commit": tree,
        }  # fmt: skip
        with RESULTS.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
