"""The owner's command models.on_model, which runs for each new version, without a shell and for at most 30 s."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

HOOK_SECONDS: Final = 30.0
MODEL: Final = "PROTOFLEET_MODEL"  # environment variable of the command, with the folder of the version
SHOWN: Final = 200  # the log shows this number of characters from the end of the command's standard error

log = logging.getLogger("protofleet.device")


class ModelHook:
    """The runner of the owner's command. It has its own thread, and waits until one run ends before the next run.

    If new versions arrive while the command runs, the command runs once more, with the newest version.
    """

    def __init__(self, command: Sequence[str], seconds: float = HOOK_SECONDS) -> None:
        self._command, self._seconds = list(command), seconds
        self.failures = 0
        self._lock = threading.Lock()
        self._next: Path | None = None
        self._thread: threading.Thread | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def changed(self, version: Path) -> None:
        with self._lock:
            self._next = version
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._work, name="on_model", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Kill the command if it still runs, and do not run it again; call this when the device ends."""
        with self._lock:
            self._stopped, self._next = True, None
            if self._child is not None:
                _kill(self._child)

    def _work(self) -> None:
        while (version := self._taken()) is not None:
            problem = self._problem(version)
            if self._stopped:
                return
            if problem:
                self.failures += 1
                log.warning(
                    "models.on_model (%s) has failed for %s: %s", self._command[0], version.name, problem
                )
            else:
                log.debug("models.on_model (%s) was told of %s", self._command[0], version.name)

    def _taken(self) -> Path | None:
        with self._lock:
            version, self._next = self._next, None
            if version is None:
                self._thread = None
            return version

    def _problem(self, version: Path) -> str:
        """Run the command, and return why it failed, or ""."""
        # The output goes to a file. With a pipe, a program that the command leaves running would keep the pipe open.
        with tempfile.TemporaryFile() as said:
            try:
                child = self._started(version, said)
                code = child.wait(self._seconds)
            except (OSError, ValueError) as error:
                return str(error)
            except subprocess.TimeoutExpired:
                _kill(child)
                child.wait()
                return f"it did not end within {self._seconds:g} s and was killed"
            finally:
                self._child = None
            said.seek(max(0, said.seek(0, os.SEEK_END) - SHOWN))
            words = " ".join(said.read().decode(errors="replace").split())
        return f"exit code {code}{f': {words}' if words else ''}" if code else ""

    def _started(self, version: Path, said: IO[bytes]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped:
                raise OSError("the device ends")
            environment = {**os.environ, MODEL: str(version)}
            self._child = subprocess.Popen(
                self._command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
                start_new_session=True,
            )  # fmt: skip
            return self._child


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a process and all processes that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
