"""What a whole run has come to, out of the lines of rounds.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protofleet.coordinator.models.choice import Validation, best_point
from protofleet.protocol.link.meter import DOWN, UP

Lines = Sequence[Mapping[str, Any]]
Points = list[dict[str, float]]  # by domain; the place in the list is the number of rounds behind it


def views(lines: Lines) -> list[str]:
    """Whose accuracy was measured: "global", "personal", "personal-classifier" ..."""
    return sorted({view for line in lines for view in line["accuracy"]})


def measured(lines: Lines, view: str) -> dict[str, Any]:
    """One view over the run. `pooled` is all devices' correct answers over all their test samples."""
    points = curve(lines, view, "accuracy")
    pooled = [line["pooled"][view] for line in lines if view in line.get("pooled", {})]
    return {
        "start": with_mean(points[0] if points else {}),
        "final": with_mean(points[-1] if points else {}),
        "pooled": pooled[-1] if pooled else None,
        "best_by_validation": best(points, curve(lines, view, "validation"), devices_at(lines, view)),
    }


def curve(lines: Lines, view: str, measure: str) -> Points:
    """Values by domain after 0, 1, 2 ... rounds (global), or after 1, 2 ... (personal).

    A global model is measured at the beginning of a round, so the line of round r holds the point r - 1.
    """
    return [line[measure][view] for line in lines if line[measure].get(view)]


def rounds_done(lines: Lines) -> int:
    """Of training, to their end; a line may be lost, so the last one says it."""
    return max((line["round"] for line in lines if line.get("kind") != "evaluation"), default=0)


def with_mean(by_domain: Mapping[str, float]) -> dict[str, float]:
    """The unweighted mean over domains stands beside them, as the papers report it."""
    if not by_domain:
        return {}
    return {**by_domain, "mean": sum(by_domain.values()) / len(by_domain)}


def devices_at(lines: Lines, view: str) -> Points:
    """Return the validation accuracy by device at each point; empty where a line has none."""
    lines = [line for line in lines if line["validation"].get(view)]
    return [line.get("validation_by_device", {}).get(view, {}) for line in lines]


def best(test: Points, validation: Points, devices: Points | None = None) -> dict[str, Any]:
    """Choose a point by validation, never by test."""
    if not validation or len(validation) != len(test):
        return {}
    devices = devices or [{}] * len(validation)
    chosen = best_point([Validation(*point) for point in zip(validation, devices, strict=True)])
    mean = with_mean(validation[chosen])["mean"]
    return {"point": chosen, "validation_mean": mean, **with_mean(test[chosen])}


def totals(lines: Lines, name: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {UP: {}, DOWN: {}}
    for line in lines:
        for way, kinds in line[name].items():
            for kind, size in kinds.items():
                found[way][kind] = found[way].get(kind, 0) + size
    return found
