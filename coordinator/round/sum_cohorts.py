"""The choice of a cohort whose masked sum may follow the last sums, and the wait for devices that this needs."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from protofleet.protocol.secagg.cohorts import may_follow


@dataclass
class SumCohorts:
    """The devices of the last sum of each stage, in a run whose sums may not differ by only a few devices."""

    apart: int = 0  # Devices by which two cohorts must differ if they are not equal; 0 allows every cohort.
    last: tuple[frozenset[str], ...] = ()  # The devices of the last sum of each stage.
    wait_until: float | None = None  # Time until which the run waits for devices of the last sum.
    _given_up: set[str] = field(default_factory=set)  # Devices for which the run has waited until that time.
    # Devices that have joined since their last connection was lost.
    _heard: set[str] = field(default_factory=set)

    def joined(self, device: str) -> bool:
        """Note that a device is here, and return whether its silence ends, because the next sum needs the device.

        The run then waits for its updates. If the device stays silent, this happens only once for each connection.
        """
        self._given_up.discard(device)
        ends = self.apart > 0 and any(device in last for last in self.last) and device not in self._heard
        self._heard.add(device)
        return ends

    def left(self, device: str) -> None:
        self._heard.discard(device)

    def missing(self, here: AbstractSet[str]) -> frozenset[str]:
        """Return the devices without which no cohort of the present devices can have a sum."""
        if self._chosen(here, here) is not None:
            return frozenset()
        return frozenset[str]().union(*self.last) - here

    def holds_back(self, here: AbstractSet[str], now: float, patience_seconds: float) -> bool:
        """Return whether the round waits for devices of the last sum. It waits once for each absence of a device."""
        missing = self.missing(here)
        if not missing - self._given_up:
            self.wait_until = None
            return False
        if self.wait_until is None:
            self.wait_until = now + patience_seconds
        if now < self.wait_until:
            return True
        self._given_up |= missing
        self.wait_until = None
        return False

    def chosen(self, drawn: AbstractSet[str], here: AbstractSet[str]) -> AbstractSet[str]:
        """Return the drawn devices if their sum may follow the last sums, else the devices of a last sum.

        So a few new devices wait until their sum differs by enough devices. If no cohort of the present devices can
        have a sum, return the drawn devices: they train, and the round ends without a sum.
        """
        found = self._chosen(drawn, here)
        return drawn if found is None else found

    def _chosen(self, drawn: AbstractSet[str], here: AbstractSet[str]) -> AbstractSet[str] | None:
        present = (cohort for cohort in self.last if cohort <= here)
        return next((cohort for cohort in (drawn, *present) if self._may_follow_all(cohort)), None)

    def _may_follow_all(self, cohort: AbstractSet[str]) -> bool:
        return all(may_follow(last, cohort, self.apart) for last in self.last)
