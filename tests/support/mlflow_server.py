"""`mlflow server`, which a test can kill with SIGKILL and start again with the same database and files."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Final

PATIENCE_SECONDS: Final = 240.0  # Its start takes five seconds of one core.
QUIETLY: Final = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


class MLflowServer:
    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = str(free.getsockname()[1])
        self.address, self._folder = f"http://127.0.0.1:{self._port}", folder
        self.start()

    def start(self) -> None:
        """Start the server and return at once; call `wait` to wait until the server answers."""
        where = ("--backend-store-uri", f"sqlite:///{self._folder}/mlflow.db")
        where += ("--artifacts-destination", str(self._folder / "files"))
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", "--port", self._port, "--workers", "1", *where],
                env={**os.environ, **QUIETLY},
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def wait(self) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.address}/health", timeout=5):
                return
            time.sleep(0.1)
        raise AssertionError((self._folder / "log").read_text())

    def kill(self) -> None:
        """Kill the server and its workers with SIGKILL, without waiting for their work."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
