"""Show the progress of a run that a Python program has started: in a notebook, at a terminal or to a function.

Nothing is written to standard output, because standard output belongs to the program. Messages go to the
logger `protofleet`.
"""

from __future__ import annotations

import html
import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from rich.console import Console

from protofleet.lab.local.display.display import Display
from protofleet.lab.local.display.progress import ProgressDisplay, RunState, event_of
from protofleet.protocol.settings.reader import SettingsError

# A function that is called after each round with the round's record from rounds.jsonl.
Listener: TypeAlias = Callable[[Mapping[str, Any]], None]
ProgressChoice: TypeAlias = Literal["auto", "off"] | Listener
# Minimum seconds between two updates of the line, because a notebook stores every update.
REDRAW_SECONDS: Final = 0.2

log = logging.getLogger("protofleet")


def display_for(choice: ProgressChoice, rounds: int, view: str) -> Display:
    if callable(choice):
        return QuietDisplay(rounds, view, choice)
    if choice not in ("auto", "off"):
        raise SettingsError(
            f"progress is {choice!r}; it must be 'auto', 'off' or a function that takes the record of a round"
        )
    if choice == "auto" and (cell := notebook_cell()):
        return NotebookDisplay(rounds, view, cell)
    if choice == "auto" and sys.stderr is not None and sys.stderr.isatty():
        return TerminalDisplay(rounds, Console(stderr=True, highlight=False), view)
    return QuietDisplay(rounds, view)


class QuietDisplay:
    """A display that shows nothing. It keeps the state of the run and calls one function for each round.

    If that function raises an exception, the run ends.
    """

    def __init__(self, rounds: int, view: str, listener: Listener | None = None) -> None:
        self.state = RunState(rounds, time.monotonic(), view)
        self._listener = listener

    def __enter__(self) -> QuietDisplay:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    @property
    def finished(self) -> bool:
        return self.state.finished

    def fold(self, records: Iterable[Mapping[str, Any]]) -> None:
        for record in records:
            self.state.fold(record)

    def print(self, text: str) -> None:
        log.info("%s", text)

    def show_page(self, address: str) -> None:
        """Show a link under the notebook's cell, or print the address on standard error."""
        if (show := shown_in_notebook()) is None:
            print(f"page {address}", file=sys.stderr, flush=True)
            return
        link = html.escape(address)
        show({"text/plain": address, "text/html": f'<a href="{link}" target="_blank">live page</a>'})

    def show_result(self, text: str) -> None:
        """Show nothing, because `run` returns the result."""

    def handle_line(self, line: str) -> None:
        if (event := event_of(line)) is None:
            self.print(line)
            return
        self.state.apply(event)
        if self._listener and event.get("event") == "round":
            self._listener({key: value for key, value in event.items() if key != "event"})


class TerminalDisplay(ProgressDisplay):
    """The display of the `run` command, on standard error."""

    def show_result(self, text: str) -> None:
        """Show nothing, because `run` returns the result."""


class NotebookDisplay(QuietDisplay):
    """A display that shows the progress of a run on one line under the notebook's cell."""

    def __init__(self, rounds: int, view: str, show: Callable[[str], Callable[[str], None]]) -> None:
        super().__init__(rounds, view)
        self._update = show("the run begins")
        self._drawn_at = 0.0

    def handle_line(self, line: str) -> None:
        super().handle_line(line)
        if self.finished or time.monotonic() - self._drawn_at >= REDRAW_SECONDS:
            self._drawn_at = time.monotonic()
            self._update(self.words)

    @property
    def words(self) -> str:
        state = self.state
        stage = "the run is over" if state.finished else state.stage
        mean = f", mean accuracy {state.mean_accuracy:.1%}" if state.mean_accuracy is not None else ""
        left = f", about {state.seconds_left:.0f} s left" if state.seconds_left else ""
        return f"{stage}{mean}{left}"


def notebook_cell() -> Callable[[str], Callable[[str], None]] | None:
    """Return a function that shows a line under the running cell; None if this is not a notebook.

    That function returns a second function, which replaces the text of the line.
    """
    if (display := shown_in_notebook()) is None:
        return None

    def show(text: str) -> Callable[[str], None]:
        handle = display({"text/plain": text}, display_id=True)
        return lambda changed: handle.update({"text/plain": changed}, raw=True)

    return show


def shown_in_notebook() -> Callable[..., Any] | None:
    """Return the function that shows MIME types under the running cell; None if this is not a notebook."""
    python = sys.modules.get("IPython")
    shell = python.get_ipython() if python is not None else None
    if python is None or not hasattr(shell, "kernel"):
        return None
    return partial(python.display.display, raw=True)
