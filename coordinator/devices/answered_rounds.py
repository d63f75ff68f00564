"""How far devices are in each run, as far as the hellos of this process say.

A coordinator whose folder came back from a backup asks this before a run goes on: a device sends no update for a
round before its last round.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from protofleet.protocol.link.base import Received
from protofleet.protocol.wire import forms
from protofleet.protocol.wire.messages import Hello


class AnsweredRounds:
    """The last round that each present device has answered, by the name of the run on the wire.

    Only devices that list `runs` say how far they are.
    """

    def __init__(self) -> None:
        self._rounds: dict[str, dict[str, int]] = {}
        self._boots: dict[str, int] = {}

    def hello_received(self, received: Received, hello: Hello) -> None:
        if forms.RUNS in hello.can:
            if self._boots.get(hello.device) != received.boot:
                self._rounds[hello.device] = {}  # The device may have lost its disk.
            self._boots[hello.device] = received.boot
            known = self._rounds.setdefault(hello.device, {})
            if received.run:
                known[received.run] = hello.answered

    def left(self, device: str) -> None:
        self._rounds.pop(device, None)

    def has_any(self, device: str, names: Collection[str]) -> bool:
        """Return whether the device has one of these runs."""
        return any(name in self._rounds.get(device, {}) for name in names)

    def of(self, run: str) -> dict[str, int]:
        """Return the last answered round of each present device in a run; 0 if the device has not answered."""
        return {device: rounds.get(run, 0) for device, rounds in self._rounds.items()}


def behind_words(run: str, here: int, rounds: Mapping[str, int], quorum: int) -> str:
    """Return why a run that stands at round `here` cannot go on with its present devices; "" if it can.

    `rounds` has the last round that each present device has answered.
    """
    ahead = {device: number for device, number in rounds.items() if number > here}
    way_out = f"`protofleet resume {run} --new-generation` goes on without what was learned since the backup"
    if len(ahead) >= quorum:
        first = ", ".join(sorted(ahead)[:3]) + (" ..." if len(ahead) > 3 else "")
        return (
            f"{len(ahead)} of {len(rounds)} present devices ({first}) have answered up to round "
            f"{max(ahead.values())}, and this folder is at round {here}; {way_out}"
        )
    if (able := len(rounds) - len(ahead)) < quorum:
        return (
            f"{able} present devices say that they have answered no round after round {here}, and the quorum is "
            f"{quorum}; wait for more devices. Old devices, and devices of one run, do not say it: for them, "
            f"{way_out}"
        )
    return ""
