"""Where a device finds the sensors of its board, and with how many others it shares them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from protofleet.protocol.settings.bounds import LARGEST_COUNT, Within


@dataclass(frozen=True)
class BoardSettings:
    root: str = "/"  # file system whose sys and proc are read; in a container, where the host's is mounted
    # Devices on this board; each is said to have drawn so large a part of what the board draws.
    shared_by: Annotated[int, Within(1, LARGEST_COUNT)] = 1
