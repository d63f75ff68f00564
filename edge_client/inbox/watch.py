"""The regular checks of a device's inbox, and the hellos that report new samples between two rounds.

The weight of a device in a round depends on the number of samples in the device's last hello before the round.
"""

from __future__ import annotations

from collections.abc import Callable

from protofleet.edge_client.context import DeviceContext
from protofleet.edge_client.data.inbox.listing import Listing
from protofleet.edge_client.evaluate import Splits
from protofleet.edge_client.inbox.growing import GrowingData
from protofleet.protocol.wire.names import EVALUATE


class InboxWatch:
    """The watcher of the inbox. It also observes the device's work to find the last phase of a round.

    A task does not say whether it is the last task of its round. So the watcher records the last phase of each round.
    The watcher looks into the inbox at any time, but it reports new samples only between two rounds. If there is no
    pause between rounds, it reports new samples when the last receipt of a round arrives.
    """

    def __init__(
        self, context: DeviceContext, data: GrowingData, is_idle: Callable[[], bool], say_hello: Callable[[], None],
        note: Callable[[Splits], None],
    ) -> None:  # fmt: skip
        """Watch the inbox; `note` is called when the data have changed."""
        self._context, self._data, self._is_idle = context, data, is_idle
        self._say_hello, self._note = say_hello, note
        self.wake_at = 0.0
        self._found, self._looking = data.announced, False
        self._last_phase = ""  # the last phase of a round; empty before the first round has ended
        context.observers.append(self)

    def happened(self, what: str, **figures: float) -> None:
        answers = self._context.state.saved.answers
        if what == "started" and answers and answers[-1].round < figures["round"]:
            self._last_phase = answers[-1].phase

    def wake(self) -> None:
        self.wake_at = self._context.now + self._data.look_seconds
        if not self._looking:
            self._looking = True
            self._context.worker.submit(self._data.look, self._looked)

    def receipt_came(self) -> None:
        """Handle the receipt for an update, which may be the device's last update of the round."""
        self._announce()

    def _looked(self, found: Listing | Exception) -> None:
        self._looking = False
        if isinstance(found, Exception):
            raise found
        self._found = found
        self._announce()

    def _announce(self) -> None:
        if self._found != self._data.announced and self._is_between_rounds():
            self._data.announce(self._found)
            self._note(self._data.for_hellos)
            self._say_hello()

    def _is_between_rounds(self) -> bool:
        answers = self._context.state.saved.answers
        ended = not answers or answers[-1].phase in (self._last_phase, EVALUATE)
        return ended and self._is_idle()
