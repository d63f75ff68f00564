"""`make crash`: kill a party at every point, in every way, and compare with a run without crashes."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.crash.points import FATES, METHODS, AnyDeath, judged, ready, whole_enumeration
from tests.crash.queue_points import every_death


def main() -> int:
    options = argparse.ArgumentParser(prog="make crash")
    options.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    options.add_argument("--fates", nargs="+", default=tuple(FATES), choices=FATES)
    options.add_argument(
        "--queue", action="store_true", help="a queue with two runs at a time, in place of methods"
    )
    options.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th of them")
    options.add_argument("--first", type=int, default=0, metavar="K", help="beginning with this one, from 0")
    options.add_argument("--jobs", type=int, default=os.cpu_count())
    asked = options.parse_args()
    ready()
    deaths: Iterator[AnyDeath] = (
        every_death() if asked.queue else whole_enumeration(tuple(asked.methods), tuple(asked.fates))
    )
    todo = list(deaths)[asked.first :: asked.every]
    begun, failed, done = time.monotonic(), 0, Counter[tuple[str, str, str]]()
    with multiprocessing.get_context("spawn").Pool(asked.jobs, ready) as pool:
        for death, differences in pool.imap_unordered(judged, todo, chunksize=4):
            done[death.method, death.party, death.fate] += 1
            if differences:
                failed += 1
                print(f"{death} before '{death.step}': {'; '.join(differences)}", flush=True)
    for (method, party, fate), runs in sorted(done.items()):
        print(f"{method:8} {party:12} {fate:13} {runs:5} runs")
    print(f"{len(todo)} deaths in {time.monotonic() - begun:.0f} s, {failed} of them changed something")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
