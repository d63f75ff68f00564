"""`python -m benchmarks [MEASURE ...]` measures costs and stores the figures; `check` finds worse figures."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import history
from benchmarks.harness.compare import rows, taken, worse
from benchmarks.harness.history import Entry
from benchmarks.harness.measure import Measure, MeasureError
from benchmarks.harness.trees import Tree, TreeError, other_tree, this_tree
from benchmarks.measures.catalog import ALL, USUAL

WORSE, FAILED = 1, 2
PAIRS = 5


def main(words: Sequence[str]) -> int:
    options = parsed(words)
    known = ALL
    if unknown := sorted(set(options.measures) - known.keys()):
        return failed(f"no measure {', '.join(unknown)}; `list` shows all {len(known)}")
    chosen = [known[name] for name in options.measures] or list(USUAL)
    try:
        match options.job:
            case "list":
                for measure in known.values():
                    print(f"{measure.name:14} {measure.what}")
                return 0
            case "check":
                return check(chosen, options.times)
        return take(chosen, options.times, options.against, options.keep)
    except (MeasureError, TreeError, ValueError) as error:
        return failed(str(error))


def parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "measures", nargs="*", metavar="MEASURE", help="measures to run (default: the usual measures)"
    )
    parser.add_argument(
        "--against",
        default="",
        metavar="TREE",
        help="measure this tree and TREE in turn; TREE is a folder, or a git ref of this repository",
    )
    parser.add_argument(
        "--times",
        type=int,
        default=PAIRS,
        metavar="N",
        help=f"number of values of each figure; with --against, number of pairs (default {PAIRS})",
    )
    parser.add_argument("--keep", action="store_true", help=f"add the figures to {history.FILE.name}")
    jobs = [word for word in words if word in ("list", "check")]
    parser.set_defaults(job=jobs[0] if jobs else "take")
    return parser.parse_args([word for word in words if word not in jobs])


def failed(why: str) -> int:
    print(f"benchmarks: {why}", file=sys.stderr)
    return FAILED


def take(chosen: Sequence[Measure], times: int, against: str, keep: bool) -> int:
    with trees(against) as (this, other):
        for measure in chosen:
            found = taken(measure, this, other, times, tell)
            show(found, measure)
            if keep:
                history.append(found)
    return 0


def check(chosen: Sequence[Measure], times: int) -> int:
    """Run each measure that has stored figures. Alternate between this tree and the commit of the stored figures.

    If a figure seems worse, the measure is run once more, and the figure is reported only if it is worse again.
    Even without a change of the code, about one figure in thirty seems worse by chance.
    """
    landed, found = history.read(), list[str]()
    for measure in chosen:
        if (before := history.last(landed, measure.name)) is None:
            tell(f"{measure.name} has no stored figures yet")
        elif suspects := worse(beside(measure, before, times), before, measure.figures):
            again = worse(beside(measure, before, times), before, measure.figures)
            found += [line for name, line in again.items() if name in suspects]
    for line in found:
        print(f"worse: {line}")
    if not found:
        print(f"no figure is worse than the stored figures by more than the noise ({times} pairs each)")
    return WORSE if found else 0


def beside(measure: Measure, before: Entry, times: int) -> Entry:
    with trees(before.commit) as (this, other):
        return taken(measure, this, other, times, tell)


@contextlib.contextmanager
def trees(against: str) -> Iterator[tuple[Tree, Tree | None]]:
    with tempfile.TemporaryDirectory(prefix="bench-trees-") as place:
        yield this_tree(Path(place)), other_tree(against, Path(place)) if against else None


def show(found: Entry, measure: Measure) -> None:
    print(f"== {measure.name}: {measure.what}; load {found.load[0]} to {found.load[1]}")
    for row in rows(found, measure.figures):
        print(row, flush=True)


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
