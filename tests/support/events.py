"""The events that a coordinator has printed on its standard output, between other lines of its log."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any


def events_in(log: Path) -> list[dict[str, Any]]:
    """Return the events of a log; the last line may be incomplete, if its coordinator was killed."""
    found = []
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith('{"event": '):
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found
