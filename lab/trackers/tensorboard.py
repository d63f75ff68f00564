"""Write event files for TensorBoard: one scalar for each name, and the settings as text.

A run that is continued begins with a `purge_step`. An earlier process may have written later steps and ended
before it recorded them. Because of the `purge_step`, TensorBoard ignores these steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from torch.utils.tensorboard import SummaryWriter

from protofleet.lab.report.flat_names import Numbers
from protofleet.lab.trackers.tracker import Begun, Ending, Start

# Name of a folder inside the run's folder. `tensorboard --logdir runs` finds the folders of all runs.
FOLDER: Final = "tensorboard"


class TensorBoard:
    def __init__(self, folder: Path) -> None:
        self._folder, self._last, self._settings = folder, 0, False
        self._open = contextlib.ExitStack()

    def begin(self, run: Start) -> Begun:
        is_there = any(self._folder.glob("events.out.tfevents.*"))
        first = run.next_round if run.known_as and is_there else 1
        self._writer = SummaryWriter(str(self._folder), purge_step=first if first > 1 else 0)
        self._open.callback(self._writer.close)
        self._last = first - 1
        if first == 1:
            self._write_settings(run.settings)
        return Begun(str(self._folder), first)

    def write(self, rounds: Sequence[tuple[int, Numbers]]) -> None:
        for number, numbers in rounds:
            for name, value in numbers.items():
                self._writer.add_scalar(name, value, number)
            self._last = number
        self._writer.flush()

    def end(self, ending: Ending) -> None:
        if not self._settings and self._last and ending.settings:
            self._write_settings(ending.settings)
        for name, value in ending.numbers.items():
            self._writer.add_scalar(name, value, self._last)

    def close(self) -> None:
        self._open.close()

    def _write_settings(self, settings: Mapping[str, str]) -> None:
        if settings:
            rows = (f"| {key} | {cell(value)} |" for key, value in settings.items())
            self._writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *rows]), 0)
            self._settings = True


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
