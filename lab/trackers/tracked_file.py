"""Keep the progress of each tracker in RUN/tracked.json, so that a later command can continue.

Two commands may send one run to different trackers at the same time. A command that changes the file holds
the lock of the file's folder. Only one command at a time may send a run to the same tracker, because
otherwise the tracker would have each number twice.
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
class TrackedProgress:
    known_as: str = ""  # The name by which the tracker knows the run; "" before the first round is sent.
    next_round: int = 1
    ended: bool = False


class TakenError(Exception):
    """The error for a run that another process already sends to this tracker."""


class TrackedFile:
    """The file with the progress of each tracker.

    If the file is damaged, it counts as empty, and all rounds are sent to the trackers again.
    """

    def __init__(self, run: Path) -> None:
        self._run, self._path = run, run / NAME

    def of(self, destination: str) -> TrackedProgress:
        return self._read().get(destination, TrackedProgress())

    def note(self, destination: str, progress: TrackedProgress) -> None:
        with held(self._run):
            found = {**self._read(), destination: progress}
            table = {name: asdict(one) for name, one in found.items()}
            Disk().replace(self._path, (json.dumps(table, indent=1) + "\n").encode(), durable=False)

    @contextlib.contextmanager
    def sole_use(self, destination: str) -> Iterator[None]:
        """Hold the lock of a destination. If another process has the lock, TakenError is raised.

        When the process ends, even after a crash, the kernel releases the lock.
        """
        digest = hashlib.sha256(destination.encode(errors="surrogateescape")).hexdigest()[:12]
        with (self._run / f".tracked-{digest}.lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TakenError from None
            yield

    def _read(self) -> dict[str, TrackedProgress]:
        try:
            table: Any = json.loads(self._path.read_bytes())
            return {name: decode(TrackedProgress, one) for name, one in table.items()}
        except (OSError, ValueError, AttributeError, SettingsError):
            return {}
