"""Decide the command `label`, which assigns a group and labels to a device."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from protofleet.coordinator.devices.labels import NO_LABELS, DeviceLabels
from protofleet.coordinator.queue.commands import DONE, REFUSED, Decision
from protofleet.protocol.settings.suggest import there_are
from protofleet.protocol.wire.names import NAME, RULE

MOST_LABELS: Final = 16  # Largest number of labels of a device.
MOST_NAMED: Final = 8  # Largest number of devices that a message names.


@dataclass(frozen=True, slots=True)
class Labelling:
    """The changes that a command makes to the group and the labels of a device."""

    device: str
    group: str | None = None  # The new group; "" for none, and None if the group does not change.
    labels: Mapping[str, str] = field(default_factory=dict)  # New values of labels; "" removes a label.


def decide_labels(
    change: Labelling, assigned: Mapping[str, DeviceLabels], enrolled: Collection[str]
) -> Decision:
    """Return the new labels of the device, or why the change is refused."""
    if problem := _problem(change, assigned, enrolled):
        return Decision(REFUSED, problem)
    before = assigned.get(change.device, NO_LABELS)
    labels = {key: value for key, value in {**before.labels, **change.labels}.items() if value}
    if len(labels) > MOST_LABELS:
        return Decision(
            REFUSED, f"{change.device} would have {len(labels)} labels; the limit is {MOST_LABELS}"
        )
    after = DeviceLabels(before.group if change.group is None else change.group, labels)
    return Decision(DONE, f"{change.device}: {after.words()}", labelled=(change.device, after))


def _problem(change: Labelling, assigned: Mapping[str, DeviceLabels], enrolled: Collection[str]) -> str:
    if change.device not in enrolled and change.device not in assigned:
        known = (
            there_are(change.device, sorted(enrolled), MOST_NAMED) if enrolled else "no device is enrolled"
        )
        return f"{change.device} is not enrolled; {known}"
    texts = [change.group, *change.labels.values()]
    for text in (*change.labels, *(one for one in texts if one)):
        if not re.fullmatch(NAME, text):
            return f"{text[:70]!r} cannot be a group or a part of a label; it has {RULE}"
    return ""


def shown_labels(assigned: Mapping[str, DeviceLabels], enrolled: Collection[str]) -> list[dict[str, Any]]:
    """Return all devices with their groups and labels, as `label` lists them."""
    return [
        {
            "device": device,
            "group": (own := assigned.get(device, NO_LABELS)).group,
            "labels": dict(own.labels),
            "enrolled": device in enrolled,
        }
        for device in sorted({*assigned, *enrolled})
    ]
