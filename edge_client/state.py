"""What survives a reboot: the half's state and the last answers, always those that belong together.

One JSON file names the objects; writing it anew and renaming it is the moment at which a training counts. The file
and the state from before the last training are kept as well: where something is damaged, the device goes back to
them, and the last question gets the answer that it has got before.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from protocol.disk import Disk
from protocol.messages import Arrays
from protocol.settings import decode
from protocol.store import DamagedError, NewerFormatError, ObjectStore

HASH_OR_NOTHING: Final = re.compile(r"(?:[0-9a-f]{64})?")
KEPT_ANSWERS: Final = 4  # phases of one round; nobody asks for older ones
FORMAT: Final = 1
UNKNOWN_BOOTS: Final = 1 << 20  # more than a device can have had since an older generation was written

log = logging.getLogger("protofleet.device")


@dataclass(frozen=True, slots=True)
class Answer:
    question: str
    round: int
    phase: str
    base: str
    object: str
    examples: int
    metrics: Mapping[str, float]


class TakenOverError(RuntimeError):
    """A later start of this device goes on in its folder: what this one has worked out is nobody's any more."""


@dataclass
class Book:
    """The contents of the JSON file."""

    boot: int = 0
    run: str = ""
    epoch: int = 0  # the highest of a coordinator that was heard: an older one is not listened to
    plan: str = ""
    half: str = ""  # object with the half's state
    broadcast: str = ""  # last one that is here in full
    answers: list[Answer] = field(default_factory=list)


class Memory:
    def __init__(self, folder: Path, durable: bool = True, disk: Disk | None = None) -> None:
        self.disk = disk or Disk(durable)
        self.folder = folder
        self._path, self._previous = folder / "device.json", folder / "device.previous.json"
        self.store = ObjectStore(folder / "objects", disk=self.disk)
        self.fallbacks = 0
        self._half_before = ""  # of the generation before this one
        self.book = self._recalled()
        self._own = self.book.boot  # a higher one on the disk is of a process that has taken over

    def boot(self, clock: int) -> int:
        """The number of this start, above every earlier one even if the clock went back."""
        with self._alone():
            boot = max(clock, self.book.boot + 1, self._boot_on_disk() + 1)
            self._turn_to(replace(self.book, boot=boot))
            self._own = boot
        return boot

    def outranked(self, boot: int, mine: int) -> bool:
        """Whether a later process has this name. Then the next start is above it, whatever the clock says."""
        with self._alone():
            # What a later process of this very folder has written there is its own.
            if boot > max(mine, self.book.boot, self._boot_on_disk()):
                self._turn_to(replace(self.book, boot=boot))
                self._own = boot
        return boot > mine

    @property
    def last_round(self) -> int:
        """Of what was answered in this run."""
        return max((answer.round for answer in self.book.answers), default=0)

    def begin(self, run: str, plan: str, epoch: int = 0) -> None:
        """Take on a run; what was learned in another one is forgotten."""
        if (self.book.run, self.book.plan) == (run, plan):
            return
        with self._alone():
            self._demand_own()
            self._turn_to(Book(boot=self.book.boot, run=run, plan=plan, epoch=epoch))
            self.disk.remove(self._previous)
            self._half_before = ""
        self.store.sweep()
        self.store.keep(set())

    def half(self) -> Arrays | None:
        return self.store.open(bytes.fromhex(self.book.half)) if self.book.half else None

    def answer_to(self, question: str) -> Answer | None:
        return next((a for a in self.book.answers if a.question == question), None)

    def remember(self, answer: Answer, half: Arrays, epoch: int = 0) -> None:
        """State and answer become durable together, and whose question it was."""
        name = self.store.put(half).object.hex() if half else ""
        with self._alone():
            self._demand_own()
            before = self.book
            answers = [a for a in before.answers if a.round == answer.round]
            book = replace(
                before, epoch=max(epoch, before.epoch), half=name, broadcast=answer.base,
                answers=[*answers, answer][-KEPT_ANSWERS:],
            )  # fmt: skip
            self._turn_to(book, keep=True)
            self._half_before = before.half

    def next_bytes(self, base: bytes) -> int:
        """About what the answer to this broadcast and the state behind it will take of the disk."""
        last = self.book.answers[-1].object if self.book.answers else ""
        known = [self.store.size(bytes.fromhex(name)) for name in (self.book.half, last) if name]
        return 2 * max([self.store.size(base) if base else 0, *known])

    def tidy(self, needed: set[bytes]) -> None:
        """Forget all objects but those of the two generations and those that are still needed."""
        kept = {self._half_before, *self._named()}
        self.store.keep({bytes.fromhex(name) for name in kept if name} | needed)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Processes on one folder, and threads of this one, look and write one after the other.

        The loop hears that it is outranked while the worker writes an answer down.
        """
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _demand_own(self) -> None:
        if (seen := self._boot_on_disk()) > self._own:
            raise TakenOverError(
                f"another process of this device has taken over {self.folder}, with boot number {seen}; this "
                f"one, {self._own}, stops"
            )

    def _turn_to(self, book: Book, keep: bool = False) -> None:
        """On the disk first: what could not be written has not happened."""
        self._write(book, keep)
        self.book = book

    def _boot_on_disk(self) -> int:
        try:
            return read_book(self._path.read_bytes()).boot
        except (FileNotFoundError, DamagedError):
            return 0

    def _named(self) -> set[str]:
        return {self.book.half, self.book.broadcast, *(a.object for a in self.book.answers)}

    def _recalled(self) -> Book:
        faults: list[str] = []
        found: list[Book] = []
        for path in (self._path, self._previous):
            with contextlib.suppress(FileNotFoundError):
                try:
                    # Without the first file the second one is: a version before this one moved it first.
                    newest = not found and not faults
                    found.append(self._whole(read_book(path.read_bytes(), path), newest))
                except DamagedError as error:
                    faults.append(f"{path} is damaged ({error})")
        self._half_before = found[1].half if len(found) > 1 else ""
        if found and not faults:
            return found[0]
        if found and faults[0].startswith(str(self._previous)):
            log.warning("%s; it is the older one, the device goes on", faults[0])
            return found[0]
        if found:
            self.fallbacks += 1
            log.error("%s; going back to what was before the last answer", faults[0])
            return replace(found[0], boot=found[0].boot + UNKNOWN_BOOTS)
        if not faults and self.store.names():
            faults.append(f"{self._path} is gone")
        if faults:
            raise DamagedError(
                f"{'; '.join(faults)}; put it back from a copy, or remove {self.folder} and let the device begin anew"
            )
        return Book()

    def _whole(self, book: Book, newest: bool) -> Book:
        """With those objects that are here, or DamagedError where it is nothing without one that is not."""
        if book.half and not self.store.has(bytes.fromhex(book.half)):
            raise DamagedError(f"{self.store.folder / book.half}.body is gone or damaged")
        answers = [a for a in book.answers if self.store.has(bytes.fromhex(a.object))]
        if (
            newest and book.answers and book.answers[-1] not in answers
        ):  # the state after it can not make it again
            raise DamagedError(f"{self.store.folder / book.answers[-1].object}.body is gone or damaged")
        here = book.broadcast and self.store.has(bytes.fromhex(book.broadcast))
        return replace(book, answers=answers, broadcast=book.broadcast if here else "")

    def _write(self, book: Book, keep: bool = False) -> None:
        """Anew; what it takes the place of is kept where it is another generation."""
        target = self._path.with_suffix(".new")
        target.write_bytes(written(book))
        self.disk.sync(target)
        if keep and self._path.exists():
            self.disk.link(self._path, self._previous)
        self.disk.rename(target, self._path)
        self.disk.sync(self.folder)


def written(book: Book) -> bytes:
    table = asdict(book)
    return json.dumps({"format": FORMAT, "seal": sealed(table), "book": table}).encode()


def sealed(table: object) -> str:
    """A flipped bit in a number is no fault to JSON."""
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def read_book(text: bytes, path: Path = Path("device.json")) -> Book:
    """The contents of the JSON file; DamagedError, or NewerFormatError."""
    try:
        table = json.loads(text)
        found = table.get("format", 0)
        if type(found) is int and found > FORMAT:
            raise NewerFormatError(path, found, FORMAT)
        if found != 0:  # format 0 was the bare table
            if table["seal"] != sealed(table["book"]):
                raise ValueError("it is not what was written")
            table = table["book"]
        answers = [decode(Answer, row, f"answers[{i}]") for i, row in enumerate(table.pop("answers"))]
        book = decode(Book, table)
        book.answers = answers
        names = [book.plan, book.half, book.broadcast]
        names += [name for a in answers for name in (a.question, a.base, a.object)]
        if bad := [name for name in names if not HASH_OR_NOTHING.fullmatch(name)]:
            raise ValueError(f"{bad[0][:40]!r} is no SHA-256")
        if not 0 <= book.epoch < 1 << 63:
            raise ValueError(f"epoch is {book.epoch}")
        if not 0 <= book.boot < 1 << 63 or len(answers) > KEPT_ANSWERS:
            raise ValueError(f"boot is {book.boot}, and there are {len(answers)} answers")
    except NewerFormatError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{type(error).__name__}: {str(error)[:80]}") from None
    return book
