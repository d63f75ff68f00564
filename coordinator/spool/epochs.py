"""The epochs of the coordinators of a federation on this machine.

The next epoch must be above all earlier epochs of any run, because devices and brokers remember the highest
epoch that they have received. Example: the clock of a coordinator was once an hour ahead. If the next epoch
were taken from the correct clock, devices would ignore every later coordinator for an hour.

An epoch that is years ahead must not count, because devices ignore it. So several epochs are stored, and not
only the highest.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from protofleet.protocol.link.clocks import ahead, days
from protofleet.protocol.security.keyfiles import PRIVATE, write_file

log = logging.getLogger("protofleet.coordinator")

HIGHEST: Final = 1 << 62
DAY: Final = 86_400
# Largest number of epochs that are stored. If there are more, only one epoch of each day of the last year is kept.
MOST_EPOCHS: Final = 1000


def epoch_file(runs: Path, federation: str) -> Path:
    return runs / f".{federation}.epoch"


def next_epoch(known: Iterable[int], clock: int) -> int:
    """Return the lowest epoch that is above the known epochs.

    Known epochs that are far ahead of the clock do not count, because devices ignore an epoch that is far ahead
    of their own clocks.
    """
    known = sorted(known)
    if known and (far := ahead(known[-1], clock)):
        log.warning(
            "the stored epoch %d is %s ahead of this clock. An earlier clock seems to have been wrong, so the new "
            "epoch is taken from this clock. If this clock is wrong, correct it and start the coordinator again",
            known[-1], days(far),
        )  # fmt: skip
    return max((epoch + 1 for epoch in known if not ahead(epoch, clock)), default=0)


def epochs_to_keep(known: Iterable[int], epoch: int) -> list[int]:
    """Return the epochs to store, from the known epochs and the new epoch, in descending order."""
    epochs = sorted({*known, epoch})
    if len(epochs) > MOST_EPOCHS:
        epochs = sorted({each // DAY: each for each in epochs if each > epoch - 366 * DAY}.values())
    return epochs[::-1]


def least_epoch(runs: Path, federation: str, clock: int) -> int:
    """Return the lowest epoch that the next coordinator may have.

    The result is the current time, or the highest valid epoch plus 1, whichever is later.
    """
    path = epoch_file(runs, federation)
    try:
        return max(clock, next_epoch(saved_epochs(path), clock))
    except (ValueError, OSError) as error:
        log.warning("%s cannot be read (%.80s), so the epoch is taken from the clock alone", path, error)
        return clock


def saved_epochs(path: Path) -> list[int]:
    """Return the epochs in a file; raise ValueError or OSError if they cannot be read."""
    try:
        known = [int(word) for word in path.read_text().split()]
    except FileNotFoundError:
        return []
    if wrong := [epoch for epoch in known if not 0 <= epoch < HIGHEST]:
        raise ValueError(f"it says {wrong[0]}")
    return known


def save_epoch(runs: Path, federation: str, epoch: int) -> None:
    save_epochs(runs, federation, [epoch])


def save_epochs(runs: Path, federation: str, epochs: Sequence[int]) -> None:
    """Add one or more epochs to the stored epochs."""
    path = epoch_file(runs, federation)
    try:
        known = saved_epochs(path)
    except (ValueError, OSError):
        known = []  # The function least_epoch has already logged why the file cannot be read.
    kept = epochs_to_keep([*known, *epochs], max(epochs))
    write_file(path, "".join(f"{each}\n" for each in kept).encode(), PRIVATE)


def process_identity(folder: Path) -> str:
    """Return a name for this process; it is shown if another coordinator of the federation takes over.

    Brokers can read the name, so it contains no path. Containers may have equal host names, process ids and
    paths, so a part of the name is random.
    """
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:8]
    return f"{platform.node()[:64]} pid {os.getpid()} folder {name} start {secrets.token_hex(4)}"
