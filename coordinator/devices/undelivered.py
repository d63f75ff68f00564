"""The devices to which the open task could not be sent. The log must not call these devices silent."""

from __future__ import annotations

from collections.abc import Collection


class Undelivered:
    def __init__(self) -> None:
        self._devices: set[str] = set()

    def sent(self, device: str, connected: bool) -> None:
        """Record that a task was sent to a device. Without a connection, the task is lost."""
        self._devices.discard(device) if connected else self._devices.add(device)

    def denied(self, devices: Collection[str]) -> None:
        """Record that the broker refused the task for these devices."""
        self._devices.update(devices)

    def describe(self, missing: Collection[str], connected: bool) -> str:
        """Return the part of a log line that gives the reason why the updates of these devices are missing."""
        if missing and not connected:
            return "; there is no connection to the broker"
        undelivered = self._devices & set(missing)
        unanswered = _listed("; no answer from: ", set(missing) - undelivered)
        return unanswered + _listed("; the broker did not take the question for: ", undelivered)


def _listed(words: str, devices: Collection[str]) -> str:
    return words + ", ".join(sorted(devices)) if devices else ""
