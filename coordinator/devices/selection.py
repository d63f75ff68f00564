"""The devices that a run takes: all enrolled devices, or those that its settings select."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from protofleet.coordinator.devices.labels import NO_LABELS, DeviceLabels
from protofleet.protocol.settings.bounds import Devices
from protofleet.protocol.settings.reader import SettingsError, demand_within
from protofleet.protocol.settings.suggest import there_are
from protofleet.protocol.wire.messages import Hello
from protofleet.protocol.wire.name_list import first_names
from protofleet.protocol.wire.reasons import Problem, Reason

MOST_NAMED: Final = 8  # Largest number of devices that a message names.


@dataclass(frozen=True)
class DeviceSelection:
    """The [select] table: the devices that take part in a run; a device must meet each key that is set."""

    names: tuple[str, ...] = ()
    """Names of the only devices that take part; empty means all devices."""
    without: tuple[str, ...] = ()
    """Names of devices that do not take part."""
    domains: tuple[str, ...] = ()
    """Domains of the only devices that take part, as the devices state them; empty means all domains."""
    groups: tuple[str, ...] = ()
    """Groups of the only devices that take part, as `protofleet label` assigns them; empty means all groups."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels that each device must have, as `protofleet label` assigns them; empty means that no label is needed."""
    most: Devices = 0
    """Largest number of devices that take part at the same time, the first that come; 0 means no limit."""

    def __post_init__(self) -> None:
        demand_within(self)

    def has_name(self, device: str) -> bool:
        return (not self.names or device in self.names) and device not in self.without

    def demand_no_labels(self, why: str) -> None:
        """Raise SettingsError if the selection needs groups or labels, which nobody can assign here."""
        for key in ("groups", "labels"):
            if getattr(self, key):
                raise SettingsError(
                    f"select.{key} needs a coordinator that conducts submitted runs, because `protofleet label` "
                    f"assigns {key} there, and {why}; set select.names"
                )

    def problem(self, quorum: int, enrolled: Collection[str], assigned: Mapping[str, DeviceLabels]) -> str:
        """Return why a run with this selection cannot start with the devices that are enrolled now, or "".

        The domains of the devices are not known before their hellos, so they are left out.
        """
        for key in ("names", "without"):
            for name in getattr(self, key):
                if name not in enrolled:
                    known = (
                        there_are(name, sorted(enrolled), MOST_NAMED) if enrolled else "no device is enrolled"
                    )
                    return f"select.{key} has {name!r}, which is not enrolled; {known}"
        chosen = sorted(SelectedDevices(self, assigned).of(enrolled))
        if len(chosen) >= quorum:
            return ""
        if self == DeviceSelection(most=self.most):
            named = f" ({first_names(chosen, MOST_NAMED)})" if chosen else ""
            return (
                f"{len(chosen)} devices are enrolled{named}, but policy.quorum is {quorum}; enrol more devices, or "
                "lower policy.quorum"
            )
        return (
            f"[select] leaves {len(chosen)} of {len(enrolled)} enrolled devices"
            f"{f' ({first_names(chosen, MOST_NAMED)})' if chosen else ''}, but policy.quorum is {quorum}; select "
            "more devices, assign groups and labels with `protofleet label`, or lower policy.quorum"
        )


class SelectedDevices:
    """The devices that a run takes, according to its settings, the assigned labels and the claims in hellos."""

    def __init__(self, settings: DeviceSelection, assigned: Mapping[str, DeviceLabels]) -> None:
        """Select devices; `assigned` may change while the run goes on."""
        self.settings, self._assigned = settings, assigned
        self._selects_all = settings == DeviceSelection(most=settings.most)
        self._domains: dict[str, str] = {}  # Device -> the domain of its last hello.

    def of(self, enrolled: Collection[str]) -> frozenset[str]:
        return frozenset(device for device in enrolled if self.selects(device))

    def count(self, enrolled: Collection[str]) -> int:
        """Return the number of devices that can take part at the same time."""
        number = len(self.of(enrolled))
        return min(number, self.settings.most or number)

    def selects(self, device: str) -> bool:
        """Return whether the run selects a device. Its domain counts only after its first hello."""
        return self._selects_all or not self._why_not(device)

    def problem_with(self, hello: Hello) -> Problem | None:
        """Return why the run does not select the device of a hello. A device without a domain is its own domain."""
        if self._selects_all:
            return None
        self._domains[hello.device] = hello.domain or hello.device
        words = self._why_not(hello.device)
        return Problem(Reason.UNFIT, f"the run does not select {hello.device}: {words}") if words else None

    def _why_not(self, device: str) -> str:
        s, own = self.settings, self._assigned.get(device, NO_LABELS)
        if not s.has_name(device):
            return "its name is left out (select.names, select.without)"
        if s.groups and own.group not in s.groups:
            return f"its group is {own.group!r}, and select.groups is {', '.join(s.groups)}"
        for key, value in s.labels.items():
            if own.labels.get(key) != value:
                return f"its label {key} is {own.labels.get(key, '')!r}, and select.labels.{key} is {value!r}"
        domain = self._domains.get(device)
        if s.domains and domain is not None and domain not in s.domains:
            return f"its domain is {domain!r}, and select.domains is {', '.join(s.domains)}"
        return ""
