"""Devices that the open question could not be sent to: the log must not call them silent."""

from __future__ import annotations

from collections.abc import Collection


class Undelivered:
    def __init__(self) -> None:
        self._devices: set[str] = set()

    def sent(self, device: str, connected: bool) -> None:
        """Note whether the question to a device was sent; without a connection it is lost."""
        self._devices.discard(device) if connected else self._devices.add(device)

    def denied(self, devices: Collection[str]) -> None:
        """Note that the broker refused the message to these devices."""
        self._devices.update(devices)

    def describe(self, missing: Collection[str], connected: bool) -> str:
        """Describe why the answers of the missing devices are not there."""
        if missing and not connected:
            return "; there is no connection to the broker"
        undelivered = self._devices & set(missing)
        unanswered = _listed("; no answer from: ", set(missing) - undelivered)
        return unanswered + _listed("; the broker did not take the question for: ", undelivered)


def _listed(words: str, devices: Collection[str]) -> str:
    return words + ", ".join(sorted(devices)) if devices else ""
