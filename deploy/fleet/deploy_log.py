"""Write the deploy log: who changed what on which host, when, and with which result.

Each entry is one JSON object on a line. Lines are only added.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any


def current_user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


class DeployLog:
    def __init__(self, path: Path) -> None:
        self._path, self._lock, self._who = path, threading.Lock(), current_user()

    def append(self, host: str, step: str, result: str, **more: Any) -> None:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        row = {"when": when, "who": self._who, "host": host, "step": step, "result": result, **more}
        with self._lock, self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
