"""Write the figures of docs/one-message.md: python -m tools.pages.one_message [RUNS] [--searches RUNS].

RUNS is the folder with the finished runs. In the other folder, `sweeps/NAME/searched.json` (of the program
benchmarks.programs.frozen_sweep) or `sweeps/NAME/trials.json` (of `protofleet sweep`) has the trials of each row. The
default is the folder of the runs. NAME is the name of the sweep's file in experiments/sweeps.

The value with the highest validation accuracy, as the mean over domains and draws, is chosen. The runs with this
value are read, one for each draw. If a run and its trial have different accuracies, the program ends. The rows whose
runs are missing keep their figures in lab/report/measured_one_message.json. Without RUNS, only the page is written.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from protofleet.lab.local.experiment import read_with_bases
from protofleet.lab.local.grid import Axis, checked_axis, meant_by, point_name
from protofleet.lab.report.comparison import ComparedRun, read_comparable_run
from protofleet.lab.report.comparison_tables import alike, mean_and_deviation
from protofleet.lab.report.finished_run import SUMMARY
from protofleet.lab.report.measured_one_message import PATH, MeasuredRow, TriedValue, read_measured
from protofleet.lab.report.numbers import one_place
from protofleet.methods.contract.catalog import load
from protofleet.protocol.link.meter import DOWN, UP, human_bytes
from protofleet.protocol.settings.reader import read_toml
from tools.pages.generated_table import DOCS, replace_table
from tools.pages.measured_figures import (
    markdown_table,
    mean_difference,
    newest_day,
    write_figures_file,
)

PAGE: Final = DOCS / "one-message.md"
MODULE: Final = "tools.pages.one_message"
SHORT: Final = f"{MODULE}, in short"
EXPERIMENTS: Final = DOCS.parent / "experiments"
DRAW: Final = "data.seed"
DRAWS: Final = (0, 1, 2)
SEED: Final = 0  # All draws have the same seed of the run.
PLACES: Final = 4  # Decimal places of an accuracy in percent.


@dataclass(frozen=True)
class Row:
    """A row of a table. The experiment, and its sweep if a setting is searched, have the same name."""

    table: str
    label: str
    name: str
    folder: str = "digits-frozen"
    prefix: str = "frozen"
    # True if the head of each device's own answer is measured, from `alone.json`; then there are no runs.
    alone: bool = False

    @property
    def experiment(self) -> Path:
        return EXPERIMENTS / self.folder / f"{self.name}.toml"

    @property
    def sweep(self) -> Path:
        return EXPERIMENTS / "sweeps" / f"{self.prefix}-{self.name}.toml"


REFERENCE: Final = "FedAvg of the head, 12 rounds"  # Each row is compared with this row, draw by draw.
DIGITS: Final = "six digits domains"
ROWS: Final = (
    Row(DIGITS, "FedNCM, means in 4 bits", "fedncm"),
    Row(DIGITS, "FedCOF, means in 4 bits", "fedcof"),
    Row(DIGITS, "FedCOF, means in float32", "fedcof-float32"),
    Row(DIGITS, "FedPFT, spherical", "fedpft"),
    Row(DIGITS, "GH-OFL, naive Bayes", "ghofl-nb"),
    Row(DIGITS, "FedGram, 12 rows of 8 bits", "fedgram-12"),
    Row(DIGITS, "FedGram, 24 rows of 8 bits", "fedgram-24"),
    Row(DIGITS, "Fed3R", "fed3r"),
    Row(DIGITS, "GH-OFL, linear discriminants", "ghofl-lda"),
    Row(DIGITS, REFERENCE, "fedavg"),
    Row(DIGITS, "each device alone, ridge (Fed3R)", "fed3r", alone=True),
    Row(DIGITS, "each device alone, trained (SingleSet)", "singleset"),
)


@dataclass(frozen=True)
class Trial:
    """A trial of one draw, with the accuracies of the search if it was searched."""

    run: str  # Name of its run.
    value: str = ""
    validation: float = 0.0
    test: float = 0.0
    all_domains: float | None = None


class Source:
    """The trials and the runs of one row.

    The files are read without the checks of an experiment, which would build the network for each trial.
    """

    def __init__(self, row: Row, runs: Path, searches: Path) -> None:
        self.row, self._runs, self._table = row, runs, read_with_bases(row.experiment)
        self.setting, self.default, self.in_file = "", "", ""
        self.trials, self.file = list[Trial](), Path()
        name, draws = self._table["name"], Axis(DRAW, tuple(map(str, DRAWS)))
        self.of_file = [Trial(f"{point_name(name, [draws], (draw,))}-s{SEED}") for draw in draws.values]
        if row.sweep.exists():
            grid = read_toml(row.sweep)["grid"]
            axes = [
                checked_axis(key, [json.dumps(value) for value in grid[key]], str(row.sweep)) for key in grid
            ]
            (searching,) = (axis for axis in axes if axis.key != DRAW)
            self.setting, self.in_file = searching.key, self._value_in(self._table, searching)
            self.default = self._value_in(base_of(row.experiment), searching)
            self.file = file_of_trials(searches / "sweeps" / row.sweep.stem, row.alone)
            self.trials = list(searched(name, axes, searching, self.file))

    @property
    def rounds(self) -> int:
        return int(self._table["rounds"])

    def _value_in(self, table: Mapping[str, Any], axis: Axis) -> str:
        """Return the value of a file, or else the method's default, if it is one of those that were tried."""
        own = {one.name: one.default for one in fields(load(self._table["method"]["name"]).Hyper)}
        value = table.get("method", {}).get(axis.label, own[axis.label])
        return next((text for text in axis.values if meant_by(text) == value), "")

    def of(self, value: str) -> list[Trial]:
        return [one for one in self.trials if one.value == value]

    def run(self, trial: Trial, draw: int) -> ComparedRun:
        """Return the finished run of a trial. A run with the settings of the file may have another name."""
        names = [trial.run]
        if trial.value in ("", self.in_file):
            names.append(self.of_file[draw].run)
        folders = [self._runs / name for name in names if (self._runs / name / SUMMARY).exists()]
        if not folders:
            raise LookupError(f"{self._runs} has no finished run {' or '.join(dict.fromkeys(names))}")
        run = read_comparable_run(folders[0])
        found = accuracy_of(run)
        if trial.test and abs(found - 100 * trial.test) > 10**-PLACES:
            raise SystemExit(
                f"{folders[0]} has {found:.4f} % test accuracy, but its trial has {100 * trial.test:.4f} %"
            )
        return run

    def runs(self, trials: Sequence[Trial]) -> list[ComparedRun]:
        return [self.run(trial, draw) for draw, trial in enumerate(trials)]


def base_of(path: Path) -> dict[str, Any]:
    """Return the settings of the base of a file, without those of the file itself."""
    base = read_toml(path).get("base")
    return read_with_bases(path.parent / base) if base else {}


def file_of_trials(folder: Path, alone: bool) -> Path:
    names = ("alone.json",) if alone else ("searched.json", "trials.json")
    paths = [folder / name for name in names if (folder / name).exists()]
    if not paths:
        raise LookupError(f"{folder} has no {' and no '.join(names)}")
    return paths[0]


def searched(name: str, axes: Sequence[Axis], searching: Axis, path: Path) -> Iterator[Trial]:
    known = {tuple(one["runs"]): one for one in json.loads(path.read_text(encoding="utf-8"))["trials"]}
    for values in itertools.product(*(axis.values for axis in axes)):
        run = f"{point_name(name, axes, values)}-s{SEED}"
        if (found := known.get((run,))) is None:
            raise SystemExit(f"{path} has no trial {run}; run the sweep again")
        (validation,), (test,) = found["validation"], found["test"]
        value = values[axes.index(searching)]
        yield Trial(run, value, validation, test, *found.get("all_domains", ()))


def accuracy_of(run: ComparedRun) -> float:
    """Return the last test accuracy of a run in percent, as the mean over the domains."""
    return 100 * run.points(run.summary["reports"])[-1].accuracy["mean"]


def percents(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(value, PLACES) for value in values)


def tried_values(source: Source) -> tuple[TriedValue, ...]:
    values = dict.fromkeys(one.value for one in source.trials)
    return tuple(
        TriedValue(
            value.strip('"'),
            percents([100 * one.validation for one in source.of(value)]),
            percents([100 * one.test for one in source.of(value)]),
        )
        for value in values
    )


def best_value(source: Source) -> str:
    """Return the value with the highest mean validation accuracy; "" if no setting was searched."""
    values = list(dict.fromkeys(one.value for one in source.trials))
    return max(values, key=lambda value: fmean(one.validation for one in source.of(value)), default="")


def measured_row(source: Source) -> MeasuredRow:
    """Return the figures of a row; raise LookupError if a run is missing."""
    best = best_value(source)
    chosen = source.of(best) if best else source.of_file
    runs = [] if source.row.alone else source.runs(chosen)
    test = [accuracy_of(run) for run in runs] or [100 * one.test for one in chosen]
    at_default = source.of(source.default) if source.default else source.of_file
    default_test = [100 * one.test for one in at_default if one.test] or list(
        map(accuracy_of, source.runs(at_default))
    )
    every = [one.all_domains for one in chosen]

    def size(name: str, *directions: str) -> int:
        return round(fmean(run.total_bytes(name, *directions) for run in runs)) if runs else 0

    reports = runs[0].summary["reports"] if runs else "personal"
    return MeasuredRow(
        source.row.table, source.row.label, str(source.row.experiment.relative_to(DOCS.parent)),
        reports, source.rounds, source.setting, source.default.strip('"'), best.strip('"'),
        tried_values(source), DRAWS, percents(test), percents(default_test),
        percents([mine if one is None else 100 * one for one, mine in zip(every, test, strict=True)]),
        size("payload", UP), size("payload", DOWN), size("wire", UP, DOWN), *origin_of(source, runs),
    )  # fmt: skip


def origin_of(source: Source, runs: Sequence[ComparedRun]) -> tuple[str, str, str, tuple[str, ...]]:
    """Return the date, the commit, the sources and the digests of the experiments of a row."""
    found = [run.summary for run in runs]
    versions = [one.get("versions", {}) for one in found] or [json.loads(source.file.read_text())["versions"]]
    date = newest_day([run.folder / SUMMARY for run in runs] or [source.file])
    commit, sources = (alike(one.get(key) for one in versions) for key in ("commit", "sources"))
    return date, commit, sources, tuple(str(one.get("experiment")) for one in found)


def write_figures(runs: Path, searches: Path, path: Path = PATH, rows: Sequence[Row] = ROWS) -> None:
    """Replace the figures of the rows whose runs are there."""
    known = {(one.table, one.label): one for one in read_measured(path)} if path.exists() else {}
    for row in rows:
        try:
            known[row.table, row.label] = measured_row(Source(row, runs, searches))
        except LookupError as error:
            print(f"{row.label}: {error}; its figures stay as they are")
    order = [(row.table, row.label) for row in rows]
    rows_in_order = sorted(known.values(), key=lambda one: place_in(order, (one.table, one.label)))
    write_figures_file(path, {"rows": [asdict(one) for one in rows_in_order]})


def place_in(order: Sequence[tuple[str, str]], name: tuple[str, str]) -> int:
    return order.index(name) if name in order else len(order)


def shown(values: Sequence[float]) -> str:
    return mean_and_deviation(values, one_place)


def apart(row: MeasuredRow, reference: MeasuredRow) -> str:
    """Return the accuracy of a row minus that of the reference, as the mean and the deviation over the draws."""
    if row.label == reference.label:
        return ""
    return mean_difference(row.test, reference.test)


def chosen_value(row: MeasuredRow) -> str:
    if not row.setting:
        return "nothing to search"
    end = ", the grid's end" if row.is_end else ""
    return f"`{row.setting.removeprefix('method.')}` {row.chosen}{end}"


def at_default(row: MeasuredRow) -> str:
    if not row.setting:
        return shown(row.test_at_default)
    return f"{shown(row.test_at_default)} ({row.default or 'chosen by the server'})"


def global_table(rows: Sequence[MeasuredRow], reference: MeasuredRow) -> str:
    head = (
        "method", "accuracy", "apart", "value chosen", "at the default value", "arrays up", "arrays down",
        "all messages", "arrays up of the search",
    )  # fmt: skip
    cells = [
        [
            row.label, shown(row.test), apart(row, reference), chosen_value(row), at_default(row),
            *map(human_bytes, (row.arrays_up, row.arrays_down, row.messages, row.search_up)),
        ]
        for row in rows
    ]  # fmt: skip
    return markdown_table(head, cells, (1, 2, 5, 6, 7, 8))


def both_measures(rows: Sequence[MeasuredRow]) -> str:
    head = (
        "model",
        "own domain",
        "all domains",
        "value chosen",
        "own domain, at the default value",
        "all messages",
    )
    cells = [
        [
            row.label, shown(row.test), shown(row.every_domain), chosen_value(row), at_default(row),
            human_bytes(row.messages),
        ]
        for row in rows
    ]  # fmt: skip
    return markdown_table(head, cells, (1, 2, 5))


def search_table(rows: Sequence[MeasuredRow]) -> str:
    def cell(tried: TriedValue) -> str:
        return f"{tried.value}: {fmean(tried.validation):.1f} / {fmean(tried.test):.1f}"

    cells = [[row.label, f"`{row.setting}`", ", ".join(map(cell, row.tried))] for row in rows if row.setting]
    return markdown_table(("method", "setting", "value: validation / test"), cells, ())


def origin_table(rows: Sequence[MeasuredRow]) -> str:
    head = ("method", "file", "date", "commit", "sources", "experiment, for each draw")
    cells = [
        [row.label, row.experiment.removeprefix("experiments/"), row.date, row.commit, row.sources,
         ", ".join(row.digests)]
        for row in rows
    ]  # fmt: skip
    return markdown_table(head, cells, ())


def tables(rows: Sequence[MeasuredRow]) -> str:
    digits = [row for row in rows if row.table == DIGITS]
    common = [row for row in digits if row.reports == "global"]
    own = [row for row in digits if row.reports != "global"]
    (reference,) = [row for row in common if row.label == REFERENCE]
    best = max(common, key=lambda row: fmean(row.test))
    return (
        f"**One head, measured on the test images of all domains, %**\n\n{global_table(common, reference)}"
        f"\n**Both measures, %**\n\n{both_measures([*own, best])}"
        f"\n**The values that were tried, %**\n\n{search_table(digits)}"
        f"\n**Where the figures come from**\n\n{origin_table(digits)}"
    )


def in_short(rows: Sequence[MeasuredRow]) -> str:
    """Return the paragraph at the beginning of the page."""
    common = [row for row in rows if row.table == DIGITS and row.reports == "global"]
    best = max(common, key=lambda row: fmean(row.test))
    own = [row for row in rows if row.table == DIGITS and row.reports != "global"]
    alone = max(own, key=lambda row: fmean(row.test))
    front = [
        f"{row.label} ({human_bytes(row.arrays_up)}, {fmean(row.test):.1f} %)" for row in front_of(common)
    ]
    return (
        "**Most of the gain comes from the backbone, and not from the federation.** A device that learns\n"
        f"alone from these features has {shown(alone.test)} % accuracy on its own domain. The best global head\n"
        f"({best.label}) has {shown(best.test)} % on the test images of all domains, which is another measure.\n"
        f"On all domains, the heads of devices alone have {shown(alone.every_domain)} %.\n\n"
        "No other head has both fewer bytes up and a higher accuracy than one of these:\n\n"
        + "".join(f"- {one}\n" for one in front)
    )


def front_of(rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """Return the rows that no other row beats in both bytes up and accuracy, by their bytes."""
    return [
        row
        for row in sorted(rows, key=lambda row: row.arrays_up)
        if not any(
            one.arrays_up <= row.arrays_up and fmean(one.test) > fmean(row.test)
            for one in rows
            if one is not row
        )
    ]


def generate(page: str, rows: Sequence[MeasuredRow] | None = None) -> str:
    found = read_measured() if rows is None else rows
    return replace_table(replace_table(page, SHORT, in_short(found)), MODULE, tables(found))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="?", type=Path)
    parser.add_argument("--searches", type=Path)
    options = parser.parse_args()
    if options.runs:
        write_figures(options.runs, options.searches or options.runs)
    PAGE.write_text(generate(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
