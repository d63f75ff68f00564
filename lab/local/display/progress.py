"""Show the progress of a run, as a live display in a terminal or as one plain line for each round."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from protofleet.coordinator.observe.record import sampled_words
from protofleet.coordinator.round.pace import opening_words
from protofleet.lab.local.display.screen_lines import NAME_CELLS, one_line, packed
from protofleet.protocol.link.meter import human_bytes

LONG_PAUSE: Final = 60.0  # Seconds. For a shorter pause between rounds, no line is printed.
# Lines that are always shown: the title, the bar, the traffic, the time and the line of the cursor.
FIXED_LINES: Final = 5


@dataclass
class RunState:
    """The state of a run, as the coordinator's events describe it."""

    rounds: int
    started_at: float
    view: str = "global"  # The view whose accuracy is shown, for example "global".
    # Seconds of pause between two rounds; infinite if the settings do not determine the pause.
    pause_seconds: float = 0.0
    held_until: float = 0.0  # Unix time before which the next round must not begin; 0 if it may begin now.
    # Unix time until which the run waits, because budgets of the month are spent; 0 if it does not wait.
    budget_until: float = 0.0
    waiting_round: int = 0  # The round that waits for the next month.
    budget_words: str = ""  # The reason of this wait while it is not printed yet; else "".
    round: int = 0
    phase: str = "waiting for devices"
    cohort: list[str] = field(default_factory=list)
    answered: list[str] = field(default_factory=list)
    present: int = 0
    accuracy: dict[str, float] = field(default_factory=dict)
    measured_by: str = ""  # Words about the devices that measured the accuracy; "" for all present devices.
    bytes: dict[str, int] = field(default_factory=dict)
    # Bytes of the rounds that ended before this process started.
    earlier_bytes: dict[str, int] = field(default_factory=dict)
    # For each device, a text that says how much of its update has arrived.
    transfers: dict[str, str] = field(default_factory=dict)
    round_seconds: list[float] = field(default_factory=list)
    asked: int = 0  # Number of "asked" events in this process.
    finished: bool = False  # True after the event that ends the run. All processes may exit then.

    def apply(self, event: dict[str, Any]) -> None:
        match event:
            case {"event": "joined" | "left", "roster": int(roster)}:
                self.present = roster
            case {"event": "asked", "round": int(number), "phase": str(phase), "cohort": [*cohort]}:
                self.round, self.phase, self.cohort, self.answered = number, phase, cohort, []
                self.held_until = self.budget_until = 0.0
                self.transfers, self.asked = {}, self.asked + 1
                self.rounds = event.get("rounds", self.rounds)  # An operator may have changed it.
            case {"event": "held_back", "round": int(number), "until": float(until)}:
                self.round, self.held_until = number, until
            case {"event": "budget_wait", "round": int(number), "until": float(until), "reason": str(words)}:
                self.waiting_round, self.budget_until, self.budget_words = number, until, words
            case {"event": "transfer", "device": str(device)}:
                self.transfers[device] = transfer_words(event)
            case {"event": "answered", "device": str(device)}:
                self.answered.append(device)
                self.transfers.pop(device, None)
                counted = {k: v for k, v in event.items() if k.startswith(("payload_", "wire_"))}
                self.bytes = {k: v + self.earlier_bytes.get(k, 0) for k, v in counted.items()}
            case {"event": "round", "accuracy": dict(views)}:
                self.accuracy = views.get(self.view) or self.accuracy
                if self.view in views:
                    words = sampled_words(event.get("measured", {}).get(self.view))
                    self.measured_by = f" ({words})" if words else ""
                self.round_seconds.append(event.get("seconds", 0.0))
            case {"event": "finished" | "diverged"}:
                self.finished = True

    def fold(self, record: Mapping[str, Any]) -> None:
        """Add a round that ended in an earlier process of this run. `record` is its line in rounds.jsonl."""
        self.apply({"event": "round", **record})
        self.round = record["round"] + 1
        for name in ("payload", "wire"):
            for way, kinds in record[name].items():
                key = f"{name}_{way}"
                self.earlier_bytes[key] = self.earlier_bytes.get(key, 0) + sum(kinds.values())
        self.bytes = dict(self.earlier_bytes)

    @property
    def seconds_left(self) -> float | None:
        """Return the seconds until the end of the run, or None if they are not known.

        The estimate uses the mean time of the last five rounds and the pauses that the policy prescribes.
        """
        if not self.round_seconds or self.pause_seconds == math.inf or self.budget_until:
            return None
        recent = self.round_seconds[-5:]
        a_round = sum(recent) / len(recent) + self.pause_seconds
        return max(0, self.rounds - len(self.round_seconds)) * a_round

    @property
    def stage(self) -> str:
        if self.held_until:
            opening = opening_words(self.held_until, time.time())
            return f"round {self.round} of {self.rounds} begins at {opening} or later"
        if self.budget_until:
            month = opening_words(self.budget_until, time.time())
            return f"waiting for the next month, at {month}: budgets are spent"
        return self.place

    def take_budget_words(self) -> str:
        """Return the reason of a wait once, after the end of the round before it was shown; else ""."""
        if len(self.round_seconds) < self.waiting_round - 1:
            return ""
        words, self.budget_words = self.budget_words, ""
        return words

    @property
    def place(self) -> str:
        """Return the round and the phase that were asked last."""
        if self.round > self.rounds:
            return "final evaluation"
        if self.phase == "evaluate":
            return f"evaluation after round {self.round - 1} of {self.rounds}"
        return f"round {self.round} of {self.rounds}, {self.phase}" if self.round else self.phase

    @property
    def mean_accuracy(self) -> float | None:
        return sum(self.accuracy.values()) / len(self.accuracy) if self.accuracy else None


def event_of(line: str) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


class ProgressDisplay:
    """The display of a run from the lines that the coordinator prints.

    A line that is not an event is printed unchanged.
    """

    def __init__(
        self, rounds: int, console: Console | None = None, view: str = "global", pause_seconds: float = 0.0
    ) -> None:
        self._console = console or Console(file=sys.stdout, highlight=False)
        self._interactive = self._console.is_terminal and os.environ.get("TERM") != "dumb"
        self._state = RunState(rounds, time.monotonic(), view, pause_seconds)
        self._live: Live | None = None

    def __enter__(self) -> ProgressDisplay:
        if self._interactive:
            self._live = Live(console=self._console, refresh_per_second=8, get_renderable=self.render)
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.__exit__(None, None, None)

    @property
    def finished(self) -> bool:
        return self._state.finished

    def fold(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Add rounds that ended in an earlier process of this run."""
        for record in records:
            self._state.fold(record)

    def print(self, text: str) -> None:
        # With str in place of Text, rich would read square brackets in a device's text as markup.
        self._console.print(Text(text), soft_wrap=True)

    def show_page(self, address: str) -> None:
        """Print the address of the live page."""
        self.print(f"page {address}")

    def show_result(self, text: str) -> None:
        """Print the result of the finished run."""
        self.print(text)

    def handle_line(self, line: str) -> None:
        if (event := event_of(line)) is None:
            self.print(line)
            return
        self._state.apply(event)
        if not self._interactive and (text := self.describe(event)):
            self.print(text)
        if words := self._state.take_budget_words():
            self.print(words)

    def describe(self, event: dict[str, Any]) -> str:
        """Return the line that is printed for an event if there is no terminal; "" if the event needs no line."""
        p = self._state
        match event.get("event"):
            case "joined" if not p.asked:
                return ""  # With a hundred devices, this event would print a hundred lines.
            case "joined" | "left":
                why = f": {event['reason']}" if event.get("reason") else ""
                return f"{event['device']} has {event['event']}, {p.present} present{why}"
            case "asked" if p.asked == 1:
                return f"{p.stage}: {len(p.cohort)} devices asked, {p.present} present"
            case "held_back" if event["until"] - time.time() >= LONG_PAUSE:
                return p.stage
            case "paused":
                return event["reason"] or "the run goes on after its pause"
            case "transfer":
                return f"{event['device']}: {transfer_words(event)}"
            case "dropped":
                return f"{event['device']}: answer {event['verdict']}, {event['reason']}"
            case "fell_back":
                found = ", ".join(f"{n} {what}{'s' * (n > 1)}" for what, n in event["damaged"].items())
                return f"damaged on the disk: {found}; the run continues from round {event['round']}"
            case "again":
                return f"round {event['round']} is repeated: too few answers in time"
            case "aside":
                return f"{event['device']}: answer to round {event['round']} put aside, {event['reason']}"
            case "lacking":
                return str(event["reason"])
            case "went_back":
                return f"back to round {event['round']}, without the answer of {event['device']}: {event['reason']}"
            case "returned":
                return f"{event['device']}: answer to round {event['round']} counts again"
            case "round":
                done = f"{p.place} took {event['seconds']:.1f} s"
                known = p.mean_accuracy is not None
                mean = f", mean accuracy {p.mean_accuracy:.1%}{p.measured_by}" if known else ""
                left = f", about {p.seconds_left:.0f} s left" if p.seconds_left else ""
                return f"{done}{mean}, {self._traffic()}{left}"
        return ""

    def render(self) -> Group:
        p = self._state
        answered = (
            f": {len({*p.answered})} of {len(p.cohort)} have answered"
            if p.cohort and not p.held_until and not p.budget_until
            else ""
        )
        elapsed = f"{time.monotonic() - p.started_at:.0f} s elapsed"
        left = f", about {p.seconds_left:.0f} s left" if p.seconds_left is not None else ""
        width, room = self._console.width - 1, max(2, self._console.height - FIXED_LINES)
        domains = min(len(p.accuracy), room // 2)
        return Group(
            one_line(p.stage + answered, width, "bold"),
            self._bar(width),
            *self._devices(width, room - domains),
            *self._domains(width, domains),
            one_line(self._traffic(), width),
            one_line(elapsed + left, width, "dim"),
        )

    def _bar(self, width: int) -> Table:
        """Return the progress bar in a table, because rich prints no line break after a bar outside a table."""
        table = Table.grid()
        bar = ProgressBar(self._state.rounds, len(self._state.round_seconds), width=min(60, width))
        table.add_row(bar)
        return table

    def _devices(self, width: int, lines: int) -> list[Text]:
        """Return the lines of the devices.

        If there is no room for all devices, the devices that have not sent their update are shown first.
        """
        p = self._state
        if not p.cohort:
            return [one_line(f"{p.present} devices present", width)]
        answered = {*p.answered}
        found = packed([self._device(device, device in answered) for device in p.cohort], width, lines)
        if len(found) < lines or found[-1].plain[:3] != "...":
            return found
        order = sorted(p.cohort, key=lambda device: (device in answered, device not in p.transfers))
        return packed([self._device(device, device in answered) for device in order], width, lines)

    def _device(self, device: str, answered: bool) -> Text:
        cell = Text(f"{'✓' if answered else '·'} ", style="green" if answered else "dim")
        cell.append_text(one_line(device, NAME_CELLS))
        if words := self._state.transfers.get(device):
            cell.append(f"  ({words})", style="dim")
        return cell

    def _domains(self, width: int, lines: int) -> list[RenderableType]:
        """Return lines with the accuracy in each domain.

        If there is no room for all domains, the last line has the number of domains that are not shown.
        """
        values = sorted(self._state.accuracy.items())
        shown = values if len(values) <= lines else values[: max(0, lines - 1)]
        longest = max((Text(domain).cell_len for domain, _ in shown), default=0)
        name_width = min(longest, NAME_CELLS, max(4, width - 14))
        table = Table.grid(padding=(0, 2, 0, 0))
        for domain, value in shown:
            bar = ProgressBar(1.0, value, width=max(2, min(30, width - name_width - 10)))
            table.add_row(one_line(domain, name_width), bar, f"{value:6.1%}")
        mean = f"; the mean of all is {self._state.mean_accuracy or 0:.1%}"
        more = f"... and {len(values) - len(shown)} more{mean}"
        rows: list[RenderableType] = [table] if shown else []
        return rows if len(shown) == len(values) else [*rows, one_line(more, width, "dim")]

    def _traffic(self) -> str:
        b = self._state.bytes
        up, down = b.get("payload_up", 0), b.get("payload_down", 0)
        wire = b.get("wire_up", 0) + b.get("wire_down", 0)
        return f"tensors up {human_bytes(up)}, down {human_bytes(down)}; on the wire {human_bytes(wire)}"


def transfer_words(event: dict[str, Any]) -> str:
    came, size, rate = (human_bytes(event[key]) for key in ("bytes", "size", "bytes_per_second"))
    return f"{came} of {size} are here, {rate}/s, about {event['seconds_left']:.0f} s to go"
