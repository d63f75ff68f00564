"""The settings of a device's board: the folder of its sensor files, and the number of devices on the board."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from protofleet.protocol.settings.bounds import LARGEST_COUNT, Within


@dataclass(frozen=True)
class BoardSettings:
    """The settings of the board whose sensors are read."""

    root: str = "/"
    """Root of the file system whose `sys` and `proc` are read; in a container, the folder of the host's root."""
    shared_by: Annotated[int, Within(1, LARGEST_COUNT)] = 1
    """Number of devices on this board; each device counts an equal part of the board's energy as its own."""
