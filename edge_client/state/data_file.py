"""data.json: the number of samples of each class that a device learns from.

Any user who can read the device's folder can read the file. It is not sent to any other machine; the report
of a run on this machine draws it.
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
    """Write the file only if its contents change, because writing wears out flash.

    Nothing depends on the file, so a full disk is no error.
    """
    text = json.dumps({"domain": domain, "counts": list(counts), "names": list(names)}).encode()
    path = folder / NAME
    try:
        if not path.exists() or path.read_bytes() != text:
            Disk(durable=False).replace(path, text, durable=False)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error.strerror)
