"""Make the section about the energy of a run, and name the devices that cannot measure it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protofleet.lab.report.drawing.charts import Bar, bar_chart
from protofleet.lab.report.drawing.palette import COLOURS
from protofleet.lab.report.energy_amounts import PHASES, by_device, human_joules, sums
from protofleet.lab.report.finished_run import FinishedRun, Rounds
from protofleet.lab.report.html_page import section, table
from protofleet.lab.report.numbers import NONE

COLOUR: Final = {"train": COLOURS[0], "send": COLOURS[1]}
MOST_ROWS: Final = 100
TEXT: Final = (
    "What the boards drew from their supply: train is work on answers, send all else from one answer to the next "
    "(sending, waiting, fetching). Devices that share a machine each have an equal part of what it drew."
)


def energy_section(run: FinishedRun) -> str:
    """Return the section about energy.

    The section is empty for a run of an earlier version and for a centralised run, which has no devices.
    """
    rounds, summary = run.rounds, run.summary
    if not any("energy" in line for line in rounds) or summary["security"] == "centralised":
        return ""
    found, devices = sums(rounds), list(summary["devices"])
    missing = without_sensor(found, devices)
    if not found:
        return section("Energy", note=f"{missing}.")
    total = {phase: sum(one[phase] for one in found.values()) for phase in PHASES}
    measured = f"{len(found)} device{'s' if len(found) > 1 else ''}"
    text = (
        f"{human_joules(sum(total.values()))} by {measured}: {human_joules(total['train'])} in training, "
        f"{human_joules(total['send'])} in sending and waiting. {TEXT}{f' {missing}.' if missing else ''}"
    )
    return section("Energy", picture(rounds), devices_table(found, devices, rounds), note=text)


def without_sensor(found: Mapping[str, object], devices: list[str]) -> str:
    missing = [name for name in devices if name not in found]
    if not missing:
        return ""
    names = f" ({', '.join(missing[:8])}{' ...' if len(missing) > 8 else ''})" if found else ""
    return f"No power sensor on {len(missing)} of {len(devices)} devices{names}: what they drew is not known"


def picture(rounds: Rounds) -> str:
    bars = []
    for line in rounds:
        total = {phase: sum(one.get(phase, 0.0) for one in by_device(line).values()) for phase in PHASES}
        bars.append(Bar(line["round"], list(total.items()), 0.6))
    return bar_chart(bars, COLOUR, human_joules, "round", "joules of all devices by round")


def devices_table(found: Mapping[str, Mapping[str, float]], devices: list[str], rounds: Rounds) -> str:
    """Return the table of devices. If there are many devices, only the devices with the most joules are shown.

    A device that cannot measure joules has no number.
    """
    names = sorted({*found, *devices}, key=lambda name: (-sum(found.get(name, {}).values()), name))
    rows = []
    for name in names[:MOST_ROWS]:
        if (own := found.get(name)) is None:
            rows.append([name, NONE, NONE, NONE, NONE])
            continue
        measured = sum(1 for line in rounds if name in by_device(line))
        all_joules = sum(own.values())
        cells = [own["train"], own["send"], all_joules, all_joules / measured]
        rows.append([name, *map(human_joules, cells)])
    heads = ["device", "training", "sending and waiting", "together", "a round"]
    more = f"<p>And {len(names) - MOST_ROWS} more devices.</p>" if len(names) > MOST_ROWS else ""
    return table("Joules of each device", heads, rows) + more
