"""Write the table "Newer methods" of docs/results.md: python -m tools.pages.newer_methods [RUN ...].

RUN is the folder of a finished run of a sweep in experiments/sweeps/digits-METHOD.toml, or of its experiment, such
as runs/digits-scaffold-lr-0.1-s1. Other folders are left out. The value with the highest validation accuracy at seed
1 is chosen, and the row has the runs with this value. The figures of these methods in newer_methods.json are
replaced. A method without a run of each value at seed 1 keeps its figures. Without RUN, only the table is written.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from protofleet.lab.report.comparison import ComparedRun
from protofleet.lab.report.comparison_tables import alike, mean_and_deviation
from protofleet.lab.report.finished_run import SUMMARY
from protofleet.lab.report.numbers import one_place
from protofleet.protocol.link.meter import DOWN, UP, human_bytes
from protofleet.protocol.settings.reader import decode, read_toml
from tools.pages.generated_table import DOCS, replace_table
from tools.pages.measured_figures import (
    finished_runs,
    markdown_table,
    mean_difference,
    newest_day,
    write_figures_file,
)

PAGE: Final = DOCS / "results.md"
MODULE: Final = "tools.pages.newer_methods"
PATH: Final = Path(__file__).with_suffix(".json")
SWEEPS: Final = DOCS.parent / "experiments/sweeps"
# A folder of a sweep also has the setting and the value in its name.
FOLDER: Final = re.compile(r"(?P<name>digits-\w+)(-\w+-[\d.e-]+)?-s(?P<seed>\d+)")
SEARCH_SEED: Final = 1
# Each row is compared with the row of this experiment that has the same view.
BASELINE: Final = "digits-fedavg"
VIEWS: Final = ("global", "personal")
PLACES: Final = 4  # Decimal places of an accuracy in percent.
NOTE: Final = (
    "Accuracy is the mean over the domains, with the sample standard deviation if there are several seeds. The "
    "column 'apart' has the mean and the deviation of the differences to FedAvg in the same view, seed by seed. "
    "SCAFFOLD and FedDyn have no momentum. One seed chose each value, and of equal values the lowest."
)
Runs = Mapping[int, ComparedRun]  # Run of each seed.
Searched = Mapping[float, Runs]  # Runs of each value of the setting that was searched.


@dataclass(frozen=True)
class TriedValue:
    """A value of the search, with the accuracies in percent of the reported view at SEARCH_SEED."""

    value: float
    validation: float
    test: float


@dataclass(frozen=True)
class MeasuredView:
    """A view of a method: test accuracies in percent as means over the domains, and the bytes of a run."""

    experiment: str
    method: str
    view: str
    seeds: tuple[int, ...]
    test: tuple[float, ...]  # One accuracy for each seed, after the last round.
    arrays_up: float  # Means over the seeds.
    arrays_down: float
    messages: float  # Bytes of all messages in both directions: arrays, envelopes and control.
    date: str
    commit: str
    sources: str
    digest: str  # Digest of the experiment's settings without the seed.
    setting: str = ""  # Setting that was searched, such as "lr"; "" if no setting was searched.
    tried: tuple[TriedValue, ...] = ()

    @property
    def chosen(self) -> TriedValue:
        return best_of(self.tried)


def percent(accuracy: float) -> float:
    return round(100 * accuracy, PLACES)


def best_of(tried: Sequence[TriedValue]) -> TriedValue:
    """Return the value with the highest validation accuracy; of several, the first."""
    return max(tried, key=lambda one: one.validation)


def tried_values(searched: Searched) -> tuple[TriedValue, ...]:
    """Return the accuracies of all values at SEARCH_SEED; raise LookupError if a run is missing."""
    found = []
    for value, runs in sorted(searched.items()):
        if SEARCH_SEED not in runs:
            raise LookupError(f"there is no run of the value {value:g} with the seed {SEARCH_SEED}")
        run = runs[SEARCH_SEED]
        last = run.points(run.summary["reports"])[-1]
        found.append(TriedValue(value, percent(last.validation["mean"]), percent(last.accuracy["mean"])))
    return tuple(found)


def measured_views(name: str, setting: str, searched: Searched) -> list[MeasuredView]:
    """Return the figures of one experiment: the view that its paper reports; of the baseline, both views."""
    tried = tried_values(searched)
    runs = searched[best_of(tried).value]
    seeds = sorted(runs)
    found = [runs[seed] for seed in seeds]
    views = VIEWS if name == BASELINE else (found[0].summary["reports"],)

    def test(view: str) -> tuple[float, ...]:
        return tuple(percent(run.points(view)[-1].accuracy["mean"]) for run in found)

    def size(kind: str, *directions: str) -> int:
        return round(fmean(run.total_bytes(kind, *directions) for run in found))

    versions = [run.summary.get("versions", {}) for run in found]
    commit, sources = (alike(one.get(key) for one in versions) for key in ("commit", "sources"))
    digest = alike(run.summary.get("experiment") for run in found)
    date = newest_day(run.folder / SUMMARY for run in found)
    return [
        MeasuredView(
            name, found[0].summary["method"], view, tuple(seeds), test(view), size("payload", UP),
            size("payload", DOWN), size("wire", UP, DOWN), date, commit, sources, digest, setting, tried,
        )
        for view in views
    ]  # fmt: skip


def grid_of(name: str) -> tuple[str, list[float]]:
    """Return the setting and the values of the sweep of an experiment; raise LookupError if it has no sweep."""
    path = SWEEPS / f"{name}.toml"
    if not path.exists():
        raise LookupError(f"there is no {path}")
    ((key, values),) = read_toml(path)["grid"].items()
    return key.removeprefix("method."), values


def read_runs(folders: Iterable[Path]) -> dict[str, list[ComparedRun]]:
    """Return the finished runs by experiment."""
    found: dict[str, list[ComparedRun]] = {}
    for name, run in finished_runs(folders, FOLDER):
        found.setdefault(name["name"], []).append(run)
    return found


def views_of(name: str, runs: Iterable[ComparedRun]) -> list[MeasuredView]:
    setting, values = grid_of(name)
    searched: dict[float, dict[int, ComparedRun]] = {value: {} for value in values}
    for run in runs:
        value = json.loads(run.settings)["method"].get(setting)
        if value in searched:
            searched[value][run.summary["seed"]] = run
    return measured_views(name, setting, searched)


def read_measured(path: Path = PATH) -> list[MeasuredView]:
    tables = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [decode(MeasuredView, table, f"rows[{place}]") for place, table in enumerate(tables)]


def write_figures(folders: Iterable[Path], path: Path = PATH) -> None:
    """Replace the figures of the experiments that the runs have; the figures of other experiments stay.

    The baseline without a search stays too, as long as another row without a search is compared with it.
    """
    rows = read_measured(path) if path.exists() else []
    for name, runs in read_runs(folders).items():
        try:
            new = views_of(name, runs)
        except LookupError as error:
            print(f"{name}: {error}; its figures stay as they are")
        else:
            stays = [one for one in rows if one.experiment != name or (name == BASELINE and not one.setting)]
            rows = stays + new
    if all(one.setting or one.experiment == BASELINE for one in rows):
        rows = [one for one in rows if one.setting]
    rows.sort(key=lambda one: (not one.setting, one.view, one.experiment != BASELINE, one.experiment))
    write_figures_file(path, {"rows": [asdict(one) for one in rows]})


def apart(row: MeasuredView, baseline: MeasuredView) -> str:
    """Return the accuracy minus that of the baseline, as mean and deviation over the seeds that both rows have."""
    if row is baseline:
        return ""
    mine, theirs = (dict(zip(one.seeds, one.test, strict=True)) for one in (row, baseline))
    seeds = sorted(mine.keys() & theirs)
    return mean_difference([mine[seed] for seed in seeds], [theirs[seed] for seed in seeds])


def table_of(rows: Sequence[MeasuredView], view: str) -> str:
    """Return the table of the rows of a view, which are all searched, or else all not searched."""
    own = [one for one in rows if one.view == view]
    (baseline,) = [one for one in own if one.experiment == BASELINE]
    head = ("run", "value chosen", "seeds", "mean", "apart", "arrays up", "arrays down", "all messages")
    cells = [
        [
            one.experiment, chosen_value(one), ", ".join(map(str, one.seeds)),
            mean_and_deviation(one.test, one_place), apart(one, baseline),
            *map(human_bytes, (one.arrays_up, one.arrays_down, one.messages)),
        ]
        for one in own
    ]  # fmt: skip
    search = "" if baseline.setting else ", without a search"
    return f"**The {view} model after the last round{search}, %**\n\n" + markdown_table(
        head, cells, range(2, len(head))
    )


def chosen_value(row: MeasuredView) -> str:
    if not row.setting:
        return "not searched"
    end = ", the grid's end" if row.chosen in (row.tried[0], row.tried[-1]) else ""
    return f"`{row.setting}` {row.chosen.value:g}{end}"


def search_table(rows: Sequence[MeasuredView]) -> str:
    """Return the accuracies of all values; the baseline has one row, because its choice is the same in both views."""

    def cell(tried: TriedValue) -> str:
        return f"{tried.value:g}: {tried.validation:.1f} / {tried.test:.1f}"

    cells = {one.experiment: [f"`{one.setting}`", ", ".join(map(cell, one.tried))] for one in rows}
    head = ("run", "setting", "value: validation / test")
    return f"**The values that were tried with the seed {SEARCH_SEED}, %**\n\n" + markdown_table(
        head, [[name, *found] for name, found in cells.items()], ()
    )


def origin_table(rows: Sequence[MeasuredView]) -> str:
    head = ("run", "date", "commit", "sources", "experiment")
    cells = {
        (one.experiment, one.digest): [one.experiment, one.date, one.commit, one.sources, one.digest]
        for one in rows
    }
    return "**Where the figures come from**\n\n" + markdown_table(head, list(cells.values()), ())


def generate(page: str, rows: Sequence[MeasuredView] | None = None) -> str:
    found = read_measured() if rows is None else rows
    searched, others = ([one for one in found if bool(one.setting) is wanted] for wanted in (True, False))
    tables = [table_of(part, view) for part in (searched, others) for view in VIEWS if part]
    search = [search_table(searched)] if searched else []
    return replace_table(page, MODULE, "\n".join([*tables, f"{NOTE}\n", *search, origin_table(found)]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=Path)
    options = parser.parse_args()
    if options.runs:
        write_figures(options.runs)
    PAGE.write_text(generate(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
