"""The one place where an error in handling what a peer said, or what it is sent, ends that peer's say.

The rest goes on. Its traceback is in the log, it is counted, and nobody listens to the peer for a while that doubles:
an honest device that has met an error of ours gets another chance.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from coordinator.bans import Bans
from coordinator.index import RunMismatchError
from protocol.admission import Bucket
from protocol.faults import OURS
from protocol.reasons import Rejected

log = logging.getLogger("protofleet.coordinator")


class Guard:
    def __init__(self, bans: Bans, now: Callable[[], float]) -> None:
        self._bans, self._now = bans, now
        self._leaving: list[str] = []
        self._words = Bucket(rate=1 / 60, burst=20.0)
        self.cut_off = 0

    @contextlib.contextmanager
    def around(self, device: str) -> Iterator[None]:
        """What is done for this device alone, or because of it."""
        try:
            yield
        except (Rejected, RunMismatchError, *OURS):
            raise
        except Exception:
            pause = self._bans.pause(device, self._now())
            if self._words.take(self._now()):
                who = device or "a stranger"
                log.exception("an error with %s, which is not listened to for %.0f s", who, pause)
            self.cut_off += 1
            self.leaves(device)

    def leaves(self, device: str) -> None:
        self._leaving.append(device)

    def leaving(self) -> list[str]:
        """Who has been cut off since it was asked last: nobody shall wait for them."""
        gone, self._leaving = self._leaving, []
        return gone
