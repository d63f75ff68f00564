"""Whom the open question could not be said to: nobody is called silent who has not heard it."""

from __future__ import annotations

from collections.abc import Collection


class Undelivered:
    def __init__(self) -> None:
        self._devices: set[str] = set()

    def sent(self, device: str, connected: bool) -> None:
        """What is said without a connection is lost."""
        self._devices.discard(device) if connected else self._devices.add(device)

    def denied(self, devices: Collection[str]) -> None:
        """The broker did not take what was said to them."""
        self._devices.update(devices)

    def describe(self, missing: Collection[str], connected: bool) -> str:
        """Why there is no answer of them."""
        if missing and not connected:
            return "; there is no connection to the broker"
        untold = self._devices & set(missing)
        unanswered = _listed("; no answer from: ", set(missing) - untold)
        return unanswered + _listed("; the broker did not take the question for: ", untold)


def _listed(words: str, devices: Collection[str]) -> str:
    return words + ", ".join(sorted(devices)) if devices else ""
