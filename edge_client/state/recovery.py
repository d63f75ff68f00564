"""Start a device from its disk: find the newest undamaged state, and the update that must be computed again.

If one or two files are damaged, later results still have the same bits as without the damage. device.json has two
copies. If the state or the last update is missing, the device returns to the state before that update and computes
the update again. If the update's broadcast is on the disk, the device does this at once. Otherwise the device waits
until the task of the lost update arrives again. While it waits, it does no other task of this run, because the result
would depend on the lost state. device.json names the lost update, so that a later process also waits for this task.

The file with the previous state has the state before the last update of any run. So if a device takes part in several
runs, only the run of this update can return to an earlier state.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from protofleet.edge_client.state.file import RunEntry, StateFile, read_state_file
from protofleet.edge_client.state.residuals import objects_in
from protofleet.protocol.privacy.ledger import joined
from protofleet.protocol.storage.store import DamagedError, NewerFormatError, ObjectStore

log = logging.getLogger("protofleet.device")

ReadResult: TypeAlias = "StateFile | DamagedError | NewerFormatError | None"  # None if the file is missing


@dataclass(frozen=True, slots=True)
class RecoveredState:
    saved: StateFile
    fell_back: bool = False  # True if a file was damaged, so that a copy or an older state was used.
    # The entries before the last update; empty if the device cannot return to them.
    previous: list[RunEntry] = field(default_factory=list)


class StateFiles:
    """The paths of device.json, of its copies, and of the file with the state before the last update."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.newest = folder / "device.json"
        self.copies = (folder / "device.copy.json", folder / "device.copy-2.json")
        self.previous = folder / "device.previous.json"


def recover(files: StateFiles, store: ObjectStore) -> RecoveredState:
    """Return the state of the device from its files.

    Raise DamagedError if the undamaged files do not show the progress of the device. Raise NewerFormatError if a
    later version of protofleet has written the files.
    """
    newest, previous = _read(files.newest), _read(files.previous)
    copies = [_read(path) for path in files.copies]
    if not store.names() and all(found is None for found in (newest, previous, *copies)):
        return RecoveredState(StateFile())
    fault = _describe_fault(files.newest, newest)
    # A copy with a lower boot than the previous state is out of date: an earlier version of protofleet has run since
    # then, without replacing this copy.
    lowest_boot = previous.boot if isinstance(previous, StateFile) else 0
    readable = (found for found in (newest, *copies) if isinstance(found, StateFile))
    saved = next((found for found in readable if found.boot >= lowest_boot), None)
    if newer := _newer_format_error(saved, newest, *copies, previous):
        raise newer
    if saved is None:
        fault = fault or f"{files.newest} is older than {files.previous}"
        raise _unrecoverable(files, fault, *map(_describe_fault, files.copies, copies))
    if fault:
        log.error("%s; the copy of this file is used instead", fault)
    if isinstance(previous, DamagedError | NewerFormatError):
        log.warning(
            "%s; the device continues without this file, which has only the state before the last update",
            _describe_fault(files.previous, previous),
        )
    earlier = previous.runs if isinstance(previous, StateFile) else []
    damaged = {entry.run: missing for entry in saved.runs if (missing := _missing(store, *_needed(entry)))}
    entries = [
        _fall_back(files, entry, _before(entry, earlier, store), damaged[entry.run], store)
        if entry.run in damaged
        else _without_lost_objects(entry, store)
        for entry in saved.runs
    ]
    kept = [one for one in earlier if not damaged and not _missing(store, *_needed(one, answers=False))]
    # No copy may forget a release: an older copy of the ledger would allow the device to give away more.
    ledgers = [found.releases for found in (saved, newest, *copies, previous) if isinstance(found, StateFile)]
    saved = replace(saved, runs=entries, releases=joined(*ledgers))
    return RecoveredState(saved, bool(fault or damaged), kept)


def _before(entry: RunEntry, earlier: list[RunEntry], store: ObjectStore) -> RunEntry | None:
    """Return the entry of the same run before its last update, or None if it is missing or not complete."""
    found = (one for one in earlier if (one.run, one.plan) == (entry.run, entry.plan))
    return next((one for one in found if not _missing(store, *_needed(one, answers=False))), None)


def _newer_format_error(saved: StateFile | None, *files: ReadResult) -> NewerFormatError | None:
    """Return an error if a later version of the software has written the files, or None.

    A later version would write device.json and its copies in the same newer format. So if only one file has a newer
    format number, this number is damaged.
    """
    found = [file for file in files if isinstance(file, NewerFormatError)]
    return found[0] if len(found) > 1 or (found and saved is None) else None


def _fall_back(
    files: StateFiles,
    newest: RunEntry,
    fallback: RunEntry | None,
    missing: str,
    store: ObjectStore,
) -> RunEntry:
    """Return the state before the last update. If this update must be computed again, record it as lost."""
    fault = f"{store.folder / missing}.body is gone or damaged"
    if fallback is None or newest.lost or not newest.answers or newest.answers == fallback.answers:
        raise _unrecoverable(
            files,
            fault,
            "" if fallback else f"the state before it, {files.previous}, is gone or damaged",
        )
    last = newest.answers[-1]
    here = not last.base or store.has(bytes.fromhex(last.base))
    # If the update did not change the half's state, nothing is lost: later tasks do not need the update.
    lost = last if here or newest.half != fallback.half else None
    again = ", and computes that update again" if lost else ""
    when = "" if here or not lost else " when its task arrives again, because the broadcast is missing too"
    log.error("%s; the device goes back to the state before the last update%s%s", fault, again, when)
    masked = newest.masked.lost() if newest.masked else None
    return replace(_without_lost_objects(fallback, store), epoch=newest.epoch, lost=lost, masked=masked)


def _unrecoverable(files: StateFiles, *faults: str) -> DamagedError:
    return DamagedError(f"{'; '.join(filter(None, faults))}; {recovery_advice(files.folder)}")


def recovery_advice(folder: Path) -> str:
    return f"put it back from a copy, or remove {folder} and let the device start anew"


def _read(path: Path) -> ReadResult:
    try:
        return read_state_file(path.read_bytes(), path)
    except FileNotFoundError:
        return None
    except (DamagedError, NewerFormatError) as error:
        return error


def _describe_fault(path: Path, found: ReadResult) -> str:
    match found:
        case None:
            return f"{path} is gone"
        case NewerFormatError():
            return f"{path} is damaged (its format is {found.found})"
        case DamagedError():
            return f"{path} is damaged ({found})"
    return ""


def _needed(entry: RunEntry, answers: bool = True) -> list[str]:
    """Return the objects without which the device must return to the state before the last update of this run.

    The last update is needed, but not if a later update is recorded as lost: then the coordinator does not need the
    updates in the entry any more.
    """
    last = [answer.object for answer in entry.answers[-1:]] if answers and not entry.lost else []
    return [entry.half, *objects_in(entry.residuals), *last]


def _missing(store: ObjectStore, *names: str) -> str:
    """Return the name of the first object that is not in the store, or ""."""
    return next((name for name in names if name and not store.has(bytes.fromhex(name))), "")


def _without_lost_objects(saved: RunEntry, store: ObjectStore) -> RunEntry:
    answers = [a for a in saved.answers if store.has(bytes.fromhex(a.object))]
    for answer in saved.answers:
        if answer not in answers:
            log.warning(
                "the update for round %d, phase %s, is missing or damaged", answer.round, answer.phase
            )
    here = saved.broadcast and store.has(bytes.fromhex(saved.broadcast))
    references = {phase: name for phase, name in saved.references.items() if store.has(bytes.fromhex(name))}
    masked = saved.masked
    if masked and _missing(store, *masked.objects()):
        masked = masked.lost()
    broadcast = saved.broadcast if here else ""
    return replace(saved, answers=answers, broadcast=broadcast, references=references, masked=masked)
