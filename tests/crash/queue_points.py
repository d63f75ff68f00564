"""Every point at which the coordinator of a queue, or a device of its runs, can die."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from protofleet.protocol.wire.names import COORDINATOR
from tests.crash.points import SECOND
from tests.crash.queue_world import DEVICES, PARTIES, queue_world

FATES: Final = {
    "killed": "the process is gone, what it wrote is there",
    "killed twice": "and once more while it recovers",
    "unplugged": "the power fails: nothing is there that was not synced",
    "with a device": "a device is killed too, about as far in its own steps",
}


@dataclass(frozen=True)
class QueueDeath:
    party: str
    point: int
    fate: str
    method: str = "queue"

    @property
    def step(self) -> str:
        """Return the step before which the party dies."""
        return unbroken_queue()[1][self.party][self.point - 1]

    @property
    def deadly(self) -> Mapping[str, frozenset[int]]:
        points = {self.point, self.point + SECOND} if self.fate == "killed twice" else {self.point}
        found = {self.party: frozenset(points)}
        if self.fate == "with a device":
            passed = unbroken_queue()[1]
            share = self.point / len(passed[self.party])
            found[DEVICES[1]] = frozenset({max(1, int(share * len(passed[DEVICES[1]])))})
        return found

    def differences(self) -> list[str]:
        """Return the differences from the unbroken world; an empty list means that the death changed nothing."""
        whole, _ = unbroken_queue()
        with tempfile.TemporaryDirectory() as folder:
            try:
                world = queue_world(Path(folder), deadly=self.deadly, power=self.fate == "unplugged").live()
                found = world.outcome()
            except Exception as error:  # noqa: BLE001 - it is what this death has led to
                return [f"{type(error).__name__}: {error}"]
        died = world.points[self.party].deaths
        if self.fate == "with a device":
            whole, found = trained(whole), trained(found)
        return [
            *([] if died else ["it did not die"]),
            *(
                f"{what}: {whole.get(what)} and {found.get(what)}"
                for what in {**whole, **found}
                if whole.get(what) != found.get(what)
            ),
        ]


def trained(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return an outcome without the last evaluations; a restarted coordinator asks the devices that are there."""
    return {
        what: [line for line in value if line["kind"] == "training"]
        if what.startswith("rounds of")
        else value
        for what, value in outcome.items()
    }


@lru_cache
def unbroken_queue() -> tuple[dict[str, Any], Mapping[str, list[str]]]:
    """Return the outcome of a world without deaths, and the points that each party passes in it."""
    with tempfile.TemporaryDirectory() as folder:
        world = queue_world(Path(folder)).live()
        return world.outcome(), {name: world.points[name].passed for name in PARTIES}


def every_death() -> Iterator[QueueDeath]:
    for fate in FATES:
        for party in PARTIES if fate != "with a device" else (COORDINATOR,):
            yield from deaths_of(party, fate)


def deaths_of(party: str, fate: str) -> Iterator[QueueDeath]:
    for point in range(1, len(unbroken_queue()[1][party]) + 1):
        yield QueueDeath(party, point, fate)
