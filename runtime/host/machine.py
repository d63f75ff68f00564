"""Describe the machine and software of this process in a line, for the report of a run.

The description uses only files that every user can read. In particular, no GPU is opened, because that would
take some of the GPU's memory.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Final

MOST_LETTERS: Final = 160
MACHINE_FOLLOWS: Final = "; "  # In a device's description, the text between the software and the machine.
BOARD: Final = Path("/proc/device-tree/model")
CPU: Final = Path("/proc/cpuinfo")
MEMORY: Final = Path("/proc/meminfo")
GPUS: Final = "driver/nvidia/gpus/*/information"


def software_words(version: str) -> str:
    """Describe the software, for example as `protofleet 0.1.0, Python 3.11.2, torch 2.13.0`."""
    words = f"protofleet {version}, Python {platform.python_version()}"
    with contextlib.suppress(metadata.PackageNotFoundError):
        words += f", torch {metadata.version('torch')}"
    return words


def party_words(version: str) -> str:
    """Return the software and the machine, which a device sends in its first hello."""
    return f"{software_words(version)}{MACHINE_FOLLOWS}{machine_words()}"


def parts_of(said: str) -> dict[str, str]:
    """Split the text of a device into the software and the machine; a missing part is empty."""
    software, _, machine = said.partition(MACHINE_FOLLOWS)
    return {"software": software, "machine": machine}


def machine_words() -> str:
    """Return the machine in words, as in `Linux aarch64, 4 cores, 8 GB, NVIDIA Jetson Nano Developer Kit`."""
    parts = [
        f"{platform.system()} {platform.machine()}",
        f"{os.cpu_count() or 1} cores",
        memory(),
        model(),
        *gpus(),
    ]
    return plain(", ".join(filter(None, parts)))[:MOST_LETTERS]


def memory() -> str:
    found = re.search(r"^MemTotal:\s+(\d+)", read(MEMORY), re.MULTILINE)
    return f"{int(found[1]) * 1024 / 1e9:.0f} GB" if found else ""


def model() -> str:
    """Return the name of the board, or the name of the processor if the board does not have a name."""
    found = re.search(r"^model name\s*:\s*(.+)$", read(CPU), re.MULTILINE)
    return plain(read(BOARD)) or (plain(found[1]) if found else "")


def gpus() -> list[str]:
    texts = [read(path) for path in sorted(Path("/proc").glob(GPUS))]
    return [plain(found[1]) for text in texts if (found := re.search(r"^Model:\s*(.+)$", text, re.MULTILINE))]


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def plain(text: str) -> str:
    """Return the text in ASCII and without `;`, which separates the software from the machine."""
    return " ".join(re.sub(r"[^ -:<-~]", " ", text).split())
