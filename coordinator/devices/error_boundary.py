"""An error in handling a device's message, or a message to it, pauses that device; the rest of the run goes on.

The traceback is logged, the error counted, and the device's messages are dropped for a while that doubles each time:
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
        """`who` gives the name under which a device is paused: all that are not enrolled share one."""
        self._bans, self._now, self._who = bans, now, who
        self._excluded: list[str] = []
        self._log_rate = TokenBucket(rate=1 / 60, burst=20.0)
        self.cut_off = 0

    @contextlib.contextmanager
    def around(self, device: str) -> Iterator[None]:
        """For what is done for this device alone, or because of it."""
        try:
            yield
        except (Rejected, RunMismatchError, *OURS):
            raise
        except Exception:
            who = self._who(device)
            pause = self._bans.pause(who, self._now())
            if self._log_rate.take(self._now()):
                log.exception(
                    "an error with %s, which is not listened to for %.0f s", who or "a stranger", pause
                )
            self.cut_off += 1
            self.exclude(device)

    def exclude(self, device: str) -> None:
        self._excluded.append(device)

    def take_excluded(self) -> list[str]:
        """The devices that were cut off since the last call: nothing may wait for them."""
        excluded, self._excluded = self._excluded, []
        return excluded
