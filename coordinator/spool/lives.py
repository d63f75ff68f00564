"""The record whether the coordinator before this one ended in good order: by a signal, or with its run.

There must be no alarm if an operator stops and starts the coordinator several times, for a backup or
another method. There must be an alarm if it dies by itself. So each life of a coordinator leaves a mark
next to all runs of its federation, because the last life may have belonged to another run. It removes the
mark only if it ends in order.
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
        """Note that a life has begun."""
        self._path = life_file(runs, federation)
        ended, before = _read(self._path)
        # When this life began, if the life before it did not end in order; else when the last such life
        # began.
        self.unclean_at = before if ended else time.time()
        self._write(ended=False)

    def end(self, in_order: bool) -> None:
        if in_order:
            with contextlib.suppress(OSError):  # on a full disk this life counts as not ended in order
                self._write(ended=True)

    def _write(self, ended: bool) -> None:
        write_file(
            self._path,
            json.dumps({"ended": ended, "unclean_at": self.unclean_at}, allow_nan=False).encode(),
            PRIVATE,
        )


def _read(path: Path) -> tuple[bool, float]:
    """Read the record of the life before; if it cannot be read, that life ended in order.

    An unreadable file is no reason for an alarm.
    """
    try:
        found = json.loads(path.read_text())
        return bool(found["ended"]), float(found["unclean_at"])
    except (OSError, ValueError, TypeError, KeyError):
        return True, NEVER
