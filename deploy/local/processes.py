"""The processes of a run: coordinator and devices, each with a log."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import IO

from protofleet.protocol.storage.disk import MIN_FREE, PAUSED
from protofleet.runtime import children

EXIT_SECONDS = 10.0


class Processes:
    """They have sessions of their own, so that Ctrl-C reaches only their parent, which stops them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._logs = folder / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._children: dict[str, subprocess.Popen[str]] = {}
        self._files: list[IO[str]] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        children.stop(self._children.values(), EXIT_SECONDS)
        for file in self._files:
            file.close()

    def start(self, name: str, *arguments: str, piped: bool = False) -> subprocess.Popen[str]:
        log = self._log(name).open("a")
        self._files.append(log)
        self._children[name] = child = subprocess.Popen(
            children.command("protofleet", *arguments),
            stdout=subprocess.PIPE if piped else log, stderr=log, stdin=subprocess.DEVNULL,
            text=True, start_new_session=True, env=children.environment_of_child(),
        )  # fmt: skip
        return child

    def wait(self) -> None:
        """Let all end by themselves; whichever does not is stopped afterwards."""
        children.wait(self._children.values(), EXIT_SECONDS)

    def failed(self) -> dict[str, str]:
        """Children that ended in error -> why."""
        return {n: self.reason(n) for n, c in self._children.items() if c.poll() not in (None, 0)}

    def reason(self, name: str) -> str:
        """Why a child ended, by the last line of its log; on a full disk the log may be empty."""
        if problem := self.disk_problem():
            return problem
        return self._last_line(name).removeprefix("protofleet: ") or "its log is empty"

    def disk_problem(self) -> str:
        waiting = any(self._last_line(name).endswith(PAUSED) for name in self._children)
        if not waiting and shutil.disk_usage(self.folder).free >= MIN_FREE:
            return ""
        return f"the disk that holds {self.folder} is full; make room and run the same command again"

    def _last_line(self, name: str) -> str:
        lines = children.last_lines(self._log(name))
        return lines[-1] if lines else ""

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"
