"""The byes of devices: stale byes are detected, and the reasons of byes are counted.

A broker may keep a bye, even a bye from an earlier run, and deliver it after the device has come back. Then
the coordinator would remove the device. But the device would send no hello, because it would not know that it
was removed. So a stale bye would exclude the device for ten minutes.
"""

from __future__ import annotations

import logging
from collections import Counter

from protofleet.protocol.link.base import Received
from protofleet.protocol.wire.reasons import DisconnectReason, disconnect_reason_of

log = logging.getLogger("protofleet.coordinator")


class Departures:
    def __init__(self) -> None:
        self._counted: Counter[DisconnectReason] = Counter()
        # Device -> its boot, and the highest sequence number of its hellos in this boot.
        self._hellos: dict[str, tuple[int, int]] = {}

    def __getitem__(self, reason: DisconnectReason) -> int:
        return self._counted[reason]

    def hello_received(self, hello: Received, newest: int) -> None:
        """Record the sequence number of a hello; `newest` is the highest sequence number of the device's messages.

        A device with new keys starts its sequence numbers again. So a stored number above `newest` belongs to
        the old keys and is ignored.
        """
        boot, number = self._hellos.get(hello.sender, (0, 0))
        counts = boot == hello.boot and number <= newest
        self._hellos[hello.sender] = hello.boot, max(hello.sequence, number if counts else 0)

    def is_stale(self, leave: Received, newest: int) -> bool:
        """Return whether the device has sent a hello after this bye.

        A last will has sequence number 0, so it is never stale.
        """
        boot, number = self._hellos.get(leave.sender, (0, 0))
        return boot == leave.boot and 0 < leave.sequence < number <= newest

    def left(self, device: str, reason: str, may_log: bool, run_is_over: bool = True) -> None:
        known = disconnect_reason_of(reason)
        if known is DisconnectReason.FINISHED and not run_is_over:
            # A device can use the reason `finished` only at the end of the run.
            known = DisconnectReason.OTHER
        self._counted[known] += 1
        if may_log and known is not DisconnectReason.FINISHED:
            log.warning("%s leaves: %.200s", device, reason or "it does not say why")
