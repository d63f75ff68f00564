"""The place of the sensors of a device's board, and the number of devices that share them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from protofleet.protocol.settings.bounds import LARGEST_COUNT, Within


@dataclass(frozen=True)
class BoardSettings:
    root: str = "/"  # file system whose sys and proc are read; in a container, the mount of the host's
    # Number of devices on this board; each counts this part (1 / number) of the board's energy as its own.
    shared_by: Annotated[int, Within(1, LARGEST_COUNT)] = 1
