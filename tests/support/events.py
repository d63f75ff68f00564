"""The events that a coordinator has said on its standard output, among the lines of its log."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any


def events_in(log: Path) -> list[dict[str, Any]]:
    """Of one that was killed the last line may be torn."""
    found = []
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith('{"event": '):
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found
