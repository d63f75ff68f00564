"""Manage the processes of a run: the coordinator and the devices. Each process has a log."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from protofleet.protocol.storage.disk import MIN_FREE
from protofleet.protocol.storage.full_disk import PAUSED
from protofleet.runtime import children
from protofleet.runtime.children import Child, Program, Starter
from protofleet.runtime.launcher import CAN_FORK, Launcher, LauncherError

EXIT_SECONDS = 10.0
# Modules that every coordinator and every device imports. The launcher imports them once, before it forks.
IMPORTED: Final = (
    # Used to look up the address of a host name.
    "encodings.idna",
    "encodings.unicode_escape",
    "protofleet.coordinator.config",
    "protofleet.coordinator.main",
    "protofleet.cli.main",
    "protofleet.edge_client.group.main",
    "protofleet.edge_client.host.loaded_settings",
    "protofleet.edge_client.main",
    "protofleet.methods.fedavg",
    "numpy.random",
    # Used by `with torch.device(...)`.
    "torch.utils._device",
)
# The same without a coordinator.
IMPORTED_BY_DEVICES: Final = tuple(
    name for name in IMPORTED if not name.startswith("protofleet.coordinator.")
)
# The start of a log line about normal work. Such a line does not explain why a child has exited.
OF_WORK: Final = re.compile(r"\S+ \S+ (DEBUG|INFO|WARNING) ")
# Names of signals by their numbers. Real-time signals are missing, because they have no name.
SIGNALS: Final = {number.value: number.name for number in signal.Signals}
# Device files that exist only with CUDA. The first is for a PC, the second for a Jetson, the third for Windows.
CUDA_DEVICES: Final = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/dxg")


def start_launcher() -> Launcher | None:
    """Start the launcher. A program must call this function before it does anything else.

    A later call would be too late: a program with threads cannot be forked, and the launcher would have to import
    modules that the program has already imported. Return None if this process cannot be forked, for example because
    it has a thread.
    """
    with contextlib.suppress(LauncherError):
        return Launcher(IMPORTED, here="torch" not in sys.modules) if CAN_FORK else None
    return None


def uses_cuda(compute: str) -> bool:
    """Return whether devices with this value of `compute` use CUDA, which does not work after a fork.

    This function only looks for device files. It makes no call to CUDA.
    """
    return compute == "cuda" or (compute == "auto" and any(Path(name).exists() for name in CUDA_DEVICES))


class Processes:
    """The child processes of a run.

    Each child has its own session. Therefore Ctrl-C reaches only this process, which then stops the children.
    """

    def __init__(
        self, folder: Path, starter: Starter, reworded: Callable[[str], str] = lambda text: text
    ) -> None:
        """Keep the folder and the starter.

        `reworded` changes the text of a child before the user sees it.
        """
        self.folder, self._starter, self.reworded = folder, starter, reworded
        self._logs = folder / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._children: dict[str, Child] = {}
        self._starters: dict[str, Starter] = {}
        self._asked = False

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        children.stop(self._children.values(), EXIT_SECONDS, self._asked)

    def ask_to_end(self) -> None:
        """Send SIGTERM to all children. The end of the `with` block waits for them."""
        self._asked = True
        for child in self._children.values():
            if child.poll() is None:
                child.terminate()

    def start(self, name: str, *arguments: str, piped: bool = False, starter: Starter | None = None) -> Child:
        """Start a child with `starter`, or with the common starter if `starter` is None."""
        self._starters[name] = starter or self._starter
        with self._log(name).open("a") as log:
            out = subprocess.PIPE if piped else log.fileno()
            child = self._starters[name].start(Program(name, "protofleet", arguments), out, log.fileno())
        self._children[name] = child
        return child

    def kill(self, name: str) -> None:
        """Kill a child and wait for its end."""
        self._children[name].kill()
        self._children[name].wait()

    def failed(self) -> dict[str, str]:
        """Return the reason for each child that has exited with an error."""
        return {n: self.reason(n) for n, c in self._children.items() if c.poll() not in (None, 0)}

    def exit_code(self, name: str) -> int | None:
        """Return the exit code of a child, or None while the child runs.

        The exit code is below 0 if a signal has killed the child.
        """
        return self._children[name].poll()

    def reason(self, name: str) -> str:
        """Return the reason why a child has exited. It is the last line of the child's log.

        On a full disk, the log may be empty. A child that was ended by a signal or by `os._exit` has not
        logged a reason, so the last line is about something else. In these cases, the reason names the disk,
        the signal or the exit code.
        """
        if problem := self.disk_problem() or self._starter.problem or self._starters[name].problem:
            return problem
        last, code = self._last_line(name), self.exit_code(name) or 0
        if code > 0 and last and not OF_WORK.match(last):
            return self.reworded(last.removeprefix("protofleet: "))
        how = f"was killed by {SIGNALS.get(-code, -code)}" if code < 0 else f"ended with exit code {code}"
        return f"its process {how} and said nothing of why; {self._log(name)} has what it did until then"

    def disk_problem(self) -> str:
        paused = any(self._last_line(name).endswith(PAUSED) for name in self._children)
        if not paused and shutil.disk_usage(self.folder).free >= MIN_FREE:
            return ""
        return f"the disk that holds {self.folder} is full; make room and run the same command again"

    def _last_line(self, name: str) -> str:
        lines = children.last_lines(self._log(name))
        # In a log, the indented lines of a traceback follow the message of the error.
        said = [line for line in lines if not line.startswith("  ")]
        return (said or lines or [""])[-1]

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"
