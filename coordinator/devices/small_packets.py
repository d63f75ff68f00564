"""The handling of brokers whose packet limit is below the size of a manifest.

With such a broker the manifest is sent as an object, and devices of older versions cannot read this form.
These devices would be refused for the rest of the run. So the coordinator does not decide at the first CONNACK
with a small limit. It refuses the broker and connects again, and repeats this during LASTS_SECONDS. If the limit is
still too small then, and the newer devices are enough for a quorum, the run goes on without the older devices. So a
single older device cannot prevent a run with this broker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from protofleet.protocol.wire import forms

LASTS_SECONDS: Final = 60.0


class SmallPackets:
    def __init__(self, quorum: int) -> None:
        self._quorum = quorum
        # Time at which a broker was first refused because its packet limit is too small. The time is infinity if a
        # broker was accepted later.
        self._since = float("inf")

    def manifests_may_be_objects(
        self, present: Collection[str], can: Mapping[str, Collection[str]], now: float
    ) -> bool:
        """Return whether the coordinator may send manifests as objects from now on.

        It may do so if all present devices can read such a manifest. It may also do so if brokers were refused for
        LASTS_SECONDS, and enough devices for a quorum can read such a manifest. Absent devices are counted too:
        without a connection, the coordinator does not know which devices have come back.
        """
        unable = {device for device in present if forms.MANIFEST not in can.get(device, (forms.MANIFEST,))}
        able = {device for device, said in can.items() if forms.MANIFEST in said}.union(present) - unable
        lasts = now >= self._since + LASTS_SECONDS
        return not unable or (lasts and len(able) >= self._quorum)

    def broker_refused(self, now: float) -> None:
        self._since = min(self._since, now)

    def broker_accepted(self) -> None:
        self._since = float("inf")
