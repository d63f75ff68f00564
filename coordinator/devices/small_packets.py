"""Brokers whose packet limit is below the size of a manifest.

The manifest is then sent as an object, which old devices cannot read. A refusal of those devices is final,
so one CONNACK is no reason for it: the broker is tried again. If the limit stays, the run goes on without
those devices if the others make a quorum. So one old device cannot keep a run from a broker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from protofleet.protocol.wire import forms

LASTS_SECONDS: Final = 60.0


class SmallPackets:
    def __init__(self, quorum: int) -> None:
        self._quorum = quorum
        self._since = float("inf")  # since when no broker could be used

    def manifests_may_be_objects(
        self, present: Collection[str], can: Mapping[str, Collection[str]], now: float
    ) -> bool:
        """Return whether a manifest may be an object from now on; devices that have left do not count.

        Devices that can read such a manifest count even if they are absent: without a connection it is
        unknown which devices have come back, or have left in the meantime.
        """
        unable = {device for device in present if forms.MANIFEST not in can.get(device, (forms.MANIFEST,))}
        able = {device for device, said in can.items() if forms.MANIFEST in said}.union(present) - unable
        lasts = now >= self._since + LASTS_SECONDS
        return not unable or (lasts and len(able) >= self._quorum)

    def broker_refused(self, now: float) -> None:
        self._since = min(self._since, now)

    def broker_accepted(self) -> None:
        self._since = float("inf")
