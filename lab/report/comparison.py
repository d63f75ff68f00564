"""Implement `protofleet compare`: show finished runs in one table.

Runs that differ only in their seed share a row. Each row has the accuracy of one view: the global model, the
devices' own models, or, for some methods, another way to predict with one of these models. The best round is
chosen on validation samples and never on test samples.

Bytes "to 90 %" are the bytes that a run needs to reach 90 % of the baseline's final accuracy on test samples.
They are the bytes of all arrays in both directions until the mean test accuracy first reaches this value. Bytes
after r rounds do not include the delivery of the result of round r.
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
from protofleet.lab.report.energy_amounts import joules_of
from protofleet.lab.report.finished_run import Rounds, read_run, require_finished, require_keys
from protofleet.protocol.link.meter import DOWN, UP
from protofleet.protocol.settings.reader import read_toml
from protofleet.runtime.command.errors import RunError

SEED_SUFFIX = re.compile(r"-s(eed)?-?\d+$")
# The tolerance for rounding errors of a mean. Without this tolerance, the baseline might not reach a target that is
# equal to its own accuracy (a share of 1).
ROUNDING_ERROR = 1e-9
REPORTS = "reports"  # For each method, choose the view that its paper reports.
# Settings that may differ between two runs of one experiment.
IGNORED_SETTINGS = frozenset(
    {"name", "seed", "broker", "compute", "metrics_port", "metrics_host", "pictures"}
)
REQUIRED_KEYS = ("name", "method", "reports", "rounds", "seed", "payload", "wire")


@dataclass(frozen=True)
class MeasuredPoint:
    """One measurement of accuracy, with the rounds, bytes and joules up to this point of the run."""

    rounds: int  # Training rounds before this measurement.
    bytes: int  # Bytes of arrays before this measurement, in both directions.
    # Accuracy on test samples, by domain. The key "mean" has the mean over the domains.
    accuracy: Mapping[str, float]
    validation: Mapping[str, float]
    in_round: bool = (
        True  # True for a measurement in a round, False for a measurement in the last evaluation.
    )
    joules: float = 0.0  # Joules that devices had measured before this measurement of accuracy.
    devices: int = 0  # Number of devices that measured the accuracy.
    present: int = 0  # Number of devices that were present at the measurement.
    by_all: bool = True  # True if all present devices had to measure, False if only a sampled cohort had to.


@dataclass(frozen=True)
class ComparedRun:
    folder: Path
    summary: Mapping[str, Any]
    rounds: Rounds
    settings: str  # The settings that all runs of one experiment share, as JSON.

    @property
    def label(self) -> str:
        return name_without_seed(self.summary["name"])

    def points(self, view: str) -> list[MeasuredPoint]:
        """Return the measurements of a view.

        A global model is measured at the beginning of a round, so its accuracy is the result of the previous
        round. If no device of a domain took part in a round, the domain's last accuracy is used.
        The first measurements of a run are left out until each domain has an accuracy.
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
                MeasuredPoint(
                    point.rounds, spent, with_mean(test), with_mean(validation), point.in_round, joules,
                    point.devices, point.present, point.by_all,
                )
            )  # fmt: skip
        return [point for point in found if point.accuracy.keys() == found[-1].accuracy.keys()]

    def points_by_all(self, view: str) -> list[MeasuredPoint]:
        """Return the measurements of all present devices. Only these measurements can be compared fairly."""
        return [point for point in self.points(view) if point.by_all]

    def is_complete(self, view: str) -> bool:
        """Return whether the same domains were measured in every measured round."""
        return len({frozenset(point) for point in curve(self.rounds, view, "accuracy")}) <= 1

    def pooled(self, view: str) -> float | None:
        """Return the accuracy over the test samples of all devices together; None if the run has not recorded it."""
        values = [line["pooled"][view] for line in self.rounds if view in line.get("pooled", {})]
        return values[-1] if values else None

    def total_bytes(self, name: str, *directions: str) -> int:
        return sum(sum(self.summary[name].get(direction, {}).values()) for direction in directions)

    def codec_factor(self) -> float | None:
        """Return the bytes without the codec divided by the bytes with it; None without a codec or without bytes."""
        sent = self.total_bytes("payload", UP, DOWN)
        return self.total_bytes("uncoded", UP, DOWN) / sent if self.summary.get("uncoded") and sent else None


@dataclass(frozen=True)
class Group:
    """The runs of one experiment, which differ only in their seed."""

    name: str
    view: str
    runs: Sequence[ComparedRun]

    @property
    def method(self) -> str:
        return str(self.runs[0].summary["method"])

    def final_points(self) -> list[MeasuredPoint]:
        return [points[-1] for run in self.runs if (points := run.points(self.view))]

    def best_points(self) -> list[MeasuredPoint]:
        found = [best_by_validation(run.points(self.view), self.view) for run in self.runs]
        return [point for point in found if point is not None]


@dataclass(frozen=True)
class AccuracyTarget:
    """The accuracy that runs should reach: a share of the baseline's final accuracy."""

    accuracy: float
    share: float
    baseline: Group

    @property
    def description(self) -> str:
        final = self.accuracy / self.share
        whole = f"the final accuracy of {self.baseline.name} ({final:.1%})"
        return f"{self.accuracy:.1%}, which is {self.share:.0%} of {whole}"

    def points_of(self, group: Group) -> list[MeasuredPoint]:
        """Return, for each run of the group, the first measurement at or above the target.

        A run that does not reach the target has no measurement in the list.
        """
        first_points = [self.first_point(run, group.view) for run in group.runs]
        return [point for point in first_points if point is not None]

    def first_point(self, run: ComparedRun, view: str) -> MeasuredPoint | None:
        reached = (p for p in run.points_by_all(view) if p.accuracy["mean"] > self.accuracy - ROUNDING_ERROR)
        return next(reached, None)


def best_by_validation(points: Sequence[MeasuredPoint], view: str) -> MeasuredPoint | None:
    """Return the first measurement with the highest mean validation accuracy.

    Only measurements of all present devices are compared. Test samples have no part in the choice. For the devices'
    own models, the last evaluation is used only if there are no other measurements. Before the last evaluation, some
    methods train these models once more.
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
    """Read the runs in the folders, and return them in groups, in the order of each group's first folder."""
    once = list({folder.resolve(): folder for folder in folders}.values())
    require_finished(once)
    runs = [read_comparable_run(folder) for folder in once]
    views = sorted({name for run in runs for line in run.rounds for name in line["accuracy"]})
    if view != REPORTS and view not in views:
        raise RunError(
            f"no run has measured the view {view!r}; the measured views are {', '.join([REPORTS, *views])}"
        )
    experiments: dict[tuple[str, str], list[ComparedRun]] = {}
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


def read_comparable_run(folder: Path) -> ComparedRun:
    run = read_run(folder)
    require_keys(folder, run.summary, REQUIRED_KEYS)
    if run.faults:
        print(f"protofleet: {run.faults}", file=sys.stderr)
    return ComparedRun(folder, run.summary, run.rounds, common_settings(folder, run.summary))


def common_settings(folder: Path, summary: Mapping[str, Any]) -> str:
    path = folder / "experiment.toml"
    table = read_toml(path) if path.exists() else {name: summary[name] for name in ("method", "rounds")}
    table = {key: value for key, value in table.items() if key not in IGNORED_SETTINGS}
    if isinstance(data := table.get("data"), dict):
        table["data"] = {key: value for key, value in data.items() if key != "seed"}
    # Virtual runs with other profiles are not seeds of one experiment.
    table |= {"profiles": summary["profiles"]} if summary.get("profiles") else {}
    return json.dumps(table, sort_keys=True, default=str)


def require_different_seeds(runs: Sequence[ComparedRun]) -> Sequence[ComparedRun]:
    """Raise RunError if two runs of a group have the same seed.

    The deviation between seeds would look too small with such runs.
    """
    seen: dict[int, ComparedRun] = {}
    for run in runs:
        other = seen.setdefault(run.summary["seed"], run)
        if other is not run:
            raise RunError(
                f"{other.folder} and {run.folder} are runs of one experiment with the same seed, "
                f"{run.summary['seed']}; "
                "name only one of them"
            )
    return runs


def accuracy_target(groups: Sequence[Group], baseline: str, share: float) -> AccuracyTarget | None:
    """Return the accuracy to reach: a share of the baseline's accuracy.

    The baseline is the group with the given name. If no name is given, the baseline is the only group that runs
    FedAvg. Return None if there is no baseline, if several groups could be the baseline, or if the baseline has
    no accuracy.
    """
    if not 0 < share <= 1:
        raise RunError(f"--share is {share:g}, it must be above 0 and at most 1")
    baselines = candidates(groups, baseline)
    if baseline and not baselines:
        raise RunError(
            f"no group has the name {baseline!r}; the groups are {', '.join(g.name for g in groups)}"
        )
    accuracies = (
        [point.accuracy["mean"] for point in baselines[0].final_points()] if len(baselines) == 1 else []
    )
    return AccuracyTarget(share * fmean(accuracies), share, baselines[0]) if accuracies else None


def candidates(groups: Sequence[Group], baseline: str = "") -> list[Group]:
    """Return the groups with the name `baseline`. If the name is empty, return the groups that run FedAvg.

    The name may have a seed, as the folder of a run has. But a group may also have a name that ends like a seed,
    such as a trial of a sweep over `data.seed`.
    """
    if not baseline:
        return [group for group in groups if group.method == "fedavg"]
    exact = [group for group in groups if group.name == baseline]
    return exact or [group for group in groups if group.name == name_without_seed(baseline)]


def write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}; name another place") from None
