"""Whom the open question could not be said to: nobody is called silent who has not heard it."""

from __future__ import annotations

from collections.abc import Collection


class Untold:
    def __init__(self) -> None:
        self._devices: set[str] = set()

    def said(self, device: str, connected: bool) -> None:
        """What is said without a connection is lost."""
        self._devices.discard(device) if connected else self._devices.add(device)

    def denied(self, devices: Collection[str]) -> None:
        """The broker did not take what was said to them."""
        self._devices.update(devices)

    def words(self, missing: Collection[str], connected: bool) -> str:
        """Why there is no answer of them."""
        if missing and not connected:
            return "; there is no connection to the broker"
        untold = self._devices & set(missing)
        silent = _listed("; silent: ", set(missing) - untold)
        return silent + _listed("; the broker did not take the question for: ", untold)


def _listed(words: str, devices: Collection[str]) -> str:
    return words + ", ".join(sorted(devices)) if devices else ""
