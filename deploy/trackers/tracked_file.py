"""RUN/tracked.json: how far each tracker has got, so that whoever goes on begins behind it.

Two commands may follow one run into different trackers: whoever changes the file holds its folder. Into one tracker
only one may: each number would stand there twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from protofleet.protocol.settings.reader import SettingsError, decode
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.folder_lock import held

NAME: Final = "tracked.json"


@dataclass(frozen=True, slots=True)
class Progress:
    known_as: str = ""  # by what the tracker finds the run
    next_round: int = 1
    ended: bool = False


class TakenError(Exception):
    """Another process brings the run there."""


class TrackedFile:
    """A broken one is nothing: the trackers are then written anew."""

    def __init__(self, run: Path) -> None:
        self._run, self._path = run, run / NAME

    def of(self, destination: str) -> Progress:
        return self._read().get(destination, Progress())

    def note(self, destination: str, progress: Progress) -> None:
        with held(self._run):
            found = {**self._read(), destination: progress}
            table = {name: asdict(one) for name, one in found.items()}
            Disk().replace(self._path, (json.dumps(table, indent=1) + "\n").encode(), durable=False)

    @contextlib.contextmanager
    def sole_use(self, destination: str) -> Iterator[None]:
        """TakenError where somebody else has it. The kernel releases it when a process ends, however it ends."""
        digest = hashlib.sha256(destination.encode(errors="surrogateescape")).hexdigest()[:12]
        with (self._run / f".tracked-{digest}.lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TakenError from None
            yield

    def _read(self) -> dict[str, Progress]:
        try:
            table: Any = json.loads(self._path.read_bytes())
            return {name: decode(Progress, one) for name, one in table.items()}
        except (OSError, ValueError, AttributeError, SettingsError):
            return {}
