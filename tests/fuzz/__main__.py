"""make fuzz: many inputs for all readers of bytes of other parties, on all cores; findings are kept in the corpus."""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from tests.fuzz.engine import Report, fuzz, keep
from tests.fuzz.targets import TARGETS

PIECE = 250_000  # The inputs of one piece of work.


def pieces(inputs: int, seed: int, only: tuple[str, ...] = ()) -> list[tuple[str, int, int]]:
    """Return the pieces of work as (target, inputs, seed), the slow ones first.

    With `only`, each target whose name begins with one of these words gets all inputs.
    """
    found = []
    for name, target in sorted(TARGETS.items(), key=lambda item: item[1].share):
        if only and not name.startswith(only):
            continue
        left = inputs if only else max(1, round(inputs * target.share))
        while left > 0:
            found.append((name, min(left, PIECE), seed + len(found)))
            left -= PIECE
    return found


@dataclass
class Totals:
    """The sums over all pieces of a target."""

    inputs: int = 0
    taken: int = 0
    outcomes: int = 0  # The most outcomes of a piece.

    def add(self, report: Report) -> None:
        self.inputs += report.inputs
        self.taken += report.taken
        self.outcomes = max(self.outcomes, len(report.outcomes))


def work(piece: tuple[str, int, int]) -> tuple[str, Report]:
    name, inputs, seed = piece
    return name, fuzz(name, TARGETS[name], inputs, seed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=200_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="the same one gives the same inputs"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME",
        help="targets whose names begin so, each with all inputs",
    )
    options = parser.parse_args()
    print(f"{options.inputs} inputs, seed {options.seed}, {options.jobs} processes")
    begun, totals = time.monotonic(), dict[str, Totals]()
    found = False
    with ProcessPoolExecutor(options.jobs) as processes:
        for name, report in processes.map(work, pieces(options.inputs, options.seed, tuple(options.only))):
            totals.setdefault(name, Totals()).add(report)
            for finding in report.findings:
                found = True
                print(f"{name}: {finding.words}\n    {keep(name, finding.data)}")
    seconds = time.monotonic() - begun
    for name, total in totals.items():
        print(f"{name:22}{total.inputs:>12} inputs {total.taken:>12} taken {total.outcomes:>6} outcomes")
    made = sum(total.inputs for total in totals.values())
    print(
        f"{made} inputs in {seconds:.0f} s, {made / seconds:.0f} a second; {'FOUND' if found else 'nothing found'}"
    )
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
