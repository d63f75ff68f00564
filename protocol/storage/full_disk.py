"""Log once that the disk is full, and once that it has space again. The program pauses in between."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

# End of the log line of a program whose disk is full; the command `run` searches for these words.
PAUSED: Final = "until there is room"


class FullDiskLog:
    def __init__(self, log: logging.Logger, folder: Path, pauses: str, goes_on: str) -> None:
        """Create the log of one program for one folder.

        `pauses` is a part of the log line for a full disk, and says which work the program stops. `goes_on` is a part
        of the log line for a disk that has space again, and says which work continues.
        """
        self._log, self._folder, self._pauses, self._goes_on = log, folder, pauses, goes_on
        self.problem = ""  # the reason while the disk is full, otherwise ""

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
