"""Devices that say that they leave: whether that still holds, and why they do, counted by a closed list.

A broker may keep such a message, also from an earlier run, and deliver it after the device has come back. A device is
quiet while it believes that it takes part, so nobody would hear of it for ten minutes.
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
        self._hellos: dict[str, tuple[int, int]] = {}  # device -> its boot, and the highest number of a hello

    def __getitem__(self, reason: DisconnectReason) -> int:
        return self._counted[reason]

    def greeted(self, hello: Received, newest: int) -> None:
        """`newest`: of all that was heard of it. With other keys numbers begin anew, so one above that is gone."""
        boot, number = self._hellos.get(hello.sender, (0, 0))
        counts = boot == hello.boot and number <= newest
        self._hellos[hello.sender] = hello.boot, max(hello.sequence, number if counts else 0)

    def is_stale(self, leave: Received, newest: int) -> bool:
        """Whether its device has said a later hello. A last will has no number of its own."""
        boot, number = self._hellos.get(leave.sender, (0, 0))
        return boot == leave.boot and 0 < leave.sequence < number <= newest

    def left(self, device: str, reason: str, may_log: bool, run_is_over: bool = True) -> None:
        known = disconnect_reason_of(reason)
        if known is DisconnectReason.FINISHED and not run_is_over:
            known = DisconnectReason.OTHER  # nobody can have told it so
        self._counted[known] += 1
        if may_log and known is not DisconnectReason.FINISHED:
            log.warning("%s leaves: %.200s", device, reason or "it does not say why")
