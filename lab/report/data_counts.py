"""Count the training samples of each class on each device, and measure how much the devices differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ONE_DEVICE: Final = "one device: nothing to compare"


@dataclass(frozen=True)
class DeviceCounts:
    device: str
    domain: str
    counts: tuple[int, ...]  # Number of samples of each class.

    @property
    def total(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True)
class FleetCounts:
    """The numbers of samples on the devices whose data are known, sorted by domain and device name.

    All devices have the same number of classes.
    """

    devices: tuple[DeviceCounts, ...]
    names: tuple[str, ...] = ()  # The names of the classes; empty if they are unknown.

    @classmethod
    def of(cls, devices: Sequence[DeviceCounts], names: Sequence[str] = ()) -> FleetCounts:
        most = max((len(one.counts) for one in devices), default=0)
        padded = [
            DeviceCounts(one.device, one.domain, one.counts + (0,) * (most - len(one.counts)))
            for one in devices
        ]
        known = tuple(names) if len(names) == most else ()
        return cls(tuple(sorted(padded, key=lambda one: (one.domain, one.device))), known)

    @property
    def classes(self) -> int:
        return len(self.devices[0].counts) if self.devices else 0

    @property
    def domains(self) -> list[str]:
        return sorted({one.domain for one in self.devices})

    def class_name(self, label: int) -> str:
        return self.names[label] if self.names else str(label)

    @property
    def skew(self) -> float:
        """Return how much the class mixes of the devices differ; 0 if all devices have the same mix.

        The result is the mean, over devices, of the total variation distance between the device's mix of classes and
        the mix of all images. This distance is half the sum of the absolute differences.
        """
        filled = [one for one in self.devices if one.total]
        if not filled:
            return 0.0
        fleet = mix([sum(column) for column in zip(*(one.counts for one in filled), strict=True)])
        return sum(distance(mix(one.counts), fleet) for one in filled) / len(filled)

    @property
    def most_skew(self) -> float:
        """Return the highest skew that is possible with this number of devices.

        If a device has the share s of all images, the distance between the device's mix and the mix of all images is
        at most 1 - s. The shares of n devices add up to 1, so the mean of these distances is at most 1 - 1/n.
        """
        filled = sum(1 for one in self.devices if one.total)
        return 1 - 1 / filled if filled else 0.0


def mix(counts: Sequence[int]) -> list[float]:
    total = sum(counts)
    return [number / total for number in counts]


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the total variation distance between two mixes of classes."""
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / 2


def skew_words(fleet: FleetCounts) -> str:
    if len(fleet.devices) == 1:
        return ONE_DEVICE
    return f"{fleet.skew:.2f} (0: all devices have the same mix; at most {fleet.most_skew:.2f}: no two share a class)"
