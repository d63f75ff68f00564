"""Whether a device that leaves has come back since: a broker may keep that word, also from an earlier run.

A device is quiet while it believes that it takes part, so nobody would hear of it for ten minutes.
"""

from __future__ import annotations

from protofleet.protocol.link.base import Received


class Leaves:
    def __init__(self) -> None:
        self._hellos: dict[
            str, tuple[int, int]
        ] = {}  # of each device: its boot, and the highest number of one

    def greeted(self, hello: Received, newest: int) -> None:
        """`newest`: of all that was heard of it. With other keys numbers begin anew, so one above that is gone."""
        boot, number = self._hellos.get(hello.sender, (0, 0))
        counts = boot == hello.boot and number <= newest
        self._hellos[hello.sender] = hello.boot, max(hello.sequence, number if counts else 0)

    def is_overtaken(self, leave: Received, newest: int) -> bool:
        """A will has no number of its own."""
        boot, number = self._hellos.get(leave.sender, (0, 0))
        return boot == leave.boot and 0 < leave.sequence < number <= newest
