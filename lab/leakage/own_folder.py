"""Read the last answers of a device from its own folder, with its own samples and its own network.

Nothing is sent: only files of this device are read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.state.file import Answer, RunEntry, StateFile, read_state_file
from protofleet.edge_client.trainer.kept_models import LAST, kept_file
from protofleet.lab.leakage.domain_samples import DomainSamples
from protofleet.lab.leakage.observed import Exchange, Observed, Truth
from protofleet.methods.contract.base import ClientHalf
from protofleet.methods.contract.bridge import to_torch
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.received import WrongArraysError
from protofleet.methods.served.card import CardError, plan_of
from protofleet.methods.served.kept import read_kept as read_kept_model
from protofleet.protocol.coding.update import DecodedArrays, is_bundle
from protofleet.protocol.settings.named_codecs import stages_of
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.store import DamagedError, ObjectStore
from protofleet.protocol.wire.messages import Arrays
from protofleet.protocol.wire.names import EVALUATE
from protofleet.protocol.wire.reasons import Rejected
from protofleet.runtime.command.errors import RunError

STATE_FILE: Final = "device.json"
CHECKED: Final = 1 << 30  # Limit in bytes for an unpacked answer of this device.


def observed_by(settings: DeviceSettings, plan: Plan | None = None) -> Observed:
    """Return the last answers of the newest run of this device, with the truth.

    The device stores only the hash of a plan. The plan is taken from the model that the device keeps, or given.
    """
    folder = Path(settings.folder)
    entry = newest_run(folder)
    plan = plan or kept_plan(folder, entry)
    if plan.digest.hex() != entry.plan:
        raise SettingsError(
            f"the plan has the SHA-256 {plan.digest.hex()[:12]}..., but the device's newest run {entry.run} has "
            f"{entry.plan[:12]}...; name the plan of that run with --plan"
        )
    store = ObjectStore(folder / "objects", durable=False, make=False)
    exchanges = list(exchanges_in(store, settings.name, entry, plan))
    samples = DomainSamples({settings.name: settings.data}, settings.plugins)
    truth = samples.own_truth(settings.name)
    half = restored_half(plan, settings, truth, store, entry, exchanges)
    return Observed(plan, "device", exchanges, truths={settings.name: replace(truth, half=half)})


def newest_run(folder: Path) -> RunEntry:
    """Return the entry of the device's newest run; raise RunError if there is none with an answer."""
    path = folder / STATE_FILE
    try:
        saved: StateFile = read_state_file(path.read_bytes(), path)
    except FileNotFoundError:
        raise RunError(f"{path} does not exist: this device has taken part in no run yet") from None
    except DamagedError as error:
        raise RunError(
            f"{path} is damaged ({error}): start the device once, which restores the file"
        ) from None
    entry = next((one for one in reversed(saved.runs) if any(a.phase != EVALUATE for a in one.answers)), None)
    if entry is None:
        raise RunError(
            f"{path} has no answer of a training round: the device must have answered a task first"
        )
    return entry


def kept_plan(folder: Path, entry: RunEntry) -> Plan:
    """Return the plan in the card of the device's kept model; raise SettingsError if it is not there."""
    try:
        return plan_of(read_kept_model(kept_file(folder, LAST)).card)
    except CardError:
        raise SettingsError(
            f"the device keeps no model of the run {entry.run}, so its plan is not in {folder}: name the plan with "
            "--plan (kept/plan.json of the coordinator), or set keep_models = true on the device"
        ) from None


def exchanges_in(store: ObjectStore, device: str, entry: RunEntry, plan: Plan) -> Iterator[Exchange]:
    """Return the answers that the device still has, with their broadcasts if these are still there."""
    for answer in entry.answers:
        if answer.phase != EVALUATE and (arrays := decoded(store, answer, plan)) is not None:
            broadcast = _object(store, answer.base) or {}
            yield Exchange(device, answer.round, answer.phase, broadcast, arrays, answer.examples)


def decoded(store: ObjectStore, answer: Answer, plan: Plan) -> Arrays | None:
    """Return the arrays of an answer as the coordinator reads them; None if the answer is no longer there."""
    arrays = _object(store, answer.object)
    if arrays is None or not any(map(is_bundle, arrays)):
        return arrays
    codec = plan.codec or stages_of("lossless", plan.variant.kinds.declared)
    base = bytes.fromhex(answer.base)
    reference = store.load(base) if base and store.has(base) else None
    try:
        coded = store.load(bytes.fromhex(answer.object))
        return dict(DecodedArrays(coded, codec.up if codec else {}, reference, CHECKED))
    except Rejected as error:
        raise RunError(
            f"the answer of round {answer.round} {answer.phase} is coded, and its broadcast is no longer there "
            f"({' '.join(str(error).split())[:80]}): measure while a run goes on, or set codec off"
        ) from None


def _object(store: ObjectStore, name: str) -> Arrays | None:
    if not name or not store.has(bytes.fromhex(name)):
        return None
    return dict(store.open(bytes.fromhex(name)))


def restored_half(
    plan: Plan, settings: DeviceSettings, truth: Truth, store: ObjectStore, entry: RunEntry, exchanges: list[Exchange]
) -> ClientHalf:  # fmt: skip
    """Return the client half in the state after the last answer, with what the coordinator has sent last."""
    half = plan.client_half(truth.samples, settings.name, settings.network)
    half.begin(exchanges[-1].number if exchanges else entry.last_round)
    if newest := _object(store, entry.broadcast):
        # It may have other arrays, such as those of a delta.
        with contextlib.suppress(WrongArraysError, KeyError):
            half.receive(to_torch(newest))
    if state := _object(store, entry.half):
        half.restore(to_torch(state))
    with contextlib.suppress(WrongArraysError, KeyError):  # A part that is sent is not a part of the state.
        if exchanges and any(name.startswith("weights.") for name in exchanges[-1].answer):
            half.receive(to_torch(exchanges[-1].answer))
    return half
