"""The epochs of the coordinators of a federation on this machine.

The next epoch is above all earlier epochs of any run, because devices and brokers remember the highest
epoch that they have seen. Suppose that a coordinator's clock was once ahead, by less than devices tolerate.
If the next epoch were lower, devices would ignore every later coordinator until real time has passed the
epoch of that clock.

Devices ignore an epoch that is years ahead, but not an epoch that is an hour ahead. So several epochs are
stored, not only the highest.
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
MOST_EPOCHS: Final = 1000  # if there are more, only one epoch of each day is kept, for a year


def epoch_file(runs: Path, federation: str) -> Path:
    return runs / f".{federation}.epoch"


def next_epoch(known: Iterable[int], clock: int) -> int:
    """Return the lowest epoch above the known epochs; those that are far ahead of the clock do not count.

    Devices ignore an epoch that is far ahead of their clocks.
    """
    known = sorted(known)
    if known and (far := ahead(known[-1], clock)):
        log.warning(
            "epoch %d is known here, %s ahead of this clock. An earlier clock seems to have been wrong, and "
            "epochs are counted from this clock again. If this clock is wrong, correct it and start the "
            "coordinator again",
            known[-1], days(far),
        )  # fmt: skip
    return max((epoch + 1 for epoch in known if not ahead(epoch, clock)), default=0)


def epochs_to_keep(known: Iterable[int], epoch: int) -> list[int]:
    """Return the known epochs and the new one, the highest first."""
    epochs = sorted({*known, epoch})
    if len(epochs) > MOST_EPOCHS:
        epochs = sorted({each // DAY: each for each in epochs if each > epoch - 366 * DAY}.values())
    return epochs[::-1]


def least_epoch(runs: Path, federation: str, clock: int) -> int:
    """Return the lowest epoch for the next coordinator: the time, or the highest valid epoch plus 1."""
    path = epoch_file(runs, federation)
    try:
        return max(clock, next_epoch(_saved_epochs(path), clock))
    except (ValueError, OSError) as error:
        log.warning("%s is not read (%.80s); the clock alone decides on the epoch", path, error)
        return clock


def _saved_epochs(path: Path) -> list[int]:
    try:
        known = [int(word) for word in path.read_text().split()]
    except FileNotFoundError:
        return []
    if wrong := [epoch for epoch in known if not 0 <= epoch < HIGHEST]:
        raise ValueError(f"it says {wrong[0]}")
    return known


def save_epoch(runs: Path, federation: str, epoch: int) -> None:
    path = epoch_file(runs, federation)
    try:
        known = _saved_epochs(path)
    except (ValueError, OSError):
        known = []  # least_epoch has logged the reason
    write_file(path, "".join(f"{each}\n" for each in epochs_to_keep(known, epoch)).encode(), PRIVATE)


def process_identity(folder: Path) -> str:
    """Return a name of this process, which another coordinator of the federation can show.

    Brokers can read the name, so it contains no path. Containers may have equal host names, process ids and
    paths, so a part of the name is random.
    """
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:8]
    return f"{platform.node()[:64]} pid {os.getpid()} folder {name} start {secrets.token_hex(4)}"
