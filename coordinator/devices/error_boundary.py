"""The one place where an error in handling what a peer said, or what it is sent, ends that peer's say.

The rest goes on. Its traceback is in the log, it is counted, and nobody listens to the peer for a while that doubles:
an honest device that has met an error of ours gets another chance.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from protofleet.coordinator.devices.bans import Bans
from protofleet.coordinator.spool.index import RunMismatchError
from protofleet.protocol.link.rate_limit import TokenBucket
from protofleet.protocol.wire.reasons import Rejected
from protofleet.runtime.faults import OURS

log = logging.getLogger("protofleet.coordinator")


class ErrorBoundary:
    def __init__(
        self, bans: Bans, now: Callable[[], float], who: Callable[[str], str] = lambda device: device
    ) -> None:
        """`who` gives the name under which a device is paused: those that nobody knows share one."""
        self._bans, self._now, self._who = bans, now, who
        self._excluded: list[str] = []
        self._words = TokenBucket(rate=1 / 60, burst=20.0)
        self.cut_off = 0

    @contextlib.contextmanager
    def around(self, device: str) -> Iterator[None]:
        """What is done for this device alone, or because of it."""
        try:
            yield
        except (Rejected, RunMismatchError, *OURS):
            raise
        except Exception:
            who = self._who(device)
            pause = self._bans.pause(who, self._now())
            if self._words.take(self._now()):
                words = "an error with %s, which is not listened to for %.0f s"
                log.exception(words, who or "a stranger", pause)
            self.cut_off += 1
            self.exclude(device)

    def exclude(self, device: str) -> None:
        self._excluded.append(device)

    def take_excluded(self) -> list[str]:
        """Who has been cut off since it was asked last: nobody shall wait for them."""
        gone, self._excluded = self._excluded, []
        return gone
