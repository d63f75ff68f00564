"""The holders of the keys with which the stored numbers were sent.

The numbers are the device's boots and the coordinator's epochs. If a party gets other keys, its numbers start again.
If the same keys get a new record, numbers that are far ahead of the clock are dropped. The holders are not in
device.json, because earlier versions also read and write device.json. If the file of the holders is missing, the
numbers are treated as those of the present keys.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from protofleet.edge_client.state.file import CONTENT_ERRORS, checksum, read_checked
from protofleet.protocol.settings.reader import decode
from protofleet.protocol.storage.disk import Disk

NAME: Final = "holders.json"

log = logging.getLogger("protofleet.device")


@dataclass(frozen=True, slots=True)
class Holders:
    own: str = ""
    boot: int = 0  # the highest boot with these keys
    coordinator: str = ""


def read_holders(folder: Path) -> Holders:
    path = folder / NAME
    try:
        table = json.loads(path.read_bytes())
        found = decode(Holders, read_checked(table, "holders"))
        if found.boot < 0:
            raise ValueError(f"boot is {found.boot}")
    except FileNotFoundError:
        return Holders()
    except CONTENT_ERRORS as error:
        log.warning("%s is damaged (%.80s); the next boot number is above the last boot number", path, error)
        return Holders()
    return found


def write_holders(folder: Path, disk: Disk, holders: Holders) -> None:
    table = asdict(holders)
    disk.replace(folder / NAME, json.dumps({"seal": checksum(table), "holders": table}).encode())
