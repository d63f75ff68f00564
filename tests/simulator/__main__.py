"""`python -m tests.simulator`: run seeds on all cores, or repeat one seed and print all its events."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence

from tests.simulator.run import Verdict, run_scenario, run_seed, run_seed_of_several, run_seed_of_sums
from tests.simulator.scenario import Scenario, draw
from tests.simulator.several import draw_several
from tests.simulator.summed import draw_summed
from tests.simulator.table import rows

# The kinds of seeds, as options of this command.
PLAIN, SEVERAL, SUMMED = "", "--several ", "--summed "
RUNS = {PLAIN: run_seed, SEVERAL: run_seed_of_several, SUMMED: run_seed_of_sums}
EACH_SUMMED = 25  # After this many seeds, one seed of masked sums runs too.


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: say every event")
    parser.add_argument(
        "--planted",
        nargs="?",
        const="",
        metavar="PART",
        help="plant the bugs of a part, or all: who finds them?",
    )
    parser.add_argument("--several", action="store_true", help="seeds with two runs and an operator")
    parser.add_argument("--summed", action="store_true", help="seeds with masked sums")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args()
    if chosen.seed is not None:
        return one(drawn(chosen.seed, chosen.several, chosen.summed), chosen.trace)
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    if chosen.planted is not None:
        for row in rows(chosen.planted, seeds, chosen.jobs):
            print(row, flush=True)
        return 0
    if chosen.several or chosen.summed:
        return many([(SEVERAL if chosen.several else SUMMED, seed) for seed in seeds], chosen.jobs)
    sums = [(SUMMED, seed) for seed in seeds[::EACH_SUMMED]]
    return many([*((PLAIN, seed) for seed in seeds), *sums], chosen.jobs)


def drawn(seed: int, several: bool, summed: bool) -> Scenario:
    return draw_several(seed) if several else draw_summed(seed) if summed else draw(seed)


def one(scenario: Scenario, trace: bool) -> int:
    print(scenario)
    if trace:
        logging.basicConfig(level=logging.INFO, format="        %(name)s: %(message)s")
    verdict = run_scenario(scenario, log=print if trace else None)
    print(verdict.details or "all promises were kept")
    took = f"{verdict.events} events, {verdict.virtual_seconds:.0f} s of virtual time"
    print(f"seed {scenario.seed}: {took}, trace {verdict.trace}")
    return 1 if verdict.problem else 0


def quiet() -> None:
    logging.disable(logging.CRITICAL)


def run_of(kind_and_seed: tuple[str, int]) -> tuple[str, Verdict]:
    kind, seed = kind_and_seed
    return kind, RUNS[kind](seed)


def many(seeds: Sequence[tuple[str, int]], jobs: int) -> int:
    began, failed, events, hours = time.monotonic(), 0, 0, 0.0
    with multiprocessing.get_context("fork").Pool(jobs, quiet) as pool:
        for done, (kind, verdict) in enumerate(pool.imap_unordered(run_of, seeds, chunksize=4), start=1):
            events, hours = events + verdict.events, hours + verdict.virtual_seconds / 3600
            if verdict.problem:
                failed += 1
                print(f"\rseed {verdict.seed}: {verdict.problem}\n    {again(verdict, kind)}", flush=True)
            if done % 20 == 0 or done == len(seeds):
                speed = done / (time.monotonic() - began)
                print(
                    f"\r{done} of {len(seeds)} seeds, {speed:.1f} a second, {failed} failed",
                    end="",
                    flush=True,
                )
    print(f"\n{events} events, {hours:.0f} h of virtual time in {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


def again(verdict: Verdict, option: str) -> str:
    return f"python -m tests.simulator {option}--seed {verdict.seed} --trace"


if __name__ == "__main__":
    sys.exit(main())
