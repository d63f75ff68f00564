"""Whose the numbers are that a device has kept: its own boots, and the epochs of its coordinator.

With other keys both are counted anew; a new record of the same ones lets go of what lies far ahead of the clock. The
file stands beside device.json, which earlier versions read and write too; where it is missing, the numbers are of
whoever holds the names now.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from protofleet.edge_client.state.file import checksum
from protofleet.protocol.settings.reader import decode
from protofleet.protocol.storage.disk import Disk

NAME: Final = "holders.json"

log = logging.getLogger("protofleet.device")


@dataclass(frozen=True, slots=True)
class Holders:
    own: str = ""
    boot: int = 0  # the highest under it
    coordinator: str = ""


def read_holders(folder: Path) -> Holders:
    path = folder / NAME
    try:
        table = json.loads(path.read_bytes())
        found = decode(Holders, table["holders"])
        if table["seal"] != checksum(table["holders"]) or found.boot < 0:
            raise ValueError("it is not what was written")
    except FileNotFoundError:
        return Holders()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        log.warning("%s is damaged (%.80s); boots are counted on", path, error)
        return Holders()
    return found


def write_holders(folder: Path, disk: Disk, holders: Holders) -> None:
    table = asdict(holders)
    disk.replace(folder / NAME, json.dumps({"seal": checksum(table), "holders": table}).encode())
