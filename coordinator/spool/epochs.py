"""The epochs of a federation's coordinators on this machine: the next is above them, whichever run it conducts.

Devices and brokers remember the highest epoch that they have heard. A coordinator whose clock was once ahead, by less
than devices believe, would else be the last one that anybody listens to until the clock has come that far. One that
was years ahead is believed by nobody, but an earlier one that was an hour ahead still is: so several are kept.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from protofleet.protocol.link.clocks import ahead, days
from protofleet.protocol.security.keyfiles import PRIVATE, write_file

log = logging.getLogger("protofleet.coordinator")

HIGHEST: Final = 1 << 62
DAY: Final = 86_400
MOST: Final = 1000  # beyond which one of each day is kept, for a year


def file_of(runs: Path, federation: str) -> Path:
    return runs / f".{federation}.epoch"


def after(known: Iterable[int], clock: int) -> int:
    """The least epoch after the known ones. Devices take none for true that is far ahead of their clocks."""
    known = sorted(known)
    if known and (far := ahead(known[-1], clock)):
        log.warning(
            "epoch %d is known here, %s ahead of this clock: a clock was ahead once, and epochs are counted from "
            "this one again. If it is this one that is wrong, set it and start again",
            known[-1], days(far),
        )  # fmt: skip
    return max((epoch + 1 for epoch in known if not ahead(epoch, clock)), default=0)


def kept(known: Iterable[int], epoch: int) -> list[int]:
    """Which of them are to be known from now on, the highest first."""
    each = sorted({*known, epoch})
    if len(each) > MOST:
        each = sorted({one // DAY: one for one in each if one > epoch - 366 * DAY}.values())
    return each[::-1]


def least_epoch(runs: Path, federation: str, clock: int) -> int:
    """What the next coordinator's epoch is at the least: the time, or one above the highest believed."""
    path = file_of(runs, federation)
    try:
        return max(clock, after(_read(path), clock))
    except (ValueError, OSError) as error:
        log.warning("%s is not read (%.80s); the clock alone decides on the epoch", path, error)
        return clock


def _read(path: Path) -> list[int]:
    try:
        known = [int(word) for word in path.read_text().split()]
    except FileNotFoundError:
        return []
    if wrong := [epoch for epoch in known if not 0 <= epoch < HIGHEST]:
        raise ValueError(f"it says {wrong[0]}")
    return known


def remember(runs: Path, federation: str, epoch: int) -> None:
    path = file_of(runs, federation)
    try:
        known = _read(path)
    except (ValueError, OSError):
        known = []  # what the start has said already
    write_file(path, "".join(f"{each}\n" for each in kept(known, epoch)).encode(), PRIVATE)


def where(folder: Path) -> str:
    """Of this very start, for whoever finds another coordinator there. Brokers read it too, so no path is in it.

    Containers share host names, process ids and paths, so something of it is drawn.
    """
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:8]
    return f"{platform.node()[:64]} pid {os.getpid()} folder {name} start {secrets.token_hex(4)}"
