"""`protofleet compare`: finished runs side by side; those that differ only in their seed are one row.

Accuracy is that of a view: of the global or of the devices' own models, and for some methods of another way to
predict with them. The best round is chosen on validation images, never on test images. Bytes "to 90 %" are those
of all tensors, up and down, that had crossed when a run's mean test accuracy first reached that share of what the
baseline ends with. Bytes after r rounds are those of r rounds: the delivery of what they made is not in them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from protofleet.coordinator.observe.curves import curve, with_mean
from protofleet.deploy.errors import RunError
from protofleet.deploy.report.finished_run import Rounds, read_run, require_keys
from protofleet.protocol.settings.reader import read_toml

SEED = re.compile(r"-s(eed)?\d+$")
ROUNDING = 1e-9  # error of a mean: the baseline must reach its own accuracy with a share of 1
REPORTS = "reports"  # the view that each method's paper reports
# Settings in which two runs of one experiment may differ.
FREE = frozenset({"name", "seed", "broker", "compute", "metrics_port", "metrics_host", "pictures"})
NEEDED = ("name", "method", "reports", "rounds", "seed", "payload", "wire")


@dataclass(frozen=True)
class Point:
    """A measurement, after so many rounds of training and bytes."""

    rounds: int
    bytes: int
    accuracy: Mapping[str, float]  # on test images, by domain, and "mean"
    validation: Mapping[str, float]


@dataclass(frozen=True)
class Run:
    folder: Path
    summary: Mapping[str, Any]
    lines: Rounds
    settings: str  # those that are the same in all runs of one experiment

    @property
    def label(self) -> str:
        return label_of(self.summary["name"])

    def points(self, view: str) -> list[Point]:
        """A global model is measured at the beginning of a round: it is the result of the round before.

        A domain whose devices missed a round counts with its last measurement; before all have one there is no point.
        """
        found, crossed = [], 0
        test, validation = dict[str, float](), dict[str, float]()
        for line in self.lines:
            here = sum(size for kinds in line["payload"].values() for size in kinds.values())
            if by_domain := line["accuracy"].get(view):
                test, validation = {**test, **by_domain}, {**validation, **line["validation"].get(view, {})}
                behind = crossed if is_global(view) else crossed + here
                found.append(
                    Point(self.rounds_behind(line, view), behind, with_mean(test), with_mean(validation))
                )
            crossed += here
        return [point for point in found if point.accuracy.keys() == found[-1].accuracy.keys()]

    def rounds_behind(self, line: Mapping[str, Any], view: str) -> int:
        """The last evaluation does not count as a round of training."""
        return min(int(line["round"]) - is_global(view), int(self.summary["rounds"]))

    def complete(self, view: str) -> bool:
        """Every round has measured the same domains."""
        return len({frozenset(point) for point in curve(self.lines, view, "accuracy")}) <= 1

    def pooled(self, view: str) -> float | None:
        """Over all devices' test samples, where the run has recorded it."""
        known = [line["pooled"][view] for line in self.lines if view in line.get("pooled", {})]
        return known[-1] if known else None

    def total(self, name: str, *ways: str) -> int:
        return sum(sum(self.summary[name].get(way, {}).values()) for way in ways)


@dataclass(frozen=True)
class Group:
    """Runs of one experiment with several seeds."""

    name: str
    view: str
    runs: Sequence[Run]

    @property
    def method(self) -> str:
        return str(self.runs[0].summary["method"])

    def finals(self) -> list[Point]:
        return [points[-1] for run in self.runs if (points := run.points(self.view))]

    def bests(self) -> list[Point]:
        """Chosen by validation, never by test: the first point whose validation mean is highest."""
        measured = [[p for p in run.points(self.view) if p.validation] for run in self.runs]
        return [max(points, key=lambda p: p.validation["mean"]) for points in measured if points]


@dataclass(frozen=True)
class Goal:
    accuracy: float
    share: float
    baseline: Group

    @property
    def description(self) -> str:
        final = self.accuracy / self.share
        return f"{self.accuracy:.1%}, which is {self.share:.0%} of what {self.baseline.name} ends with ({final:.1%})"

    def reached(self, group: Group) -> list[Point]:
        """The first points of those runs of a group that reach it."""
        firsts = [
            next((p for p in run.points(group.view) if p.accuracy["mean"] > self.accuracy - ROUNDING), None)
            for run in group.runs
        ]
        return [point for point in firsts if point is not None]


def is_global(view: str) -> bool:
    return view.startswith("global")


def label_of(name: str) -> str:
    return SEED.sub("", name)


def read_groups(folders: Sequence[Path], view: str = REPORTS) -> list[Group]:
    """In the order in which they are first named."""
    runs = [read(folder) for folder in {folder.resolve(): folder for folder in folders}.values()]
    known = sorted({name for run in runs for line in run.lines for name in line["accuracy"]})
    if view != REPORTS and view not in known:
        raise RunError(f"no run has measured the view {view!r}; there are {', '.join([REPORTS, *known])}")
    together: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        together.setdefault((run.label, run.settings), []).append(run)
    labels = [label for label, _ in together]
    return [
        Group(
            label if labels.count(label) == 1 else f"{label} ({some[0].folder})",
            some[0].summary["reports"] if view == REPORTS else view,
            of_different_seeds(some),
        )
        for (label, _), some in together.items()
    ]


def read(folder: Path) -> Run:
    found = read_run(folder)
    lines, summary = found.rounds, found.summary
    require_keys(folder, summary, NEEDED)
    if found.faults:
        print(f"protofleet: {found.faults}", file=sys.stderr)
    return Run(folder, summary, lines, settings_of(folder, summary))


def settings_of(folder: Path, summary: Mapping[str, Any]) -> str:
    path = folder / "experiment.toml"
    table = read_toml(path) if path.exists() else {name: summary[name] for name in ("method", "rounds")}
    table = {key: value for key, value in table.items() if key not in FREE}
    if isinstance(data := table.get("data"), dict):
        table["data"] = {key: value for key, value in data.items() if key != "seed"}
    return json.dumps(table, sort_keys=True, default=str)


def of_different_seeds(runs: Sequence[Run]) -> Sequence[Run]:
    """The same run twice would make the spread between seeds look small."""
    seen: dict[int, Run] = {}
    for run in runs:
        other = seen.setdefault(run.summary["seed"], run)
        if other is not run:
            raise RunError(
                f"{other.folder} and {run.folder} are one experiment with one seed, {run.summary['seed']}; "
                "name only one of them"
            )
    return runs


def goal_of(groups: Sequence[Group], baseline: str, share: float) -> Goal | None:
    """None where no group is named and there is not exactly one that runs FedAvg."""
    if not 0 < share <= 1:
        raise RunError(f"--share is {share:g}, it must be above 0 and at most 1")
    named = [g for g in groups if (g.name == label_of(baseline) if baseline else g.method == "fedavg")]
    if baseline and not named:
        raise RunError(f"no group is called {baseline!r}; there are {', '.join(g.name for g in groups)}")
    finals = [point.accuracy["mean"] for point in named[0].finals()] if len(named) == 1 else []
    return Goal(share * fmean(finals), share, named[0]) if finals else None


def write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from None
