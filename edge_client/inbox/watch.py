"""When a device looks into its inbox, and when it says what it found: between two rounds alone.

A coordinator weighs a device by the samples that its hello stated when the round began.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protofleet.edge_client.context import DeviceContext
from protofleet.edge_client.data.inbox import Listing
from protofleet.edge_client.evaluate import Splits
from protofleet.edge_client.inbox.growing import GrowingData
from protofleet.edge_client.trainer.job import EVALUATE

LOOK_SECONDS: Final = 10.0  # between two looks
SOON_SECONDS: Final = 1.0  # until the next, where it was no time for one


class InboxWatch:
    """An observer of the device's work, which shows what ends a round: no question says that it is the last."""

    def __init__(
        self, context: DeviceContext, data: GrowingData, is_idle: Callable[[], bool], say_hello: Callable[[], None],
        note: Callable[[Splits], None],
    ) -> None:  # fmt: skip
        """`note` is called when the data are others than they were."""
        self._context, self._data, self._is_idle = context, data, is_idle
        self._say_hello, self._note = say_hello, note
        self.wake_at = 0.0
        self._looking, self._last_phase = False, ""  # the phase that ends a round, once one has been seen to
        context.observers.append(self)

    def happened(self, what: str, **figures: float) -> None:
        answers = self._context.state.saved.answers
        if what == "started" and answers and answers[-1].round < figures["round"]:
            self._last_phase = answers[-1].phase
        if what in ("answered", "delivered"):
            self.wake_at = min(self.wake_at, self._context.now + SOON_SECONDS)

    def wake(self) -> None:
        now = self._context.now
        if self._looking or not self._is_between_rounds():
            self.wake_at = now + SOON_SECONDS
            return
        self._looking, self.wake_at = True, now + LOOK_SECONDS
        self._context.worker.submit(self._data.look, self._looked)

    def _looked(self, found: Listing | Exception) -> None:
        self._looking = False
        if isinstance(found, Exception):
            raise found
        if found == self._data.announced:
            return
        if not self._is_between_rounds():  # a question has come meanwhile; it is found again
            self.wake_at = self._context.now + SOON_SECONDS
            return
        self._data.announce(found)
        self._note(self._data.for_hellos)
        self._say_hello()

    def _is_between_rounds(self) -> bool:
        answers = self._context.state.saved.answers
        ended = not answers or answers[-1].phase in (self._last_phase, EVALUATE)
        return ended and self._is_idle()
