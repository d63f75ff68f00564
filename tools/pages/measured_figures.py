"""Read the finished runs of a table, and write its figures as JSON and as Markdown."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from protofleet.lab.report.comparison import ComparedRun, read_comparable_run
from protofleet.lab.report.comparison_tables import escaped, mean_and_deviation
from protofleet.lab.report.finished_run import SUMMARY
from protofleet.lab.report.numbers import one_place

SHORT_LIST: Final = re.compile(r'\[[\s\d.,"a-f]+\]')  # A list of numbers or digests is written in one line.


def finished_runs(
    folders: Iterable[Path], name: re.Pattern[str]
) -> Iterator[tuple[re.Match[str], ComparedRun]]:
    """Yield the runs that have finished all their rounds and whose folders have such a name, with the match."""
    for folder in folders:
        found = name.fullmatch(folder.name)
        if found and (folder / SUMMARY).exists():
            run = read_comparable_run(folder)
            if run.summary.get("rounds_done", run.summary["rounds"]) == run.summary["rounds"]:
                yield found, run


def newest_day(paths: Iterable[Path]) -> str:
    """Return the day on which the newest of these files was written."""
    return time.strftime("%Y-%m-%d", time.gmtime(max(path.stat().st_mtime for path in paths)))


def write_figures_file(path: Path, figures: Mapping[str, object]) -> None:
    text = json.dumps(figures, indent=1, ensure_ascii=False)
    short = SHORT_LIST.sub(lambda found: f"[{' '.join(found[0][1:-1].split())}]", text)
    path.write_text(short + "\n", encoding="utf-8")


def mean_difference(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the mean and the deviation of the differences of pairs, with a sign."""
    found = mean_and_deviation([mine - other for mine, other in zip(ours, theirs, strict=True)], one_place)
    return found if found.startswith("-") else f"+{found}"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Container[int]) -> str:
    """Return a table whose columns with these places are numbers, which stand on the right."""
    rule = ["---:" if place in numbers else "---" for place in range(len(head))]
    return "".join("| " + " | ".join(map(escaped, row)) + " |\n" for row in (head, rule, *rows))
