"""The folder of a coordinator, and the files in it that say whether a coordinator may start here.

A folder that was handed over has a mark. A folder that is being unpacked has a second folder beside it. In both cases
no coordinator starts, so at most one of two machines conducts the runs of an archive.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from protofleet.coordinator.queue.folder import queue_folder
from protofleet.protocol.settings.reader import SettingsError, decode
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.user_error import OUTRANKED, UserError
from protofleet.protocol.wire.printable import printable

HAND_OVER: Final = "hand-over"  # The command that ends a coordinator, so that it can be moved.
ENDS: Final = "the coordinator ends; its runs go on where it is started again"
ONLY_HERE: Final = (
    "run `protofleet hand-over` on the machine of the coordinator, where the archive is written"
)
MOVED: Final = "moved"  # Reason with which such a coordinator says that it is offline.
MARK: Final = "moved.json"
RECEIPT: Final = "unpacked.json"

T = TypeVar("T")


class MovedError(UserError, ValueError):
    """The error for a coordinator that must not start in a folder, because of a move."""

    exit_code = OUTRANKED


@dataclass(frozen=True)
class MovedMark:
    """The mark of a folder that was handed over. Nothing starts in this folder any more."""

    archive: str
    """SHA-256 of the archive's manifest, as hexadecimal digits."""
    path: str
    """Path of the archive."""
    epoch: int
    """Highest epoch in the archive."""
    runs: tuple[str, ...]
    """Names of the runs in the archive."""


@dataclass(frozen=True)
class UnpackedRecord:
    """The record of a folder that was unpacked from an archive."""

    archive: str
    """SHA-256 of the archive's manifest, as hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class CoordinatorPlace:
    """The folder of all runs of a coordinator, and the name of its run, or "" if the coordinator has a queue."""

    runs: Path
    run: str = ""

    @property
    def top(self) -> str:
        """Return the name of the folder in `runs` that belongs to the coordinator itself."""
        return self.run or queue_folder(self.runs).name

    @property
    def folder(self) -> Path:
        """Return the folder that holds the lock, the socket and the mark of the coordinator."""
        return self.runs / self.run / "coordinator" if self.run else queue_folder(self.runs)

    @property
    def incoming(self) -> Path:
        """Return the folder that exists while an archive is being unpacked."""
        return self.runs / f".{self.top.removeprefix('.')}.incoming"

    @property
    def mark(self) -> MovedMark | None:
        return _record(MovedMark, self.folder / MARK)

    @property
    def receipt(self) -> UnpackedRecord | None:
        return _record(UnpackedRecord, self.folder / RECEIPT)

    def __str__(self) -> str:
        return str(self.runs / self.run) if self.run else f"the queue in {self.runs}"


def demand_here(place: CoordinatorPlace) -> None:
    """Raise MovedError if a coordinator must not start in this place, because of a move."""
    queue = CoordinatorPlace(place.runs)
    mark, moved = place.mark, place
    if mark is None and place.run and (of_queue := queue.mark) and place.run in of_queue.runs:
        mark, moved = of_queue, queue
    if mark is not None:
        raise MovedError(
            f"{moved} was handed over to {printable(mark.path)} and never starts here again; start it on the other "
            "machine, or take it back here with `protofleet coordinator FILE --from` and this archive or a later one"
        )
    for one in {place, queue}:
        if one.incoming.exists():
            raise MovedError(
                f"{one} is only partly unpacked (see {one.incoming}); start the coordinator again with --from and "
                "the same archive"
            )


def encoded(record: MovedMark | UnpackedRecord) -> bytes:
    return json.dumps(asdict(record), allow_nan=False).encode()


def _record(kind: type[T], path: Path) -> T | None:
    try:
        table: Any = json.loads(path.read_bytes())
        return decode(kind, table)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (SettingsError, ValueError, RecursionError) as error:
        raise DamagedError(
            f"{path} is damaged ({str(error)[:80]}). It belongs to a move: if the coordinator has been started on "
            "another machine, go on there; otherwise remove this file"
        ) from None
