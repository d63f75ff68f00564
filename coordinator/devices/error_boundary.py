"""The handling of errors that concern one device: the device is paused, and the run goes on.

An error concerns a device if it occurs while a message from the device, or a message to the device, is
handled. The traceback is logged, the error is counted, and messages of the device are dropped for a while.
The pause becomes twice as long with each error. It ends by itself, so that an honest device can take part
again after an error of this program.
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
        """Set up the boundary; `who` returns the name under which a device is paused.

        In a real coordinator, `who` returns one common name for all devices that are not enrolled. So these
        devices are paused together.
        """
        self._bans, self._now, self._who = bans, now, who
        self._excluded: list[str] = []
        self._log_rate = TokenBucket(rate=1 / 60, burst=20.0)
        self.cut_off = 0

    @contextlib.contextmanager
    def around(self, device: str) -> Iterator[None]:
        """Catch an error in the work for one device, and pause the device after an error."""
        try:
            yield
        except (Rejected, RunMismatchError, *OURS):
            raise
        except Exception:
            who = self._who(device)
            pause = self._bans.pause(who, self._now())
            if self._log_rate.take(self._now()):
                log.exception(
                    "an internal error occurred in the work for %s: messages under this name are ignored for %.0f s",
                    who or "an unknown name",
                    pause,
                )
            self.cut_off += 1
            self.exclude(device)

    def exclude(self, device: str) -> None:
        self._excluded.append(device)

    def take_excluded(self) -> list[str]:
        """Return the devices that were excluded since the last call; the run must not wait for them."""
        excluded, self._excluded = self._excluded, []
        return excluded
