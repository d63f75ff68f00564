"""`python -m tests.simulator`: seeds on all cores, or one seed again with all that happened in it."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time

from tests.simulator.run import Verdict, run_scenario, run_seed, run_seed_of_several
from tests.simulator.scenario import draw
from tests.simulator.several import draw_several
from tests.simulator.table import rows


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
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args()
    if chosen.seed is not None:
        return one(chosen.seed, chosen.trace, chosen.several)
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    if chosen.planted is not None:
        for row in rows(chosen.planted, seeds, chosen.jobs):
            print(row, flush=True)
        return 0
    return many(seeds, chosen.jobs, chosen.several)


def one(seed: int, trace: bool, several: bool) -> int:
    scenario = draw_several(seed) if several else draw(seed)
    print(scenario)
    if trace:
        logging.basicConfig(level=logging.INFO, format="        %(name)s: %(message)s")
    verdict = run_scenario(scenario, log=print if trace else None)
    print(verdict.details or "all promises were kept")
    took = f"{verdict.events} events, {verdict.virtual_seconds:.0f} s of virtual time"
    print(f"seed {seed}: {took}, trace {verdict.trace}")
    return 1 if verdict.problem else 0


def quiet() -> None:
    logging.disable(logging.CRITICAL)


def many(seeds: range, jobs: int, several: bool) -> int:
    run, option = (run_seed_of_several, "--several ") if several else (run_seed, "")
    began, failed, events, hours = time.monotonic(), 0, 0, 0.0
    with multiprocessing.get_context("fork").Pool(jobs, quiet) as pool:
        for done, verdict in enumerate(pool.imap_unordered(run, seeds, chunksize=4), start=1):
            events, hours = events + verdict.events, hours + verdict.virtual_seconds / 3600
            if verdict.problem:
                failed += 1
                print(f"\rseed {verdict.seed}: {verdict.problem}\n    {again(verdict, option)}", flush=True)
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
