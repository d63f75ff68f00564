"""The highest epoch of a federation's coordinators on this machine: the next is above it, whichever run it conducts.

Devices and brokers remember the highest epoch that they have heard. A coordinator whose clock was once ahead would
else be the last one that anybody listens to until the clock has come that far.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from protocol.keyfiles import PRIVATE, write_file

log = logging.getLogger("protofleet.coordinator")

HIGHEST: Final = 1 << 62


def file_of(runs: Path, federation: str) -> Path:
    return runs / f".{federation}.epoch"


def least_epoch(runs: Path, federation: str, clock: int) -> int:
    """What the next coordinator's epoch is at the least: the time, or one above the highest known."""
    path = file_of(runs, federation)
    try:
        known = int(path.read_text())
        if not 0 <= known < HIGHEST:
            raise ValueError(f"it says {known}")
    except FileNotFoundError:
        return clock
    except (ValueError, OSError) as error:
        log.warning("%s is not read (%.80s); the clock alone decides on the epoch", path, error)
        return clock
    return max(clock, known + 1)


def remember(runs: Path, federation: str, epoch: int) -> None:
    write_file(file_of(runs, federation), f"{epoch}\n".encode(), PRIVATE)
