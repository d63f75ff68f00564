"""What a device that starts finds on its disk: the newest of it that is whole, and what has to be made again.

One damaged file changes no bit, and neither do two. device.json has two copies. Where the state or the last answer is
gone, the device goes back to before that answer and works it out again: at once where the broadcast is here, else
when the same is asked once more. Another question it does not answer, as other bits would come of that. What is lost
stands in that file, so that a later start knows it as well.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from protofleet.edge_client.state.file import StateFile, read_state_file
from protofleet.protocol.storage.store import DamagedError, NewerFormatError, ObjectStore

log = logging.getLogger("protofleet.device")

Found: TypeAlias = "StateFile | DamagedError | NewerFormatError | None"  # None: there is no such file


@dataclass(frozen=True, slots=True)
class Recovered:
    saved: StateFile
    half_before: str = ""  # of the generation before it
    went_back: bool = False  # something was damaged, and this is what could be had


class Files:
    """device.json, copies of it, and the one from before the last answer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.newest = folder / "device.json"
        self.copies = (folder / "device.copy.json", folder / "device.copy-2.json")
        self.previous = folder / "device.previous.json"


def recover(files: Files, store: ObjectStore) -> Recovered:
    """DamagedError where what is left does not tell how far the device had come; or NewerFormatError."""
    newest, previous = _read(files.newest), _read(files.previous)
    copies = [_read(path) for path in files.copies]
    if not store.names() and all(found is None for found in (newest, previous, *copies)):
        return Recovered(StateFile())
    fault = _fault(files.newest, newest)
    # A copy with a lower boot is one that an earlier version has left.
    least = previous.boot if isinstance(previous, StateFile) else 0
    whole = (found for found in (newest, *copies) if isinstance(found, StateFile))
    saved = next((found for found in whole if found.boot >= least), None)
    if newer := _of_a_later_version(saved, newest, *copies, previous):
        raise newer
    if saved is None:
        fault = fault or f"{files.newest} is older than {files.previous}"
        raise _unrecoverable(files, fault, *map(_fault, files.copies, copies))
    if fault:
        log.error("%s; its copy has taken its place", fault)
    before = previous if isinstance(previous, StateFile) and not _missing(store, previous.half) else None
    if missing := _missing(store, saved.half, *_last(saved)):
        return _go_back(files, saved, before, f"{store.folder / missing}.body is gone or damaged", store)
    if isinstance(previous, DamagedError | NewerFormatError):
        log.warning("%s; it is the older one, the device goes on", _fault(files.previous, previous))
    return Recovered(_without_lost_objects(saved, store), before.half if before else "", bool(fault))


def _of_a_later_version(saved: StateFile | None, *files: Found) -> NewerFormatError | None:
    """A later version writes device.json and all its copies: where one file alone says so, its number is damaged."""
    found = [file for file in files if isinstance(file, NewerFormatError)]
    return found[0] if len(found) > 1 or (found and saved is None) else None


def _go_back(
    files: Files, newest: StateFile, before: StateFile | None, fault: str, store: ObjectStore
) -> Recovered:
    """What was before the last answer, and that answer to be worked out again."""
    if before is None or newest.lost or not newest.answers:
        raise _unrecoverable(
            files, fault, "" if before else f"what was before it, of {files.previous}, is gone or damaged"
        )
    last = newest.answers[-1]
    here = not last.base or store.has(bytes.fromhex(last.base))
    lost = last if here or newest.half != before.half else None  # a half that keeps nothing has lost nothing
    again = ", and working it out again" if lost else ""
    when = "" if here or not lost else " when it is asked for: its broadcast is gone as well"
    log.error("%s; going back to what was before the last answer%s%s", fault, again, when)
    saved = replace(_without_lost_objects(before, store), boot=newest.boot, epoch=newest.epoch, lost=lost)
    return Recovered(saved, went_back=True)


def _unrecoverable(files: Files, *faults: str) -> DamagedError:
    return DamagedError(f"{'; '.join(filter(None, faults))}; {way_out(files.folder)}")


def way_out(folder: Path) -> str:
    return f"put it back from a copy, or remove {folder} and let the device begin anew"


def _read(path: Path) -> Found:
    try:
        return read_state_file(path.read_bytes(), path)
    except FileNotFoundError:
        return None
    except (DamagedError, NewerFormatError) as error:
        return error


def _fault(path: Path, found: Found) -> str:
    match found:
        case None:
            return f"{path} is gone"
        case NewerFormatError():
            return f"{path} is damaged (its format is {found.found})"
        case DamagedError():
            return f"{path} is damaged ({found})"
    return ""


def _last(saved: StateFile) -> list[str]:
    """The state after an answer cannot give it once more. Where a later one is lost, nobody asks for it."""
    return [] if saved.lost else [answer.object for answer in saved.answers[-1:]]


def _missing(store: ObjectStore, *names: str) -> str:
    """The first of them that is not here, or nothing."""
    return next((name for name in names if name and not store.has(bytes.fromhex(name))), "")


def _without_lost_objects(saved: StateFile, store: ObjectStore) -> StateFile:
    answers = [a for a in saved.answers if store.has(bytes.fromhex(a.object))]
    for answer in saved.answers:
        if answer not in answers:
            log.warning("the answer to round %d %s is gone or damaged", answer.round, answer.phase)
    here = saved.broadcast and store.has(bytes.fromhex(saved.broadcast))
    return replace(saved, answers=answers, broadcast=saved.broadcast if here else "")
