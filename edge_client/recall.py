"""What a device that starts finds on its disk: the newest of it that is whole, and what has to be made again.

One damaged file changes no bit. The book has a copy. Where the state or the last answer is gone, the device goes back
to before that answer and works it out again: state, question and broadcast are all here.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from edge_client.book import Answer, Book, read_book
from protocol.store import DamagedError, ObjectStore

UNKNOWN_BOOTS: Final = 1 << 20  # more than a device can have had since an older generation was written

log = logging.getLogger("protofleet.device")


@dataclass(frozen=True, slots=True)
class Recalled:
    book: Book
    half_before: str = ""  # of the generation before it
    went_back: bool = False  # something was damaged, and this is what could be had
    lost: Answer | None = None  # given, and not here any more


class Files:
    """The book, a copy of it, and the book from before the last answer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.newest, self.copy = folder / "device.json", folder / "device.copy.json"
        self.previous = folder / "device.previous.json"


def recalled(files: Files, store: ObjectStore) -> Recalled:
    """DamagedError where nothing whole is left of what there was."""
    newest, previous = _read(files.newest), _read(files.previous)
    if newest is None and previous is None and not store.names():
        return Recalled(Book())
    fault = _words(files.newest, newest)
    if not isinstance(newest, Book):
        newest = _read(files.copy)
    before = previous if isinstance(previous, Book) and not _missing(store, previous.half) else None
    if isinstance(newest, Book) and not (missing := _missing(store, newest.half, *_last(newest))):
        if fault:
            log.error("%s; its copy has taken its place", fault)
        if isinstance(previous, DamagedError):
            log.warning(
                "%s is damaged (%s); it is the older one, the device goes on", files.previous, previous
            )
        return Recalled(_with_what_is_here(newest, store), before.half if before else "", bool(fault))
    if isinstance(newest, Book):
        fault = f"{store.folder / missing}.body is gone or damaged"
    if before is None:
        faults = "; ".join(filter(None, (fault, _words(files.previous, previous))))
        raise DamagedError(
            f"{faults}; put it back from a copy, or remove {files.folder} and let the device begin anew"
        )
    return _before(before, newest if isinstance(newest, Book) else None, fault, store)


def _before(before: Book, newest: Book | None, fault: str, store: ObjectStore) -> Recalled:
    """What was before the last answer, and that answer to be worked out again where it is known."""
    boot = newest.boot if newest else before.boot + UNKNOWN_BOOTS
    book = replace(_with_what_is_here(before, store), boot=boot)
    lost = newest.answers[-1] if newest and newest.answers else None
    if lost and lost.base and not store.has(bytes.fromhex(lost.base)):
        lost = None
    again = ", and working it out again" if lost else ""
    log.error("%s; going back to what was before the last answer%s", fault, again)
    return Recalled(book, went_back=True, lost=lost)


def _read(path: Path) -> Book | DamagedError | None:
    """None where there is no such file."""
    try:
        return read_book(path.read_bytes(), path)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        return error


def _words(path: Path, found: Book | DamagedError | None) -> str:
    if found is None:
        return f"{path} is gone"
    return f"{path} is damaged ({found})" if isinstance(found, DamagedError) else ""


def _last(book: Book) -> list[str]:
    """The state after an answer cannot give it once more."""
    return [answer.object for answer in book.answers[-1:]]


def _missing(store: ObjectStore, *names: str) -> str:
    """The first of them that is not here, or nothing."""
    return next((name for name in names if name and not store.has(bytes.fromhex(name))), "")


def _with_what_is_here(book: Book, store: ObjectStore) -> Book:
    answers = [a for a in book.answers if store.has(bytes.fromhex(a.object))]
    for answer in book.answers:
        if answer not in answers:
            log.warning("the answer to round %d %s is gone or damaged", answer.round, answer.phase)
    here = book.broadcast and store.has(bytes.fromhex(book.broadcast))
    return replace(book, answers=answers, broadcast=book.broadcast if here else "")
