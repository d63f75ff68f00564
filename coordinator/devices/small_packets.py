"""A broker's packet limit below a manifest's size: the manifest is sent as an object, which old devices cannot read.

Refusing those devices is final, so one CONNACK is no reason for it: the broker is tried again. If the limit stays,
the run goes on without them where the others make a quorum: one old device keeps no run from a broker.
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
        """Whether a manifest may be an object from now on. Devices that have left have no say.

        The others that can read it count whether present or not: without a connection nobody knows who has come
        back, or has left in the meantime.
        """
        unable = {device for device in present if forms.MANIFEST not in can.get(device, (forms.MANIFEST,))}
        able = {device for device, said in can.items() if forms.MANIFEST in said}.union(present) - unable
        lasts = now >= self._since + LASTS_SECONDS
        return not unable or (lasts and len(able) >= self._quorum)

    def broker_refused(self, now: float) -> None:
        self._since = min(self._since, now)

    def broker_accepted(self) -> None:
        self._since = float("inf")
