"""The processes of a run: coordinator and devices, each with a log, and what they are started by."""

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
# What a coordinator or a device would import, whatever it does.
IMPORTED: Final = (
    "encodings.idna",  # of a host's name, for its address
    "encodings.unicode_escape",
    "protofleet.coordinator.config",
    "protofleet.coordinator.main",
    "protofleet.deploy.cli.main",
    "protofleet.edge_client.group.main",
    "protofleet.edge_client.host.loaded_settings",
    "protofleet.edge_client.main",
    "protofleet.methods.fedavg",
    "numpy.random",
    "torch.utils._device",  # of `with torch.device(...)`
)
OF_WORK: Final = re.compile(r"\S+ \S+ (DEBUG|INFO|WARNING) ")  # a line of a log that is nobody's last word
SIGNALS: Final = {number.value: number.name for number in signal.Signals}  # real-time ones have no name
CUDA_DEVICES: Final = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/dxg")  # a PC's, a Jetson's, of Windows


def start_launcher() -> Launcher | None:
    """For a program, as its first act: else it has threads, and what it has imported is imported a second time.

    None where this process cannot be forked, as one with a thread already.
    """
    with contextlib.suppress(LauncherError):
        return Launcher(IMPORTED, here="torch" not in sys.modules) if CAN_FORK else None
    return None


def uses_cuda(compute: str) -> bool:
    """CUDA survives no fork. That there is a device is seen without asking CUDA."""
    return compute == "cuda" or (compute == "auto" and any(Path(name).exists() for name in CUDA_DEVICES))


class Processes:
    """Each runs in a session of its own, so that Ctrl-C reaches only their parent, which stops them."""

    def __init__(
        self, folder: Path, starter: Starter, reworded: Callable[[str], str] = lambda text: text
    ) -> None:
        """`reworded` is what this machine's user is told in place of a child's words."""
        self.folder, self._starter, self.reworded = folder, starter, reworded
        self._logs = folder / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._children: dict[str, Child] = {}
        self._starters: dict[str, Starter] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        children.stop(self._children.values(), EXIT_SECONDS)

    def start(self, name: str, *arguments: str, piped: bool = False, starter: Starter | None = None) -> Child:
        """`starter` is another one than that of all."""
        self._starters[name] = starter or self._starter
        with self._log(name).open("a") as log:
            out = subprocess.PIPE if piped else log.fileno()
            child = self._starters[name].start(Program(name, "protofleet", arguments), out, log.fileno())
        self._children[name] = child
        return child

    def wait(self) -> None:
        """Wait for all to exit by themselves; leaving the block stops those that have not."""
        children.wait(self._children.values(), EXIT_SECONDS)

    def failed(self) -> dict[str, str]:
        """Name -> reason, for children that have exited with an error."""
        return {n: self.reason(n) for n, c in self._children.items() if c.poll() not in (None, 0)}

    def exit_code(self, name: str) -> int | None:
        """None while it runs; of one that a signal has killed it is below 0."""
        return self._children[name].poll()

    def reason(self, name: str) -> str:
        """Why a child has exited, by the last line of its log; on a full disk the log may be empty.

        Whom a signal or `os._exit` has ended says nothing of it: what stands there last is about something else.
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
        # The lines of a traceback are indented, and stand behind its message.
        said = [line for line in lines if not line.startswith("  ")]
        return (said or lines or [""])[-1]

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"
