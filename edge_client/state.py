"""What survives a reboot: the half's state and the last answers, always those that belong together.

One JSON file names the objects; writing it anew and renaming it is the moment at which a training counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from protocol.disk import Disk
from protocol.messages import Arrays
from protocol.reasons import Rejected
from protocol.settings import decode
from protocol.store import DamagedError, ObjectStore

HASH_OR_NOTHING: Final = re.compile(r"(?:[0-9a-f]{64})?")
KEPT_ANSWERS: Final = 4  # phases of one round; nobody asks for older ones


@dataclass(frozen=True, slots=True)
class Answer:
    question: str
    round: int
    phase: str
    base: str
    object: str
    examples: int
    metrics: Mapping[str, float]


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
        self.folder, self._path = folder, folder / "device.json"
        self.store = ObjectStore(folder / "objects", disk=self.disk)
        self.book = self._read()

    def boot(self, clock: int) -> int:
        """The number of this start, above every earlier one even if the clock went back."""
        self.book.boot = max(clock, self.book.boot + 1)
        self._write()
        return self.book.boot

    def heard_boot(self, boot: int) -> None:
        """Somebody has used this one: the next start is above it, whatever the clock says then."""
        self.book.boot = max(boot, self.book.boot)
        self._write()

    @property
    def last_round(self) -> int:
        """Of what was answered in this run."""
        return max((answer.round for answer in self.book.answers), default=0)

    def begin(self, run: str, plan: str, epoch: int = 0) -> None:
        """Take on a run; what was learned in another one is forgotten."""
        if (self.book.run, self.book.plan) != (run, plan):
            self.book = Book(boot=self.book.boot, run=run, plan=plan, epoch=epoch)
            self._write()
            self.store.sweep()
            self.store.keep(set())

    def half(self) -> Arrays | None:
        if not self.book.half:
            return None
        try:
            return self.store.open(bytes.fromhex(self.book.half))
        except (FileNotFoundError, Rejected):
            raise DamagedError(
                f"{self.store.folder / self.book.half}.body is gone or damaged; put it back from a copy, or "
                f"remove {self.folder} and let the device begin anew"
            ) from None

    def answer_to(self, question: str) -> Answer | None:
        return next((a for a in self.book.answers if a.question == question), None)

    def remember(self, answer: Answer, half: Arrays, epoch: int = 0) -> None:
        """State and answer become durable together, and whose question it was."""
        self.book.epoch = max(epoch, self.book.epoch)
        self.book.half = self.store.put(half).object.hex() if half else ""
        self.book.broadcast = answer.base
        self.book.answers = [*self.book.answers, answer][-KEPT_ANSWERS:]
        self._write()

    def tidy(self, needed: set[bytes]) -> None:
        """Forget all objects but those in the book and those that are still needed."""
        kept = {self.book.half, self.book.broadcast, *(a.object for a in self.book.answers)}
        self.store.keep({bytes.fromhex(name) for name in kept if name} | needed)

    def _read(self) -> Book:
        try:
            return read_book(self._path.read_bytes())
        except FileNotFoundError:
            return Book()
        except DamagedError as error:
            raise DamagedError(
                f"{self._path} is damaged ({error}); put it back from a copy, or remove {self.folder} and let "
                "the device begin anew"
            ) from None

    def _write(self) -> None:
        target = self._path.with_suffix(".new")
        target.write_text(json.dumps(asdict(self.book)))
        self.disk.sync(target)
        self.disk.rename(target, self._path)
        self.disk.sync(self.folder)


def read_book(text: bytes) -> Book:
    """The contents of the JSON file, or DamagedError."""
    try:
        table = json.loads(text)
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
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{type(error).__name__}: {str(error)[:80]}") from None
    return book
