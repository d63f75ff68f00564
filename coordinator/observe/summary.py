"""The summary of a whole run as one table, which is written to summary.json."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.observe.curves import Lines, measured, rounds_done, totals, views
from protofleet.coordinator.observe.energy import total_energy
from protofleet.coordinator.observe.record import machines_in
from protofleet.coordinator.observe.view import RunView
from protofleet.protocol.link.meter import DOWN, UP
from protofleet.protocol.settings.reader import encode
from protofleet.runtime.host.machine import machine_words, parts_of

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def rules_of_run(run: RunView) -> dict[str, str]:
    """Return a description of each way to predict; empty if the method raises an error.

    The summary must be written even after such an error.
    """
    try:
        return dict(run.rules())
    except (RuntimeError, LookupError, TypeError, ValueError):
        return {}


def summarise(
    run: RunView,
    settings: CoordinatorSettings,
    lines: Lines,
    software: str,
    built: Mapping[str, str] = NOTHING,
) -> dict[str, Any]:
    """Make the summary; `built` holds the commit and the digest of the sources, if they are known."""
    method = run.plan.variant
    # A process that starts after the last round receives no hellos, which describe the machines. So the descriptions
    # in rounds.jsonl are used too.
    software_of = {**machines_in(lines), **run.software}
    return {
        "name": settings.name,
        "method": run.plan.method,
        "paper": method.paper,
        "network": run.plan.network_words,
        "rules": rules_of_run(run),
        "reports": method.reports,
        "rounds": run.rounds_planned,
        "rounds_done": rounds_done(lines),
        "seed": settings.seed,
        "origin": run.origin.shown() if run.origin else {},
        "generation": run.generation,
        "devices": {
            m.device: {
                "domain": run.domains.get(m.device, ""), "examples": m.examples,
                **parts_of(software_of.get(m.device, "")),
            }
            for m in sorted(run.members.values(), key=lambda m: m.device)
        },
        "class_names": list(run.class_names),
        "ended": f"diverged: {run.diverged}" if run.diverged else "finished",
        "stopped": "" if run.diverged else run.ended_early,
        "stopped_by": "" if run.diverged else run.ended_by,
        "seconds": round(sum(line["seconds"] for line in lines), 1),
        "payload": totals(lines, "payload"),
        "uncoded": totals(lines, "uncoded") if run.plan.coding else {},
        "privacy": privacy_of(run, lines),
        "privacy_unit": run.plan.dp.unit if run.plan.dp else "",
        "wire": totals(lines, "wire"),
        "fedavg": {way: sum(line["fedavg"].get(way, 0) for line in lines) for way in (UP, DOWN)},
        "accuracy": measured(lines, method.reports),
        "views": {view: measured(lines, view) for view in views(lines)},
        "energy": total_energy(lines),
        "virtual": {},
        "profiles": "",
        "broker": settings.broker_words or str(settings.broker),
        "security": settings.security,
        "robust": dict(run.policy.robust.rules) if run.policy.robust else {},
        "secagg": encode(run.plan.secagg) if run.plan.secagg else {},
        "keep": list(run.plan.keep),
        "versions": {
            "protofleet": software, "python": platform.python_version(), "torch": torch.__version__,
            "machine": machine_words(), **built,
        },
        "experiment": settings.experiment,
    }  # fmt: skip


def privacy_of(run: RunView, lines: Lines) -> dict[str, float]:
    """Return the numbers of `[dp]` and the largest epsilon of a device so far; empty in a run without dp."""
    if (dp := run.plan.dp) is None:
        return {}
    spent = max((line.get("privacy", {}).get("epsilon", 0.0) for line in lines), default=0.0)
    return {"epsilon": dp.epsilon, "delta": dp.delta, "clip": dp.clip, "rounds": dp.rounds, "spent": spent}
