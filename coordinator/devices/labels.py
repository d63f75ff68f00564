"""The groups and the labels of devices. An operator assigns them, and a device cannot claim them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class DeviceLabels:
    """The group and the labels of one device."""

    group: str = ""  # "" if the device is in no group.
    labels: Mapping[str, str] = field(default_factory=dict)

    def words(self) -> str:
        """Return the group and the labels as they are shown to an operator."""
        parts = [f"group {self.group}"] if self.group else []
        return (
            ", ".join([*parts, *(f"{key}={value}" for key, value in sorted(self.labels.items()))])
            or "no labels"
        )


NO_LABELS: Final = DeviceLabels()
