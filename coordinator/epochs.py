"""The highest epoch of a federation's coordinators on this machine: the next is above it, whichever run it conducts.

Devices and brokers remember the highest epoch that they have heard. A coordinator whose clock was once ahead, by less
than devices believe, would else be the last one that anybody listens to until the clock has come that far.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import secrets
from pathlib import Path
from typing import Final

from protocol.clocks import ahead, days
from protocol.keyfiles import PRIVATE, write_file

log = logging.getLogger("protofleet.coordinator")

HIGHEST: Final = 1 << 62


def file_of(runs: Path, federation: str) -> Path:
    return runs / f".{federation}.epoch"


def after(known: int, clock: int) -> int:
    """The least epoch after a known one. Devices take none for true that is far ahead of their clocks."""
    if far := ahead(known, clock):
        log.warning(
            "epoch %d is known here, %s ahead of this clock: a clock was ahead once, and epochs are counted from "
            "this one again. If it is this one that is wrong, set it and start again",
            known, days(far),
        )  # fmt: skip
        return 0
    return known + 1


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
    return max(clock, after(known, clock))


def remember(runs: Path, federation: str, epoch: int) -> None:
    write_file(file_of(runs, federation), f"{epoch}\n".encode(), PRIVATE)


def where(folder: Path) -> str:
    """Of this very start, for whoever finds another coordinator there. Brokers read it too, so no path is in it.

    Containers share host names, process ids and paths, so something of it is drawn.
    """
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:8]
    return f"{platform.node()[:64]} pid {os.getpid()} folder {name} start {secrets.token_hex(4)}"
