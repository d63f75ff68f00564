"""Packets that have become too small for a manifest, which has to be an object then, and devices that take none so.

A refusal ends them, so for one CONNACK nobody is sent away: the broker is tried again. A limit that lasts is no slip,
and where the others are enough they go on: one device, however little it says it can, keeps nobody from a broker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from protofleet.protocol.wire import forms

LASTS_SECONDS: Final = 60.0


class SmallPackets:
    def __init__(self, quorum: int) -> None:
        self._quorum = quorum
        self._since = float("inf")  # no broker could be used

    def manifests_may_be_objects(
        self, present: Collection[str], can: Mapping[str, Collection[str]], now: float
    ) -> bool:
        """Whether a manifest may be an object from now on. Who has left is not asked.

        All that can count as the others, be they there or not: who comes back is not heard before there is a
        connection, and who is there may have gone in the meantime.
        """
        unable = {device for device in present if forms.MANIFEST not in can.get(device, (forms.MANIFEST,))}
        able = {device for device, said in can.items() if forms.MANIFEST in said}.union(present) - unable
        lasts = now >= self._since + LASTS_SECONDS
        return not unable or (lasts and len(able) >= self._quorum)

    def broker_refused(self, now: float) -> None:
        self._since = min(self._since, now)

    def broker_accepted(self) -> None:
        self._since = float("inf")
