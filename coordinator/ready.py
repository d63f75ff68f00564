"""Check that this process can lead, before it asks the coordinator that leads to end."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.page.serving import page_listener
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.health import TEST_FILE, try_to_write
from protofleet.runtime.metrics_page import metrics_listener

# Bytes that are written to each folder. They are more than a claim writes.
CLAIM_BYTES: Final = 1 << 20


def demand_ready(settings: CoordinatorSettings, folders: Iterable[Path]) -> None:
    """Raise an error if a port or the certificate of the page cannot be used, or if a folder cannot be written."""
    page = settings.page_address()
    page.access()
    for listener in (metrics_listener(settings.endpoint()), page_listener(page)):
        if listener is not None:
            listener.close()
    for folder in folders:
        if problem := try_to_write(folder / TEST_FILE, bytes(CLAIM_BYTES)):
            raise RunError(problem)
