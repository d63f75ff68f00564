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
            f"no coordinator has a queue of runs in {runs}; it may still be starting. Otherwise start `protofleet "
            "coordinator FILE` with a file that names no run, or name the `folder` of that file with --service"
        )
    service = "" if runs == Path("runs") else f" --service {runs}"
    return ask_socket(
        queue_folder(runs), {"reason": "", **request}, f"no coordinator with the queue of {runs}",
        f"protofleet runs --log{service}",
    )  # fmt: skip


def ask_socket(folder: Path, request: Mapping[str, Any], nobody: str, look: str) -> dict[str, Any]:
    """Send a command to the process that listens in this folder, and return its response.

    `nobody` begins the message of the error if no process answers, and `look` is the command that shows earlier
    commands.
    """
    from protofleet.protocol.security.operators import SHOWS
    from protofleet.runtime.command.errors import RunError
    from protofleet.runtime.control_socket import NobodyListensError, NoResponseError, send

    request = {"id": secrets.token_hex(16), **request}
    was_sent, cause = False, ""
    for _ in range(2):
        try:
            return send(folder, request)
        except NobodyListensError as error:
            # The same id makes sure that the command has one effect, although it is sent twice.
            was_sent |= isinstance(error, NoResponseError)
            cause = f" ({error})" if str(error) else ""
    if was_sent and request["verb"] not in SHOWS:
        end = f"it is not known whether the command has had an effect: `{look}` shows it"
    elif was_sent:
        end = "see its log"
    else:
        end = (
            "it may still be starting. Otherwise start it, or send the command on the machine and as the user of the "
            "coordinator"
        )
    raise RunError(f"{nobody} answers on this machine{cause}; {end}")
