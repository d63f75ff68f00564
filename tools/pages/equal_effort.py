"""Write the table "With equal effort" of docs/results.md: python -m tools.pages.equal_effort RUNS.

RUNS is the folder with the sweeps that the commands on that page have made.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from protofleet.lab.report.comparison import Group, read_groups
from protofleet.lab.report.comparison_tables import alike, escaped, mean_and_deviation
from protofleet.lab.report.numbers import percent_points
from tools.pages.generated_table import DOCS, replace_table

PAGE: Final = DOCS / "results.md"
MODULE: Final = "tools.pages.equal_effort"
RATE: Final = "method.lr"
HEAD: Final = (
    "setting",
    "method, predicting by",
    "rate chosen",
    "test, mean",
    "apart",
    "test at the other rates",
)
ORIGIN: Final = ("setting", "method, predicting by", "commit", "sources", "experiment")


@dataclass(frozen=True)
class Entry:
    """A row of the table: a method and the trials of a sweep that belong to this method."""

    label: str
    sweep: str
    inference: str = ""  # Only trials with this value of method.inference are used; "" means all trials.


SETTINGS: Final = {
    "common": (Entry("FedLSA", "fedlsa-digits"), Entry("FedAvg", "digits-fedavg")),
    "FedSA's skew": (
        Entry("FedSA, prototypes", "fedsa-skew-fedsa-digits"),
        Entry("alone", "fedsa-skew-singleset-digits"),
        Entry("FedProto, classifier", "fedsa-skew-fedproto-digits", "classifier"),
        Entry("FedProto, prototypes", "fedsa-skew-fedproto-digits", "prototype"),
    ),
    "FedHP's skew": (
        Entry("FedHP, prototypes", "fedhp-skew-fedhp-digits"),
        Entry("FedAvg, last fit", "fedhp-skew-fedavg-digits"),
        Entry("FedProto, classifier, last fit", "fedhp-skew-fedproto-digits", "classifier"),
        Entry("FedNH, last fit", "fedhp-skew-fednh-digits"),
        Entry("alone", "fedhp-skew-singleset-digits"),
        Entry("FedProto, prototypes, last fit", "fedhp-skew-fedproto-digits", "prototype"),
    ),
}


@dataclass(frozen=True)
class SweptMethod:
    """The trials of one entry. A trial has a learning rate, its runs and the measurements of its seeds."""

    entry: Entry
    trials: Sequence[dict[str, Any]]

    @property
    def chosen(self) -> dict[str, Any]:
        """Return the trial with the best validation mean. A trial without a result for every seed is not compared."""
        whole = [trial for trial in self.trials if len(trial["validation"]) == len(trial["runs"])]
        return max(whole, key=lambda trial: sum(trial["validation"]))

    @property
    def rate(self) -> str:
        """Return the chosen learning rate, with a mark if it is the largest or smallest rate of the grid."""
        rates = [float(trial["settings"][RATE]) for trial in self.trials]
        rate = float(self.chosen["settings"][RATE])
        return f"{rate:g}, the grid's end" if rate in (min(rates), max(rates)) else f"{rate:g}"

    @property
    def others(self) -> str:
        """Return the mean test accuracy for each learning rate that was not chosen."""
        shown = []
        for trial in self.trials:
            if trial is not self.chosen:
                test, seeds = trial["test"], len(trial["runs"])
                words = f"{100 * sum(test) / len(test):.1f}" if test else "diverges"
                missing = f" (diverges in {seeds - len(test)} of {seeds})" if 0 < len(test) < seeds else ""
                shown.append(f"{float(trial['settings'][RATE]):g}: {words}{missing}")
        return ", ".join(shown)

    def apart(self, first: SweptMethod) -> str:
        """Return this accuracy minus the first method's accuracy, as the mean and the deviation over the seeds."""
        if self is first:
            return ""
        pairs = zip(self.chosen["test"], first.chosen["test"], strict=True)
        found = mean_and_deviation([mine - theirs for mine, theirs in pairs], percent_points)
        return found if found.startswith("-") else f"+{found}"

    def row(self, setting: str, first: SweptMethod) -> list[str]:
        test = mean_and_deviation(self.chosen["test"], percent_points)
        return [setting, self.entry.label, self.rate, test, self.apart(first), self.others]

    def origin(self, setting: str, runs: Path) -> list[str]:
        groups: list[Group] = read_groups([runs / name for name in self.chosen["runs"]])
        found = [run.summary for group in groups for run in group.runs]
        return [
            setting,
            self.entry.label,
            *(alike(one.get("versions", {}).get(key) for one in found) for key in ("commit", "sources")),
            alike(one.get("experiment") for one in found),
        ]


def read_method(entry: Entry, runs: Path) -> SweptMethod:
    table = json.loads((runs / "sweeps" / entry.sweep / "trials.json").read_text())
    wanted = [
        trial
        for trial in table["trials"]
        if entry.inference in ("", trial["settings"].get("method.inference"))
    ]
    return SweptMethod(entry, sorted(wanted, key=lambda trial: float(trial["settings"][RATE])))


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str]) -> str:
    rule = ["---:" if name in numbers else "---" for name in head]
    return "".join("| " + " | ".join(map(escaped, row)) + " |\n" for row in (head, rule, *rows))


def tables(runs: Path) -> str:
    """Return a table of accuracies, and a table of the commits and experiments from which they come."""
    rows, origins = [], []
    for setting, entries in SETTINGS.items():
        found = [read_method(entry, runs) for entry in entries]
        for method in found:
            name = setting if method is found[0] else ""
            rows.append(method.row(name, found[0]))
            origins.append(method.origin(name, runs))
    return (
        markdown(HEAD, rows, HEAD[2:5])
        + "\n**Where the figures come from**\n\n"
        + markdown(ORIGIN, origins, ())
    )


def main(runs: Path) -> None:
    PAGE.write_text(replace_table(PAGE.read_text(), MODULE, tables(runs)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
