"""Send a command to the coordinator that listens on a socket of this machine."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def has_queue(runs: Path) -> bool:
    """Return whether a coordinator has a queue of runs in this folder."""
    from protofleet.coordinator.queue.folder import queue_folder

    return queue_folder(runs).is_dir()


def ask_queue(runs: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """Send a command to the coordinator that conducts the queue of runs in this folder, and return its response."""
    from protofleet.coordinator.queue.folder import queue_folder
    from protofleet.protocol.settings.reader import SettingsError

    if not has_queue(runs):
        raise SettingsError(
            f"no coordinator has a queue of runs in {runs}; start `protofleet coordinator FILE` with a file that "
            "names no run, or name the `folder` of that file with --service"
        )
    return ask_socket(
        queue_folder(runs), {"reason": "", **request}, f"no coordinator with the queue of {runs}"
    )


def ask_socket(folder: Path, request: Mapping[str, Any], nobody: str) -> dict[str, Any]:
    """Send a command to the process that listens in this folder, and return its response.

    `nobody` begins the message of the error if no process answers.
    """
    from protofleet.runtime.command.errors import RunError
    from protofleet.runtime.control_socket import NobodyListensError, send

    request = {"id": secrets.token_hex(16), **request}
    for tries_left in (1, 0):
        try:
            return send(folder, request)
        except NobodyListensError as error:
            # The same id makes sure that the command has one effect, although it is sent twice.
            if not tries_left:
                raise RunError(
                    f"{nobody} answers on this machine ({error}); start the coordinator, or send "
                    "the command on the machine and as the user of the coordinator"
                ) from None
    raise AssertionError("the loop returns or raises")
