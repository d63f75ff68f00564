"""The file data.json, with the number of training samples of each class of a device.

All users who can read the device's folder can read the file. The file is not sent to other machines. The report of
a run on this machine draws a picture of the numbers.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from protofleet.protocol.storage.disk import Disk

NAME: Final = "data.json"

log = logging.getLogger("protofleet.device")


def write_data_file(folder: Path, domain: str, counts: Sequence[int], names: Sequence[str]) -> None:
    """Write the file if its contents change; otherwise do not write, because writing wears out flash.

    The device works without the file, so on a full disk only a warning is logged.
    """
    text = json.dumps({"domain": domain, "counts": list(counts), "names": list(names)}).encode()
    path = folder / NAME
    try:
        if not path.exists() or path.read_bytes() != text:
            Disk(durable=False).replace(path, text, durable=False)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error.strerror)
