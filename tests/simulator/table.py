"""A table with each planted bug, the number of seeds that find it, and a test that finds it too."""

from __future__ import annotations

import functools
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.simulator.planted import BUGS, Bug, kind_of, planted
from tests.simulator.run import Verdict


def rows(part: str, seeds: range, jobs: int) -> Iterator[str]:
    """Yield the rows of a Markdown table, one for each bug whose name begins with `part`."""
    yield f"| planted | bug | found by, of {len(seeds)} seeds | the first, and as what | a test that finds it |"
    yield "|---|---|---|---|---|"
    for bug in [bug for name, bug in BUGS.items() if name.startswith(part)]:
        with multiprocessing.get_context("fork").Pool(jobs) as pool:
            verdicts = pool.map(functools.partial(sick, bug.name), seeds, chunksize=4)
        yield row(bug, [verdict for verdict in verdicts if verdict.problem])


def sick(name: str, seed: int) -> Verdict:
    with planted(BUGS[name]):
        return kind_of(BUGS[name])(seed)


def row(bug: Bug, found: list[Verdict]) -> str:
    where, _, what = bug.name.partition(": ")
    first = f"{found[0].seed}: {found[0].problem[:100]}" if found else "none"
    test = bug.test and ("" if fails(bug) else "NOT ") + bug.test
    return f"| {where} | {what} | {len(found)} | {first} | {test} |"


def fails(bug: Bug) -> bool:
    """Return whether the named test of a bug fails where the bug is planted."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "tests.simulator.plant", bug.test]
    done = subprocess.run(command, env={**os.environ, "PLANT": bug.name}, capture_output=True, text=True)
    return done.returncode == pytest.ExitCode.TESTS_FAILED
