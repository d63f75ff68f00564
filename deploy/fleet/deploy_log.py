"""Write the deploy log: the user, the host, the step, the time and the result of each change.

Each entry is one JSON object on a line. New lines are added at the end; no line is changed or removed.
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
