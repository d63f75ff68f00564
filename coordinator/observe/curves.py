"""What a whole run has come to, out of the lines of rounds.jsonl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protofleet.coordinator.models.choice import Validation, best_point
from protofleet.protocol.link.meter import DOWN, UP

Line = Mapping[str, Any]
Lines = Sequence[Line]
ByDomain = Mapping[str, float]


@dataclass(frozen=True)
class Measurement:
    """What one view came to after some rounds of training, and which devices measured it."""

    rounds: int  # of training
    line: int  # its place among the lines
    table: Mapping[str, Any]  # the line, or the evaluation with which its round began
    view: str
    devices: int  # that measured it
    present: int  # devices that were there; as `devices`, where an earlier version did not write it
    by_all: bool  # all present devices were asked
    in_round: bool  # measured after the training of a round, or while it began; not by an evaluation

    def of(self, measure: str) -> ByDomain:
        """Values by domain: of "accuracy", "validation" or "loss"."""
        found: ByDomain = self.table.get(measure, {}).get(self.view, {})
        return found

    @property
    def judged(self) -> Validation:
        """The validation by which the best measurement is chosen."""
        return Validation(self.of("validation"), self.of("validation_by_device"))


def is_global(view: str) -> bool:
    return view.startswith("global")


def views(lines: Lines) -> list[str]:
    """Whose accuracy was measured: "global", "personal", "personal-classifier" ..."""
    return sorted({view for line in lines for view in line["accuracy"]})


def measurements(lines: Lines, view: str) -> list[Measurement]:
    """One view over the run, in the order in which it was measured.

    A global model is measured at the beginning of a round, so the line of round r holds the point r - 1. A personal
    one is measured after the training of its round. The last evaluation is no round of training.
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
    """Values by domain of each line that has the view, in order."""
    return [line[measure][view] for line in lines if line[measure].get(view)]


def measured_by_all(line: Line, view: str, most: int = 0) -> bool:
    """Whether all present devices were asked for this view of a line. Some of them may not have answered.

    Earlier versions did not write who was present: there `most`, the largest number of devices that any line has
    asked, decides; 0: nothing is known, and all were.
    """
    if who := line.get("measured", {}).get(view):
        return bool(who["asked"] >= who["present"])
    return not asked_in(line) or asked_in(line) >= most


def devices_and_present(line: Line, view: str, most: int) -> tuple[int, int]:
    if who := line.get("measured", {}).get(view):
        return who["devices"], who["present"]
    return len(line.get("participants", ())), max(most, asked_in(line))


def asked_in(line: Line) -> int:
    """How many devices the phases of a round were put to."""
    return len({device for phase in line.get("phases", ()) for device in phase.get("asked", ())})


def most_asked(lines: Iterable[Line]) -> int:
    """Of the lines of a run: its last evaluation asks all present devices."""
    return max(map(asked_in, lines), default=0)


def measured(lines: Lines, view: str) -> dict[str, Any]:
    """One view over the run. `pooled` is all devices' correct answers over all their test samples.

    The start is left out where a sampled cohort measured it: its mean would be of other domains than the last one.
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
    """Of training, to their end; a line may be lost, so the last one says it."""
    return max((line["round"] for line in lines if line.get("kind") != "evaluation"), default=0)


def with_mean(by_domain: Mapping[str, float]) -> dict[str, float]:
    """The unweighted mean over domains stands beside them, as the papers report it."""
    if not by_domain:
        return {}
    return {**by_domain, "mean": sum(by_domain.values()) / len(by_domain)}


def best(points: Sequence[Measurement]) -> dict[str, Any]:
    """Choose by validation, never by test, among the measurements of all present devices."""
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
        for way, kinds in line[name].items():
            for kind, size in kinds.items():
                found[way][kind] = found[way].get(kind, 0) + size
    return found
