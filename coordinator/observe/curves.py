"""The results of a whole run, from the lines of rounds.jsonl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protofleet.coordinator.models.choice import Validation, best_point
from protofleet.coordinator.observe.record import is_of_all
from protofleet.protocol.link.meter import DOWN, UP

Line = Mapping[str, Any]
Lines = Sequence[Line]
ByDomain = Mapping[str, float]


@dataclass(frozen=True)
class Measurement:
    """The result of one view after a number of training rounds, and the number of devices that measured the view."""

    rounds: int  # Number of training rounds before the measurement.
    line: int  # Index of the line of rounds.jsonl that holds the result.
    # The line that holds the result, or the part of the line about the evaluation at the beginning of the
    # round.
    table: Mapping[str, Any]
    view: str
    devices: int  # Number of devices that measured the view.
    # Number of devices that were present; equal to `devices` if an earlier version wrote the line.
    present: int
    by_all: bool  # True if all present devices were asked to measure.
    in_round: bool  # True if the view was measured in the tasks of a round, and not in an evaluation.

    def of(self, measure: str) -> ByDomain:
        """Return the values by domain; `measure` is "accuracy", "validation" or "loss"."""
        found: ByDomain = self.table.get(measure, {}).get(self.view, {})
        return found

    @property
    def judged(self) -> Validation:
        """Return the validation accuracy by which the best measurement is chosen."""
        return Validation(self.of("validation"), self.of("validation_by_device"))


def is_global(view: str) -> bool:
    return view.startswith("global")


def views(lines: Lines) -> list[str]:
    """Return the views whose accuracy was measured: "global", "personal", "personal-classifier" ..."""
    return sorted({view for line in lines for view in line["accuracy"]})


def measurements(lines: Lines, view: str) -> list[Measurement]:
    """Return the measurements of one view in a run, in the order in which they were made.

    A global model is measured at the beginning of a round, so the line of a round holds the result of the
    previous rounds. A personal model is measured after the training of its round. The last evaluation does
    not count as a round of training.
    """
    done, most = rounds_done(lines), most_asked(lines)
    found = []
    for place, line in enumerate(lines):
        evaluation = line.get("evaluation") or {}
        if not is_global(view) and evaluation.get("accuracy", {}).get(view):
            devices, present = len(evaluation["answered"]), len(evaluation["asked"])
            found.append(
                Measurement(line["round"] - 1, place, evaluation, view, devices, present, True, False)
            )
        if line["accuracy"].get(view):
            rounds = line["round"] - 1 if is_global(view) else min(line["round"], done)
            devices, present = devices_and_present(line, view, most)
            by_all, in_round = measured_by_all(line, view, most), line.get("kind") != "evaluation"
            found.append(Measurement(rounds, place, line, view, devices, present, by_all, in_round))
    return found


def curve(lines: Lines, view: str, measure: str) -> list[ByDomain]:
    """Return a table of values by domain for each line that contains this view, in the order of the lines."""
    return [line[measure][view] for line in lines if line[measure].get(view)]


def measured_by_all(line: Line, view: str, most: int = 0) -> bool:
    """Return whether all present devices were asked to measure this view in the round of a line.

    The result can be True even if some devices have sent no update.

    A line of an earlier version does not say how many devices were present. For such a line, the number of
    asked devices is compared with `most`, the largest number of asked devices in any line. If `most` is 0,
    the result is True.
    """
    if who := line.get("measured", {}).get(view):
        return is_of_all(who)
    return not asked_in(line) or asked_in(line) >= most


def devices_and_present(line: Line, view: str, most: int) -> tuple[int, int]:
    if who := line.get("measured", {}).get(view):
        return who["devices"], who["present"]
    return len(line.get("participants", ())), max(most, asked_in(line))


def asked_in(line: Line) -> int:
    """Return the number of devices that were asked in any phase of a round."""
    return len({device for phase in line.get("phases", ()) for device in phase.get("asked", ())})


def most_asked(lines: Iterable[Line]) -> int:
    """Return the largest number of devices that were asked in one line.

    The last evaluation asks all present devices, so this number is at least the number of devices that were
    present at the end of the run.
    """
    return max(map(asked_in, lines), default=0)


def measured(lines: Lines, view: str) -> dict[str, Any]:
    """Return the results of one view: its first, last and best values.

    `pooled` is the number of correct predictions of all devices, divided by the number of all test samples.
    `start` is left empty if only a sampled cohort measured the first value. A cohort may lack some domains, so
    its mean must not be compared with the mean of all devices.
    """
    points = measurements(lines, view)
    start = points[0].of("accuracy") if points and points[0].by_all else {}
    pooled = [line["pooled"][view] for line in lines if view in line.get("pooled", {})]
    return {
        "start": with_mean(start),
        "final": with_mean(points[-1].of("accuracy") if points else {}),
        "pooled": pooled[-1] if pooled else None,
        "best_by_validation": best(points),
    }


def rounds_done(lines: Lines) -> int:
    """Return the number of training rounds that have ended.

    This is the highest round number in the lines, and not the number of lines, because some lines may be
    lost.
    """
    return max((line["round"] for line in lines if line.get("kind") != "evaluation"), default=0)


def with_mean(by_domain: Mapping[str, float]) -> dict[str, float]:
    """Add the unweighted mean over domains, which is the value that the papers report."""
    if not by_domain:
        return {}
    return {**by_domain, "mean": sum(by_domain.values()) / len(by_domain)}


def best(points: Sequence[Measurement]) -> dict[str, Any]:
    """Choose the best measurement by its validation accuracy, never by its test accuracy.

    Only measurements by all present devices are considered.
    """
    judged = [
        (place, point.judged) for place, point in enumerate(points) if point.by_all and point.of("validation")
    ]
    if not judged or len(judged) != sum(point.by_all for point in points):
        return {}
    place, chosen = judged[best_point([validation for _, validation in judged])]
    mean = with_mean(chosen.domains)["mean"]
    return {"point": place, "validation_mean": mean, **with_mean(points[place].of("accuracy"))}


def totals(lines: Lines, name: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {UP: {}, DOWN: {}}
    for line in lines:
        for way, kinds in line.get(name, {}).items():
            for kind, size in kinds.items():
                found[way][kind] = found[way].get(kind, 0) + size
    return found
