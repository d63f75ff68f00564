"""The file data.json, with the number of a device's training samples of each class.

Every user who can read the device's folder can read the file. The file is not sent to other machines. If a report
of the run is made on this machine, the report shows the numbers in a picture.
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
    """Write the file, but only if its contents change, because writing wears out a flash disk.

    The device also works without the file. So if the file cannot be written, only a warning is logged.
    """
    text = json.dumps({"domain": domain, "counts": list(counts), "names": list(names)}).encode()
    path = folder / NAME
    try:
        if not path.exists() or path.read_bytes() != text:
            Disk(durable=False).replace(path, text, durable=False)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error.strerror)
