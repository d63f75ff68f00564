"""The record that shows whether the previous coordinator ended in order: by a signal, or at the end of its run.

There must be no alarm if an operator stops and starts the coordinator several times, for a backup or to use
another method. There must be an alarm if the coordinator dies by itself. So each coordinator writes a file
when it starts, and changes the file when it ends in order. The file is in the folder of all runs of the
federation, because the previous coordinator may have had another run.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Final

from protofleet.protocol.security.keyfiles import PRIVATE, write_file

NEVER: Final = 0.0


def life_file(runs: Path, federation: str) -> Path:
    return runs / f".{federation}.life"


class Life:
    def __init__(self, runs: Path, federation: str) -> None:
        """Record that a coordinator has started."""
        self._path = life_file(runs, federation)
        ended, before = _read(self._path)
        # A start is unclean if the previous coordinator had not ended in order. This is the Unix time of the newest
        # unclean start, which is the start of this process or of an earlier process.
        self.unclean_at = before if ended else time.time()
        self._write(ended=False)

    def end(self, in_order: bool) -> None:
        if in_order:
            with contextlib.suppress(OSError):  # On a full disk, this end is not recorded.
                self._write(ended=True)

    def _write(self, ended: bool) -> None:
        write_file(
            self._path,
            json.dumps({"ended": ended, "unclean_at": self.unclean_at}, allow_nan=False).encode(),
            PRIVATE,
        )


def _read(path: Path) -> tuple[bool, float]:
    """Read the record of the previous coordinator: whether it ended in order, and its `unclean_at`.

    If the file cannot be read, assume an end in order, because an unreadable file is no reason for an alarm.
    """
    try:
        found = json.loads(path.read_text())
        return bool(found["ended"]), float(found["unclean_at"])
    except (OSError, ValueError, TypeError, KeyError):
        return True, NEVER
