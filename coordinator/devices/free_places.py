"""The devices that could take part in a further run, as far as their newest hellos say.

A device of several runs says in each hello how many more runs it could take on. When a run begins, the coordinator
offers the run to these devices. Otherwise the run would wait for their next hellos, which are spread over seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from protofleet.protocol.link.base import Received
from protofleet.protocol.wire import forms
from protofleet.protocol.wire.messages import Hello

# Largest number of devices that get the offer of a run at once. All other devices send a hello within seconds.
MOST_OFFERS: Final = 100


class FreePlaces:
    """The newest hello of each device that has a free place."""

    def __init__(self) -> None:
        self._hellos: dict[str, tuple[Received, Hello]] = {}

    def hello_received(self, received: Received, hello: Hello) -> None:
        self.left(hello.device)
        if hello.capacity and forms.RUNS in hello.can:
            self._hellos[hello.device] = (received, hello)

    def left(self, device: str) -> None:
        """Forget a device that has left a run or the broker; its next hello says whether it has a free place."""
        self._hellos.pop(device, None)

    def take(self, fits: Callable[[Hello], bool]) -> list[tuple[Received, Hello]]:
        """Return the hellos of devices that fit, as hellos of no run, and forget these devices.

        The next hello of each device says whether it still has a free place.
        """
        found = [hello.device for _, hello in self._hellos.values() if fits(hello)]
        hellos = [self._hellos.pop(device) for device in found[:MOST_OFFERS]]
        return [(replace(received, run=""), hello) for received, hello in hellos]
