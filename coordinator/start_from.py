"""Find the snapshot of another run with which a submitted run starts, and link it into the folder of the new run."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from protofleet.coordinator.spool.origin import Origin, link_snapshot, saved_states
from protofleet.methods.contract.plan import Plan, read_plan
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.wire.names import valid_name


def start_from(runs: Path, source: str, name: str, plan: Plan, plugins: PlugIns) -> Origin:
    """Link the newest whole snapshot of the run `source` into the folder of the run `name`.

    Raise SettingsError if there is no snapshot, or if the new run cannot use it.
    """
    folder, own = runs / valid_name(source) / "coordinator", runs / name / "coordinator"
    states = saved_states(folder)
    if states is None or not states.snapshots:
        raise SettingsError(
            f"{runs / source} has no snapshot; name a run in {runs} whose first round has begun with --from"
        )
    if (begun := saved_states(own)) is not None and begun.snapshots:
        raise SettingsError(
            f"{runs / name} has begun already, so it cannot start from {source}; choose another name"
        )
    if problem := misfit(plan, states.plan, source, plugins):
        raise SettingsError(problem)
    if (origin := link_snapshot(folder, own, source, Disk())) is None:
        raise SettingsError(
            f"all snapshots in {folder / 'snapshots'} are damaged; name another run with --from"
        )
    return origin


def misfit(plan: Plan, text: str, source: str, plugins: PlugIns) -> str:
    """Return why a run of this plan cannot start from a run whose plan is `text`; "" if it may fit."""
    method = json.loads(text)["method"]
    if method != plan.method:
        return f"{source} has the method {method}, and this run has {plan.method}; both must have the same method"
    if plan.load().Server.keeps_answers:
        return (
            f"{method} keeps the answers of devices, which belong to their run; submit the run without --from"
        )
    try:
        have, wanted = shapes_of(read_plan(text.encode(), plugins)), shapes_of(plan)
    except (ValueError, RuntimeError, LookupError, TypeError):
        return ""  # A network cannot be made here, for example a plug-in. The server half tries the snapshot anyway.
    for name, needed in wanted.items():
        if have.get(name) != needed:
            found = f"has the shape {have[name]}" if name in have else "is missing"
            return f"{source} does not fit: {name} of its network {found}, and this run needs {needed}"
    return ""


def shapes_of(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays of the server half's network, which takes no memory here."""
    with torch.device("meta"):
        model = plan.mutual_model() if plan.load().mutual else plan.model()
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}
