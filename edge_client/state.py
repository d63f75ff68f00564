"""What survives a reboot: the half's state and the last answers, always those that belong together.

One JSON file names the objects; writing it anew and renaming it is the moment at which a training counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from protocol.messages import Arrays
from protocol.store import ObjectStore, sync

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
    plan: str = ""
    half: str = ""  # object with the half's state
    broadcast: str = ""  # last one that is here in full
    answers: list[Answer] = field(default_factory=list)


class Memory:
    def __init__(self, folder: Path, durable: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._path, self._durable = folder, folder / "device.json", durable
        self.store = ObjectStore(folder / "objects", durable)
        self.book = self._read()

    def boot(self, clock: int) -> int:
        """The number of this start, above every earlier one even if the clock went back."""
        self.book.boot = max(clock, self.book.boot + 1)
        self._write()
        return self.book.boot

    def begin(self, run: str, plan: str) -> None:
        """Take on a run; what was learned in another one is forgotten."""
        if (self.book.run, self.book.plan) != (run, plan):
            self.book = Book(boot=self.book.boot, run=run, plan=plan)
            self._write()
            self.store.sweep()
            self.store.keep(set())

    def half(self) -> Arrays | None:
        return self.store.open(bytes.fromhex(self.book.half)) if self.book.half else None

    def answer_to(self, question: str) -> Answer | None:
        return next((a for a in self.book.answers if a.question == question), None)

    def remember(self, answer: Answer, half: Arrays) -> None:
        """State and answer become durable together."""
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
            table = json.loads(self._path.read_text())
            answers = [Answer(**row) for row in table.pop("answers")]
            return Book(**table, answers=answers)
        except FileNotFoundError:
            return Book()

    def _write(self) -> None:
        target = self._path.with_suffix(".new")
        target.write_text(json.dumps(asdict(self.book)))
        if self._durable:
            sync(target)
        target.replace(self._path)
        if self._durable:
            sync(self._path.parent)
