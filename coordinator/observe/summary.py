"""summary.json: the whole run in one object, made from the lines of rounds.jsonl."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import torch

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.observe.record import Summary, odd_summary
from protofleet.coordinator.observe.view import RunView
from protofleet.coordinator.spool.index import row_checksum
from protofleet.protocol.link.meter import DOWN, UP
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.store import DamagedError

WAY_OUT: Final = "put it back from a copy, or remove it and run the same command again, which writes it anew"
# What it could say before it carried a seal.
UNSEALED: Final = frozenset(field.name for field in fields(Summary))
Lines = Sequence[Mapping[str, Any]]
Points = list[dict[str, float]]  # by domain; the place in the list is the number of rounds behind it


def summarise(run: RunView, settings: CoordinatorSettings, lines: Lines, software: str) -> dict[str, Any]:
    method = run.plan.variant
    return {
        "name": settings.name,
        "method": run.plan.method,
        "paper": method.paper,
        "network": run.plan.network.name,
        "reports": method.reports,
        "rounds": settings.rounds,
        "seed": settings.seed,
        "devices": {
            m.device: {"domain": run.domains.get(m.device, ""), "examples": m.examples}
            for m in sorted(run.members.values(), key=lambda m: m.device)
        },
        "ended": f"diverged: {run.diverged}" if run.diverged else "finished",
        "seconds": round(sum(line["seconds"] for line in lines), 1),
        "payload": totals(lines, "payload"),
        "wire": totals(lines, "wire"),
        "fedavg": {way: sum(line["fedavg"].get(way, 0) for line in lines) for way in (UP, DOWN)},
        "accuracy": measured(lines, method.reports),
        "views": {view: measured(lines, view) for view in views(lines)},
        "broker": settings.broker_words or str(settings.broker),
        "security": settings.security,
        "versions": {"protofleet": software, "python": platform.python_version(), "torch": torch.__version__},
    }


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
        "best_by_validation": best(points, curve(lines, view, "validation")),
    }


def curve(lines: Lines, view: str, measure: str) -> Points:
    """Values by domain after 0, 1, 2 ... rounds (global), or after 1, 2 ... (personal).

    A global model is measured at the beginning of a round, so the line of round r holds the point r - 1.
    """
    return [line[measure][view] for line in lines if line[measure].get(view)]


def with_mean(by_domain: Mapping[str, float]) -> dict[str, float]:
    """The unweighted mean over domains stands beside them, as the papers report it."""
    if not by_domain:
        return {}
    return {**by_domain, "mean": sum(by_domain.values()) / len(by_domain)}


def best(test: Points, validation: Points) -> dict[str, Any]:
    """Chosen by validation, never by test: the first round whose validation mean is highest."""
    if not validation or len(validation) != len(test):
        return {}
    means = [with_mean(point)["mean"] for point in validation]
    chosen = means.index(max(means))
    return {"point": chosen, "validation_mean": means[chosen], **with_mean(test[chosen])}


def totals(lines: Lines, name: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {UP: {}, DOWN: {}}
    for line in lines:
        for way, kinds in line[name].items():
            for kind, size in kinds.items():
                found[way][kind] = found[way].get(kind, 0) + size
    return found


def write_summary(path: Path, summary: Mapping[str, Any], disk: Disk) -> None:
    sealed = {**summary, "seal": _seal(summary)}
    disk.replace(path, (json.dumps(sealed, indent=1, allow_nan=False) + "\n").encode())


def read_summary(path: Path) -> dict[str, Any]:
    """What was written, or DamagedError. Earlier versions put no seal on it."""
    try:
        summary = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(f"{path} cannot be read: {str(error)[:80]}; {WAY_OUT}") from None
    if not isinstance(summary, dict):
        raise DamagedError(f"{path} is no summary of a run; {WAY_OUT}")
    sealed = summary.pop("seal", None)
    if sealed is None and (odd := sorted(summary.keys() - UNSEALED)):
        raise DamagedError(f"{path} is damaged: {odd[0][:40]!r} is nothing that it says; {WAY_OUT}")
    if sealed is None and (words := odd_summary(summary)):
        raise DamagedError(f"{path} is no summary of a run: {words}; {WAY_OUT}")
    if sealed is not None and sealed != _seal(summary):
        raise DamagedError(f"{path} is damaged: it is not what was written; {WAY_OUT}")
    return summary


def _seal(summary: Mapping[str, Any]) -> str:
    return row_checksum("summary", json.dumps(summary, allow_nan=False)).hex()
