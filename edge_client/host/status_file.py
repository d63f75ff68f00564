"""The status file of a device, which health checks and `protofleet deploy` read.

The file should be in memory (/run), because it is written at each change of the status.
"""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from protofleet.edge_client.view import AgentView
from protofleet.protocol.security.keyfiles import PUBLIC
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import Disk

log = logging.getLogger("protofleet.device")


@dataclass(frozen=True, slots=True)
class Status:
    pid: int
    boot: int
    started: int  # Unix time of the start of the process
    software: str
    settings: int  # version of signed settings; 0 if the settings are not signed
    connected: bool = False  # whether the broker has accepted the connection
    # Whether this process has received a signed message that the coordinator sent only to this device.
    heard: bool = False
    run: str = ""
    round: int = 0  # the last round for which the device has made an update
    working: bool = False
    waiting: bool = False  # whether an update has no receipt yet
    accepted: int = 0  # number of this process's updates that the coordinator has accepted
    refused: int = 0
    idle: bool = (
        False  # whether the run is over or the coordinator has no run, and no other run has begun yet
    )
    draining: bool = False
    gathering: bool = False  # whether the coordinator waits for more devices before the first task
    over: str = ""  # reason why the device has ended; empty while it runs


def read_status(path: Path) -> Status | None:
    try:
        return Status(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


class StatusFile:
    def __init__(self, path: Path, software: str, settings: int) -> None:
        if not path.parent.is_dir():
            raise SettingsError(
                f"status is {str(path)!r}, but there is no folder {path.parent}: make the folder, or name a file in "
                "another folder; without the setting status, no status file is written"
            )
        self._path, self._software, self._settings = path, software, settings
        self._started, self._written, self._failed = int(time.time()), "", False

    def status_of(self, device: AgentView, error: str = "") -> Status:
        receipts = device.receipts
        return Status(
            os.getpid(), device.boot, self._started, self._software, self._settings,
            connected=device.connected, heard=device.coordinator_answered, run=device.run,
            round=device.last_round, working=device.working, waiting=device.awaits_receipt,
            accepted=receipts.get("accepted", 0), refused=receipts.get("refused", 0) + receipts.get("late", 0),
            idle=device.idle, draining=device.draining, gathering=device.gathering,
            over=error or (device.problem if device.finished else ""),
        )  # fmt: skip

    def write(self, device: AgentView, error: str = "") -> None:
        """Write the status if it has changed; `error` is the reason if an error has ended the device."""
        text = json.dumps(asdict(self.status_of(device, error)), indent=1) + "\n"
        if text == self._written:
            return
        try:
            # All users may read this file, because health checks run as other users. All other files of this
            # process are private.
            Disk().replace(self._path, text.encode(), PUBLIC, durable=False)
        except OSError as error:  # The device goes on without the file, because only other programs need it.
            if not self._failed:
                log.warning(
                    "the status file %s cannot be written: %s; the device will try again",
                    self._path,
                    error.strerror,
                )
            self._failed = True
        else:
            self._written, self._failed = text, False
