"""Find the chosen model of a run in the files of the run's folder."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from protofleet.coordinator.models.saved import SavedRun, read_saved_run
from protofleet.coordinator.observe.curves import with_mean
from protofleet.coordinator.observe.rounds_file import read_rounds
from protofleet.edge_client.trainer.kept_models import BEST, LAST, kept_file
from protofleet.lab.export.kept_plugins import plugins_of_run
from protofleet.lab.export.mistaken import is_device, is_run, no_run
from protofleet.methods.contract.bridge import to_torch
from protofleet.methods.contract.overview import NoSamples
from protofleet.methods.contract.plan import Plan, read_plan
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.methods.served.card import Card, CardError, sha256_of_tensors
from protofleet.methods.served.kept import read_kept
from protofleet.methods.served.rebuild import described, rebuild
from protofleet.methods.served.scaling import Input, input_of
from protofleet.methods.served.served import PREDICT, Served, served
from protofleet.protocol.settings.reader import SettingsError, encode
from protofleet.protocol.settings.suggest import there_are
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.wire.arrays import Body
from protofleet.runtime.command.errors import RunError

Chosen: TypeAlias = Literal["last", "best"]
OLDER: Final = "an earlier version of protofleet wrote this folder"


@dataclass(frozen=True)
class Wanted:
    """A user's choice of one model of a run. If `device` is set, the user wants that device's own model."""

    chosen: Chosen = "last"
    device: str | None = None
    way: str = PREDICT
    # Plug-ins that the caller names. They are used in addition to the plug-ins that a run keeps.
    plugins: PlugIns = field(default_factory=PlugIns)


@dataclass(frozen=True)
class ExportedModel:
    """A model of a run with its card. The card still lacks the list of exported files."""

    card: Card
    served: Served
    assumed: str = ""  # A sentence about the scale that is assumed for the input; "" if the scale is known.


def find_model(folder: Path, wanted: Wanted) -> ExportedModel:
    """Find a model in the folder of a run, of a coordinator or of a device.

    If there is no such model, a RunError is raised.
    """
    try:
        if is_device(folder) and not is_run(folder):
            return _device_s_own(folder, folder, wanted, "")
        run = _saved_run(folder)
        # The plug-ins of the plan stay loaded for the steps that follow.
        plan = read_plan(run.plan, plugins_of_run(folder, wanted.plugins))
        if wanted.device is None:
            return _of_all(folder, run, plan, wanted)
        return _device_s_own(folder, _folder_of_device(folder, wanted.device), wanted, run.name)
    except (CardError, DamagedError, LookupError) as error:
        raise RunError(str(error).strip('"')) from None


def _saved_run(folder: Path) -> SavedRun:
    """Return the saved run. `folder` may also be the coordinator's own folder."""
    found = read_saved_run(folder / "coordinator") or read_saved_run(folder)
    if found is None:
        raise RunError(no_run(folder))
    return found


# The model that all devices share.


def _of_all(folder: Path, run: SavedRun, plan: Plan, wanted: Wanted) -> ExportedModel:
    if plan.variant.reports == "personal":
        raise SettingsError(
            f"the method {plan.method} trains one model for each device; choose a device with --device: "
            f"{_devices_in(folder)}"
        )
    if run.round <= 1:
        raise RunError(f"{folder} holds no model yet, because the first round has not ended")
    if wanted.chosen == "best" and _best_was_deleted(folder, run, plan):
        wanted = replace(wanted, chosen="last")
    number, state = _state(folder, run, run.rounds or plan.rounds, wanted.chosen)
    half = _half(plan, state)
    taken, assumed = _input(folder, plan)
    model = served(half, taken, wanted.way)
    return ExportedModel(_card(folder, run, plan, model, taken, number, wanted), model, assumed)


def _best_was_deleted(folder: Path, run: SavedRun, plan: Plan) -> bool:
    """Return whether the best model was deleted together with the answer of a removed device."""
    if not plan.load().Server.keeps_answers or run.best() is not None:
        return False
    return any(line.get("validation") for line in read_rounds(folder / "rounds.jsonl"))


def _input(folder: Path, plan: Plan) -> tuple[Input, str]:
    """Return the form of the input, and a sentence about the scale if the scale is assumed.

    Each device scales its own samples, and stores the scale with its model. So without the model of a device, the
    scale is not known.
    """
    found = dict[str, Input]()
    for path in sorted((folder / "devices").glob("*")):
        with contextlib.suppress(CardError, OSError):
            card = read_kept(kept_file(path, LAST)).card
            if card.input.shape == plan.input_shape.axes:
                found[path.name] = card.input
    if not found:
        taken = input_of(plan)
        return taken, f"nobody here knows how devices scale their samples; assumed: {taken.range_in_words()}"
    first, taken = next(iter(found.items()))
    if other := next((name for name, one in found.items() if one != taken), None):
        return taken, (
            f"the devices do not scale their samples in the same way ({first}: {taken.range_in_words()}, {other}: "
            f"{found[other].range_in_words()}); in the model, the scale of {first} is used"
        )
    return taken, ""


def _state(folder: Path, run: SavedRun, rounds: int, chosen: Chosen) -> tuple[int, Body]:
    """Return two values: the number of the round that begins with the chosen state, and the chosen state."""
    if chosen == "last":
        over = [
            line["round"] for line in read_rounds(folder / "rounds.jsonl") if line["kind"] == "evaluation"
        ]
        # An evaluation does not change weights, so the state at its start is also the last state of the run.
        return min(run.round, *over, rounds + 1), run.newest()
    if (best := run.best()) is not None:
        return best
    lines = read_rounds(folder / "rounds.jsonl")
    why = OLDER if any(line.get("validation") for line in lines) else "no device has validation samples"
    raise RunError(f"{folder} has no best model ({why}); use --last")


def _half(plan: Plan, state: Body) -> Any:
    """Return a client half that has received the state from the server half.

    The saved state already has all weights, so the plan's initial weights are needed only for a frozen
    backbone. Public images are needed only for training.
    """
    plan = replace(plan, init=plan.init if plan.freeze else None, public=None)
    server, half = plan.server_half(), plan.client_half(NoSamples(), "")
    server.restore(to_torch(state))
    half.receive(server.payload())
    half.model.eval()
    return half


def _card(
    folder: Path, run: SavedRun, plan: Plan, model: Served, taken: Input, number: int, wanted: Wanted
) -> Card:
    tensors = model.state_dict()
    line: Mapping[str, Any] = next(
        (x for x in read_rounds(folder / "rounds.jsonl") if x["round"] == number), {}
    )
    view = "global" if wanted.way == PREDICT else f"global-{wanted.way}"
    validation = with_mean(line.get("validation", {}).get(view, {})).get("mean")
    return Card(
        method=plan.method, classes=run.class_names or _numbers(plan.classes), input=taken,
        network=plan.network, rule=described(model.rule), plan=encode(plan), tensors=sha256_of_tensors(tensors),
        name=run.name, paper=plan.load().paper, way=wanted.way, round=number - 1, chosen=wanted.chosen,
        validation=validation, test=with_mean(line.get("accuracy", {}).get(view, {})),
        parameters=sum(value.numel() for value in tensors.values() if value.is_floating_point()),
        bytes=sum(value.nbytes for value in tensors.values()), plan_sha256=plan.digest.hex(),
    )  # fmt: skip


def _numbers(classes: int) -> tuple[str, ...]:
    """Return names for classes whose real names are not known: the number of each class."""
    return tuple(str(label) for label in range(classes))


# The model of one device.


def _folder_of_device(folder: Path, device: str) -> Path:
    found = folder / "devices" / device
    if device in ("", ".", "..") or "/" in device or not found.is_dir():
        raise RunError(
            f"{device or 'a device without a name'} took no part in {folder}; {_devices_in(folder, device)}"
        )
    return found


def _devices_in(folder: Path, device: str = "") -> str:
    names = sorted(path.name for path in (folder / "devices").glob("*") if path.is_dir())
    if not names:
        return (
            "there is no device in it: a deployed device has its models in its own folder, on its own machine, where "
            "`protofleet export FOLDER` takes them"
        )
    return there_are(device, names)


def _device_s_own(folder: Path, own: Path, wanted: Wanted, run: str) -> ExportedModel:
    last, path = kept_file(own, LAST), kept_file(own, BEST if wanted.chosen == "best" else LAST)
    if not last.exists():
        raise RunError(
            f"{own.name} has no own model in {folder}: the device has not trained yet, keep_models is false, or "
            f"{OLDER}"
        )
    if not path.exists():
        raise RunError(f"{own.name} kept no best model, because it has no validation samples; use --last")
    kept = read_kept(path)
    if wanted.device not in (None, kept.card.device):
        raise RunError(f"{folder} is the folder of {kept.card.device}, not of {wanted.device}")
    card, tensors = kept.model(wanted.way)
    return ExportedModel(replace(card, name=run or card.name, chosen=wanted.chosen), rebuild(card, tensors))
