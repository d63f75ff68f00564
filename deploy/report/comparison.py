"""`protofleet compare`: finished runs side by side; those that differ only in their seed are one row.

Accuracy is that of a view: of the global or of the devices' own models, and for some methods of another way to
predict with them. The best round is chosen on validation samples, never on test samples. Bytes "to 90 %" are those
of all tensors, up and down, that had crossed when a run's mean test accuracy first reached that share of what the
baseline ends with. Bytes after r rounds do not include the delivery of the r-th round's result.
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

from protofleet.coordinator.observe.curves import curve, is_global, measurements, with_mean
from protofleet.deploy.errors import RunError
from protofleet.deploy.report.energy.amounts import joules_of
from protofleet.deploy.report.finished_run import Rounds, read_run, require_finished, require_keys
from protofleet.protocol.settings.reader import read_toml

SEED_SUFFIX = re.compile(r"-s(eed)?-?\d+$")
ROUNDING_ERROR = 1e-9  # of a mean: the baseline must reach its own accuracy with a share of 1
REPORTS = "reports"  # the view that each method's paper reports
# Settings in which two runs of one experiment may differ.
IGNORED_SETTINGS = frozenset(
    {"name", "seed", "broker", "compute", "metrics_port", "metrics_host", "pictures"}
)
REQUIRED_KEYS = ("name", "method", "reports", "rounds", "seed", "payload", "wire")


@dataclass(frozen=True)
class Point:
    """A measurement of accuracy, and what had been spent on it."""

    rounds: int  # of training
    bytes: int  # of tensors, up and down
    accuracy: Mapping[str, float]  # on test samples, by domain, and "mean"
    validation: Mapping[str, float]
    in_round: bool = True  # and not by the last evaluation
    joules: float = 0.0  # of the devices that measure them
    devices: int = 0  # that measured the accuracy
    present: int = 0  # devices that were there
    by_all: bool = True  # all present devices were asked, and no sampled cohort


@dataclass(frozen=True)
class Run:
    folder: Path
    summary: Mapping[str, Any]
    rounds: Rounds
    settings: str  # JSON of those that all runs of one experiment have in common

    @property
    def label(self) -> str:
        return name_without_seed(self.summary["name"])

    def points(self, view: str) -> list[Point]:
        """A global model is measured at the beginning of a round: it is the result of the round before.

        A domain whose devices missed a round keeps its last measurement; until all have one there is no point.
        """
        found, sent, drawn, done = [], 0, 0.0, 0
        test, validation = dict[str, float](), dict[str, float]()
        for point in measurements(self.rounds, view):
            for line in self.rounds[done : point.line]:
                sent, drawn = sent + payload_of(line), drawn + joules_of(line)
            done = point.line
            spent, joules = sent, drawn
            if not is_global(view):
                spent += payload_of(point.table)
                joules += joules_of(point.table)
            test, validation = {**test, **point.of("accuracy")}, {**validation, **point.of("validation")}
            found.append(
                Point(
                    point.rounds, spent, with_mean(test), with_mean(validation), point.in_round, joules,
                    point.devices, point.present, point.by_all,
                )
            )  # fmt: skip
        return [point for point in found if point.accuracy.keys() == found[-1].accuracy.keys()]

    def points_by_all(self, view: str) -> list[Point]:
        """The points that all present devices measured: these can be compared with each other."""
        return [point for point in self.points(view) if point.by_all]

    def is_complete(self, view: str) -> bool:
        """Whether every round has measured the same domains."""
        return len({frozenset(point) for point in curve(self.rounds, view, "accuracy")}) <= 1

    def pooled(self, view: str) -> float | None:
        """Accuracy over all devices' test samples, where the run has recorded it."""
        values = [line["pooled"][view] for line in self.rounds if view in line.get("pooled", {})]
        return values[-1] if values else None

    def total_bytes(self, name: str, *directions: str) -> int:
        return sum(sum(self.summary[name].get(direction, {}).values()) for direction in directions)


@dataclass(frozen=True)
class Group:
    """The runs of one experiment, with different seeds."""

    name: str
    view: str
    runs: Sequence[Run]

    @property
    def method(self) -> str:
        return str(self.runs[0].summary["method"])

    def final_points(self) -> list[Point]:
        return [points[-1] for run in self.runs if (points := run.points(self.view))]

    def best_points(self) -> list[Point]:
        found = [best_by_validation(run.points(self.view), self.view) for run in self.runs]
        return [point for point in found if point is not None]


@dataclass(frozen=True)
class AccuracyTarget:
    """A share of the accuracy that the baseline ends with."""

    accuracy: float
    share: float
    baseline: Group

    @property
    def description(self) -> str:
        final = self.accuracy / self.share
        return f"{self.accuracy:.1%}, which is {self.share:.0%} of what {self.baseline.name} ends with ({final:.1%})"

    def points_of(self, group: Group) -> list[Point]:
        """The first point at or above it, of each run of a group that has one."""
        first_points = [self.first_point(run, group.view) for run in group.runs]
        return [point for point in first_points if point is not None]

    def first_point(self, run: Run, view: str) -> Point | None:
        reached = (p for p in run.points_by_all(view) if p.accuracy["mean"] > self.accuracy - ROUNDING_ERROR)
        return next(reached, None)


def best_by_validation(points: Sequence[Point], view: str) -> Point | None:
    """Never by test: the first whose validation mean is highest, of those that all present devices measured.

    Of devices' own models those of rounds alone, where there are some: what an evaluation measures may be another
    model, as one after a last fit.
    """
    measured = [point for point in points if point.validation and point.by_all]
    if not is_global(view):
        measured = [point for point in measured if point.in_round] or measured
    return max(measured, key=lambda point: point.validation["mean"], default=None)


def payload_of(line: Mapping[str, Any]) -> int:
    return sum(size for kinds in line["payload"].values() for size in kinds.values())


def name_without_seed(name: str) -> str:
    return SEED_SUFFIX.sub("", name)


def read_groups(folders: Sequence[Path], view: str = REPORTS) -> list[Group]:
    """Groups in the order in which their first folders are given."""
    once = list({folder.resolve(): folder for folder in folders}.values())
    require_finished(once)
    runs = [read_comparable_run(folder) for folder in once]
    views = sorted({name for run in runs for line in run.rounds for name in line["accuracy"]})
    if view != REPORTS and view not in views:
        raise RunError(f"no run has measured the view {view!r}; there are {', '.join([REPORTS, *views])}")
    experiments: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        experiments.setdefault((run.label, run.settings), []).append(run)
    labels = [label for label, _ in experiments]
    return [
        Group(
            label if labels.count(label) == 1 else f"{label} ({seeds[0].folder})",
            seeds[0].summary["reports"] if view == REPORTS else view,
            require_different_seeds(seeds),
        )
        for (label, _), seeds in experiments.items()
    ]


def read_comparable_run(folder: Path) -> Run:
    run = read_run(folder)
    require_keys(folder, run.summary, REQUIRED_KEYS)
    if run.faults:
        print(f"protofleet: {run.faults}", file=sys.stderr)
    return Run(folder, run.summary, run.rounds, common_settings(folder, run.summary))


def common_settings(folder: Path, summary: Mapping[str, Any]) -> str:
    path = folder / "experiment.toml"
    table = read_toml(path) if path.exists() else {name: summary[name] for name in ("method", "rounds")}
    table = {key: value for key, value in table.items() if key not in IGNORED_SETTINGS}
    if isinstance(data := table.get("data"), dict):
        table["data"] = {key: value for key, value in data.items() if key != "seed"}
    return json.dumps(table, sort_keys=True, default=str)


def require_different_seeds(runs: Sequence[Run]) -> Sequence[Run]:
    """RunError where two have the same seed: that would make the deviation between seeds look small."""
    seen: dict[int, Run] = {}
    for run in runs:
        other = seen.setdefault(run.summary["seed"], run)
        if other is not run:
            raise RunError(
                f"{other.folder} and {run.folder} are one experiment with one seed, {run.summary['seed']}; "
                "name only one of them"
            )
    return runs


def accuracy_target(groups: Sequence[Group], baseline: str, share: float) -> AccuracyTarget | None:
    """None where no baseline is named and there is not exactly one group that runs FedAvg."""
    if not 0 < share <= 1:
        raise RunError(f"--share is {share:g}, it must be above 0 and at most 1")
    baselines = candidates(groups, baseline)
    if baseline and not baselines:
        raise RunError(f"no group is called {baseline!r}; there are {', '.join(g.name for g in groups)}")
    accuracies = (
        [point.accuracy["mean"] for point in baselines[0].final_points()] if len(baselines) == 1 else []
    )
    return AccuracyTarget(share * fmean(accuracies), share, baselines[0]) if accuracies else None


def candidates(groups: Sequence[Group], baseline: str = "") -> list[Group]:
    """Of the name, or those that run FedAvg."""
    return [
        g for g in groups if (g.name == name_without_seed(baseline) if baseline else g.method == "fedavg")
    ]


def write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}; name another place") from None
