"""Whether the life of a coordinator before this one ended in good order: by a signal, or with its run.

Nobody is to be alarmed where an operator stops and starts it several times, for a backup or another method, but where
it dies of itself. So each life leaves a mark beside all runs of its federation, as the last one may have been of
another run, and takes it back only where it ends in order.
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
        """It has begun."""
        self._path = life_file(runs, federation)
        ended, before = _read(self._path)
        # When this life began, if the one before did not end in order; else when such a one began last.
        self.unclean_at = before if ended else time.time()
        self._write(ended=False)

    def end(self, in_order: bool) -> None:
        if in_order:
            with contextlib.suppress(OSError):  # on a full disk the next life counts as one too many
                self._write(ended=True)

    def _write(self, ended: bool) -> None:
        write_file(
            self._path,
            json.dumps({"ended": ended, "unclean_at": self.unclean_at}, allow_nan=False).encode(),
            PRIVATE,
        )


def _read(path: Path) -> tuple[bool, float]:
    """Of the life before. Where nobody can tell, it ended in order: it is no reason for an alarm."""
    try:
        found = json.loads(path.read_text())
        return bool(found["ended"]), float(found["unclean_at"])
    except (OSError, ValueError, TypeError, KeyError):
        return True, NEVER
