"""Name the classes that not all devices have sent, and the devices that have sent nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protofleet.lab.report.finished_run import FinishedRun
from protofleet.lab.report.sections.anchor_margins import class_words
from protofleet.protocol.wire.name_list import first_names

# Prefix of the figures `devices.<class>`, which are the numbers of devices that have sent the class.
PREFIX: Final = "devices."
ANSWERED: Final = "answers.kept"  # The figure with the number of devices whose answers are in the head.
NEVER: Final = ": never predicted"
SETTING: Final = " (method.least_samples)"
MOST_NAMED: Final = 12  # Largest number of classes or devices that a line names.


def left_out_classes(run: FinishedRun) -> list[str]:
    """Return lines about the classes that not all devices have sent; [] if all have sent all classes.

    A method that asks each device once keeps the answers. The figures of another method are those of the last round.
    """
    for line in reversed(run.rounds):
        figures = line["figures"]
        if ANSWERED in figures:
            return words_about(run, figures, int(figures[ANSWERED]), "no device has", "all devices", NEVER)
        if line["kind"] == "training" and sent_by_devices(figures):
            devices, nobody = "all devices of the last round", "no device of the last round has"
            return words_about(run, figures, len(line["participants"]), nobody, devices, SETTING)
    return []


def words_about(
    run: FinishedRun, figures: Mapping[str, float], total: int, nobody: str, devices: str, end: str
) -> list[str]:
    """Return a line about the classes that no device has sent, and one about those that some have not sent."""
    names = run.summary.get("class_names") or []
    sent = {class_words(label, names): count for label, count in sent_by_devices(figures).items()}
    nobodys = [name for name, count in sent.items() if not count]
    fewer = [f"{name} by {count} of {total}" for name, count in sent.items() if 0 < count < total]
    lines = []
    if nobodys:
        lines.append(f"{nobody} enough samples of {first_names(nobodys, MOST_NAMED)}{end}")
    if fewer:
        why = "the other devices have too few samples of the class, or none"
        lines.append(f"classes that not {devices} have sent: {first_names(fewer, MOST_NAMED)}; {why}")
    return lines


def left_out_devices(run: FinishedRun) -> list[str]:
    """Return lines about devices that had nothing to send, and about devices whose answers were deleted.

    Files of earlier versions do not name these devices.
    """
    kept = [line for line in run.rounds if ANSWERED in line["figures"]]
    unused = kept[-1].get("unused", []) if kept else []
    removed = sorted({device for line in run.rounds for device in line.get("removed", [])})
    lines = []
    if unused:
        lines.append(
            f"devices that take no part in the head: {first_names(unused, MOST_NAMED)}; no class has enough samples "
            "there (method.least_samples)"
        )
    if removed:
        names = first_names(removed, MOST_NAMED)
        lines.append(f"devices whose answers were deleted, because their enrolment had ended: {names}")
    return lines


def sent_by_devices(figures: Mapping[str, float]) -> dict[str, int]:
    """Return how many devices have sent each class, by the number of the class."""
    found = {
        name.removeprefix(PREFIX): int(value) for name, value in figures.items() if name.startswith(PREFIX)
    }
    return {label: found[label] for label in sorted(found, key=lambda label: (len(label), label))}
