"""Make the section that shows which devices took part in each round: a strip for each device, and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any, Final

from protofleet.lab.report.drawing.canvas import (
    LETTER_WIDTH,
    TOP,
    Canvas,
    Drawing,
    Key,
    Picture,
    keys_below,
    shortened,
)
from protofleet.lab.report.drawing.palette import COLOURS
from protofleet.lab.report.finished_run import FinishedRun, Rounds
from protofleet.lab.report.html_page import section, table
from protofleet.lab.report.numbers import NONE

ANSWERED: Final = "answered"
ASIDE: Final = "put aside"
REFUSED: Final = "refused"
LATE: Final = "late"
SILENT: Final = "no answer"
# If a device has several of these states in one round, the first state of this list is shown.
STATES: Final = (ASIDE, ANSWERED, REFUSED, LATE, SILENT)
KEYS: Final = {
    ANSWERED: Key(ANSWERED, COLOURS[0]),
    ASIDE: Key(ASIDE, COLOURS[3]),
    REFUSED: Key(REFUSED, COLOURS[1]),
    LATE: Key(LATE, COLOURS[4], faint=True),
    SILENT: Key(SILENT, COLOURS[6], outlined=True),
}
MOST_STRIPS: Final = 60  # Maximum number of devices that are drawn.
STRIP: Final = 18.0  # Height of a device's strip, in pixels.
APART: Final = (
    6.0  # If a round is at least this number of pixels wide, it is drawn as its own piece of the strip.
)
MOST_NAME: Final = 150.0  # Maximum width of a device's name on a wide page, in pixels.
NOTE: Final = (
    "A strip is a device, from the first round to the last evaluation; where it is empty, it was not asked."
)


@dataclass(frozen=True)
class DeviceRounds:
    """The rounds in which one device got a task, and the outcome of each round."""

    device: str
    states: Mapping[int, str]

    def count(self, state: str) -> int:
        return sum(found == state for found in self.states.values())

    @property
    def missed(self) -> int:
        return len(self.states) - self.count(ANSWERED)


def participation_section(run: FinishedRun) -> str:
    return section(
        "Rounds", strips(run.rounds), devices_table(run.rounds), rounds_table(run.rounds), note=NOTE
    )


def attendances(rounds: Rounds) -> list[DeviceRounds]:
    found: dict[str, dict[int, str]] = {}
    for line in rounds:
        asked = {device for phase in line["phases"] for device in phase["asked"]}
        for device in sorted(asked | {*line["participants"], *line["late"], *line["dropped"]}):
            found.setdefault(device, {})[line["round"]] = state_in(line, device)
    return [DeviceRounds(device, states) for device, states in sorted(found.items())]


def state_in(line: Mapping[str, Any], device: str) -> str:
    where = {
        ASIDE: line.get("aside", {}),
        ANSWERED: line["participants"],
        REFUSED: line["dropped"],
        LATE: line["late"],
    }
    return next((state for state in STATES[:-1] if device in where[state]), SILENT)


def strips(rounds: Rounds) -> str:
    found = attendances(rounds)
    if not found:
        return ""
    shown = sorted(found, key=lambda one: (-one.missed, one.device))[:MOST_STRIPS]
    shown = sorted(shown, key=lambda one: one.device)
    numbers = range(rounds[0]["round"], rounds[-1]["round"] + 1)
    used = Counter(state for one in found for state in one.states.values())
    words = ", ".join(f"{used[state]} times {state}" for state in STATES if used[state])
    more = (
        f" Drawn are the {len(shown)} of {len(found)} devices that missed most."
        if len(found) > len(shown)
        else ""
    )

    def draw(canvas: Canvas) -> Drawing:
        frame = StripFrame.around(canvas, [one.device for one in shown], numbers)
        drawn = "".join(frame.strip(one, i) for i, one in enumerate(shown)) + frame.numbers(len(shown))
        keys = [KEYS[state] for state in KEYS if used[state]]
        legend, height = keys_below(keys, TOP + STRIP * len(shown) + 28, canvas)
        return Drawing(drawn + legend, height)

    text = f"{len(found)} devices in rounds {numbers[0]} to {numbers[-1]}: {words}."
    drawn = Picture("who took part in which round", text + more, draw).html()
    return drawn + (f"<p>{more}</p>" if more else "")


@dataclass(frozen=True)
class StripFrame:
    """The positions of the rounds and the devices in the picture, in pixels."""

    canvas: Canvas
    left: float
    rounds: range

    @classmethod
    def around(cls, canvas: Canvas, names: Sequence[str], rounds: range) -> StripFrame:
        most = min(MOST_NAME, canvas.width / 3)
        return cls(canvas, min(most, 10 + LETTER_WIDTH * max(map(len, names))), rounds)

    @property
    def step(self) -> float:
        return (self.canvas.width - self.left - 2) / len(self.rounds)

    def x(self, number: int) -> float:
        return self.left + self.step * (number - self.rounds[0])

    def strip(self, one: DeviceRounds, i: int) -> str:
        """Draw the strip of a device.

        If rounds are narrow, consecutive rounds with the same state are drawn as one piece. Otherwise a run
        with thousands of rounds would need thousands of pieces.
        """
        y = TOP + STRIP * i
        name = escape(shortened(one.device, self.left - 6))
        drawn = [f'<text x="{self.left - 6:.1f}" y="{y + 12:.0f}" class="end">{name}</text>']
        apart = self.step >= APART
        pieces = groupby(self.rounds, lambda n: (one.states.get(n, ""), n if apart else 0))
        for (state, _), of_state in pieces:
            numbers = list(of_state)
            if state:
                drawn.append(self._piece(one.device, state, numbers[0], numbers[-1], y))
        return "".join(drawn)

    def _piece(self, device: str, state: str, first: int, last: int, y: float) -> str:
        gap = min(1.0, self.step / 4)
        words = f"round {first}" if first == last else f"rounds {first} to {last}"
        place = (
            f'x="{self.x(first) + gap:.1f}" y="{y + 2:.0f}" width="{self.x(last + 1) - self.x(first) - 2 * gap:.1f}" '
            f'height="{STRIP - 5:.0f}"'
        )
        return f"<rect {place} {KEYS[state].fill}><title>{escape(device)}, {words}: {state}</title></rect>"

    def numbers(self, devices: int) -> str:
        y = TOP + STRIP * devices + 14
        every = max(1, round(len(self.rounds) / max(1, self.canvas.ticks)))
        return "".join(
            f'<text x="{self.x(number) + self.step / 2:.1f}" y="{y:.0f}" class="middle">{number}</text>'
            for number in self.rounds[::every]
        )


def devices_table(rounds: Rounds) -> str:
    rows = []
    for one in attendances(rounds):
        missed = [number for number, state in one.states.items() if state != ANSWERED]
        counts = [str(one.count(state)) for state in (ANSWERED, LATE, REFUSED, ASIDE, SILENT)]
        rows.append([one.device, str(len(one.states)), *counts, listed(missed)])
    head = ["device", "asked", ANSWERED, LATE, REFUSED, ASIDE, SILENT, "rounds missed"]
    return table("Rounds of each device", head, rows)


def listed(numbers: Sequence[int]) -> str:
    """Write numbers as text, with ranges for consecutive numbers, such as 1-4, 7."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans) or NONE


def rounds_table(rounds: Rounds) -> str:
    rows = []
    for line in rounds:
        asked = {device for phase in line["phases"] for device in phase["asked"]}.union(line["participants"])
        counted = [f"{d} (used, {age} rounds old)" for d, age in line.get("staleness", {}).items()]
        dropped = "; ".join(f"{device}: {why}" for device, why in line["dropped"].items())
        aside = "; ".join(f"{device}: {why}" for device, why in line.get("aside", {}).items())
        phases = ", ".join(f"{p['phase']} {p['seconds']:.1f}\u00a0s" for p in line["phases"])
        rows.append([
            str(line["round"]), f"{len(line['participants'])} of {len(asked)}", phases,
            ", ".join([*line["late"], *counted]) or NONE, dropped or NONE, aside or NONE,
        ])  # fmt: skip
    heads = ["round", "answered", "phases", "late", "refused", "put aside"]
    return table("Devices in each round", heads, rows, words=True)
