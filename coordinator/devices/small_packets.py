"""The handling of brokers whose packet limit is below the size of a manifest.

With such a broker the manifest is sent as an object, and devices of older versions cannot read this form.
These devices would be refused for the rest of the run. So the coordinator does not decide at the first CONNACK
with a small limit. It connects again until the limit has lasted for LASTS_SECONDS. If the other devices are
then enough for a quorum, the run goes on without the older devices. So a single older device cannot prevent a
run with this broker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from protofleet.protocol.wire import forms

LASTS_SECONDS: Final = 60.0


class SmallPackets:
    def __init__(self, quorum: int) -> None:
        self._quorum = quorum
        # Time since which the coordinator has refused every broker because of its small packet limit.
        self._since = float("inf")

    def manifests_may_be_objects(
        self, present: Collection[str], can: Mapping[str, Collection[str]], now: float
    ) -> bool:
        """Return whether a manifest may be sent as an object from now on.

        Absent devices that cannot read such a manifest are ignored. Absent devices that can read it count
        towards the quorum, because without a connection the coordinator does not know which of them have come
        back.
        """
        unable = {device for device in present if forms.MANIFEST not in can.get(device, (forms.MANIFEST,))}
        able = {device for device, said in can.items() if forms.MANIFEST in said}.union(present) - unable
        lasts = now >= self._since + LASTS_SECONDS
        return not unable or (lasts and len(able) >= self._quorum)

    def broker_refused(self, now: float) -> None:
        self._since = min(self._since, now)

    def broker_accepted(self) -> None:
        self._since = float("inf")
