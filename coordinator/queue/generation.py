"""The name of a run on the wire, which changes each time that the run goes on behind its devices.

A question to a device contains the name on the wire. So under the next name, no question of the run is a question
that a device has answered before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST_LETTERS: Final = (
    60  # Largest number of letters of the own name of a run; the name on the wire has at most 64.
)
MOST_GENERATION: Final = 999  # The last generation whose number fits behind a name of 60 letters.


def wire_name(run: str, generation: int) -> str:
    return run if generation == 1 else f"{run}.{generation}"


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation of a run.

    Devices may begin with the half that they have from a generation from `kept_from` on.
    """

    run: str
    number: int = 1
    kept_from: int = 1

    @property
    def wire_name(self) -> str:
        return wire_name(self.run, self.number)

    @property
    def earlier(self) -> tuple[str, ...]:
        """Return the names on the wire of all earlier generations, the oldest first."""
        return tuple(wire_name(self.run, number) for number in range(1, self.number))

    def may_keep(self, name: str) -> bool:
        """Return whether a device may begin with its half of this earlier name on the wire."""
        return name in self.earlier[self.kept_from - 1 :]
