"""What a program says that pauses on a full disk: once when it is found full, and once when there is room again."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

PAUSED: Final = "until there is room"  # ends the line of one whose disk is full; `run` looks for it


class FullDiskLog:
    def __init__(self, log: logging.Logger, folder: Path, pauses: str, goes_on: str) -> None:
        """`pauses` and `goes_on`: what the program does then, in the words of the two lines."""
        self._log, self._folder, self._pauses, self._goes_on = log, folder, pauses, goes_on
        self.problem = ""  # why the disk is said to be full, until there is room again

    def found_full(self, why: str) -> None:
        if not self.problem:
            self._log.error(
                "the disk that holds %s is full (%s): %s %s", self._folder, why, self._pauses, PAUSED
            )
        self.problem = why

    def found_room(self) -> None:
        if self.problem:
            self._log.warning(
                "there is room again on the disk that holds %s; %s", self._folder, self._goes_on
            )
        self.problem = ""
