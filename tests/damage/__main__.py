"""`python -m tests.damage`: every file of a run, damaged in every way at every moment, and the result.

With `--pairs` two files of a device at once, in three ways.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter

import torch

from tests.damage.files import METHODS, OTHER, Case, every_case, every_pair, verdict


def ready() -> None:
    torch.set_num_threads(1)


def judged(case: Case) -> tuple[Case, str, str]:
    return case, *verdict(case)


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.damage")
    options.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    options.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th case")
    options.add_argument("--first", type=int, default=0, metavar="K", help="beginning with this one, from 0")
    options.add_argument("--pairs", action="store_true", help="two files of a device at once")
    options.add_argument("--jobs", type=int, default=os.cpu_count())
    options.add_argument("--show", action="store_true", help="each case with what was said")
    asked = options.parse_args()
    cases = every_pair if asked.pairs else every_case
    todo = list(cases(tuple(asked.methods)))[asked.first :: asked.every]
    begun, found = time.monotonic(), Counter[tuple[str, str]]()
    with multiprocessing.get_context("fork").Pool(asked.jobs, ready) as pool:
        for case, result, words in pool.imap_unordered(judged, todo, chunksize=4):
            found[case.method, result] += 1
            if asked.show or result == OTHER:
                print(f"{result}: {case}: {words}", flush=True)
    for (method, result), number in sorted(found.items()):
        print(f"{method:8} {result:22} {number:5}")
    wrong = sum(number for (_, result), number in found.items() if result == OTHER)
    what = f"{len(todo)} {'pairs of ' if asked.pairs else ''}damaged files"
    print(f"{what} in {time.monotonic() - begun:.0f} s, {wrong} of them changed bits")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
