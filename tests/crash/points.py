"""Every point at which a party can crash, and every state in which a crash may leave its disk.

The enumeration runs each death and reports the differences.
"""

from __future__ import annotations

import logging
import random
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from tests.crash.world import CODED, DEVICES, PARTIES, Outcome, crashing, outcome

# One phase; two phases; answers of varying shapes; rounded answers, whose residual the device keeps.
METHODS: Final = ("fedavg", "fedpall", "fedplcc", f"fedavg{CODED}")
FATES: Final = {
    "killed": "the process is gone, what it wrote is there",
    "killed twice": "and once more while it recovers",
    "unplugged": "the power fails: nothing is there that was not synced",
    "torn": "the power fails: what was not synced is there, or not, or cut short, zeroed, or with a bit flipped",
}
SECOND: Final = 7  # Steps from the first death to the second one, in the middle of the recovery.


@dataclass(frozen=True)
class Death:
    method: str
    party: str
    point: int
    fate: str

    def differences(self) -> list[str]:
        """Return the differences from the unbroken run; an empty list means that the death changed no bit."""
        whole, _ = unbroken(self.method)
        points = {self.point, self.point + SECOND} if self.fate == "killed twice" else {self.point}
        with tempfile.TemporaryDirectory() as folder:
            try:
                run = crashing(Path(folder), self.method, {self.party: frozenset(points)}, **self.settings())
                found = outcome(run.live())
            except Exception as error:  # noqa: BLE001 - it is what this death has led to
                return [f"{type(error).__name__}: {error}"]
        died = run.points[self.party].deaths
        wrong = not 1 <= died <= len(points)  # The run may end before the second death.
        return [*([f"it died {died} times"] if wrong else []), *whole.differences(found)]

    @property
    def step(self) -> str:
        """Return the step before which the party dies."""
        return unbroken(self.method)[1][self.party][self.point - 1]

    def settings(self) -> Mapping[str, Any]:
        if self.fate in ("killed", "killed twice"):
            return {}
        dice = random.Random(f"{self.method}/{self.party}/{self.point}") if self.fate == "torn" else None
        return {"power": True, "dice": dice}


@lru_cache
def unbroken(method: str) -> tuple[Outcome, Mapping[str, list[str]]]:
    """Return the outcome of a run without deaths, and the points that each party passes in it."""
    with tempfile.TemporaryDirectory() as folder:
        run = crashing(Path(folder), method).live()
        return outcome(run), {name: run.points[name].passed for name in PARTIES}


def deaths(method: str, party: str, fates: tuple[str, ...] = tuple(FATES)) -> Iterator[Death]:
    for fate in fates:
        for point in range(1, len(unbroken(method)[1][party]) + 1):
            yield Death(method, party, point, fate)


def whole_enumeration(methods: tuple[str, ...], fates: tuple[str, ...]) -> Iterator[Death]:
    """Yield every death of the coordinator and of one device, because the devices are alike."""
    for method in methods:
        for party in ("coordinator", DEVICES[1]):
            yield from deaths(method, party, fates)


def ready() -> None:
    """Prepare a process of the enumeration: one thread, and no log messages about the planned deaths."""
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)


class AnyDeath(Protocol):
    """A death of the enumeration."""

    @property
    def method(self) -> str: ...
    @property
    def party(self) -> str: ...
    @property
    def fate(self) -> str: ...
    @property
    def step(self) -> str: ...
    def differences(self) -> list[str]: ...


def judged(death: AnyDeath) -> tuple[AnyDeath, list[str]]:
    return death, death.differences()
