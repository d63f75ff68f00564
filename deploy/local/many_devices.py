"""`protofleet fleet`: many simulated devices on one machine, a process each, started again when one ends in error."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from protofleet.deploy.errors import RunError
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.children import command

SETTINGS: Final = "settings.toml"
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0  # seconds before a device is started again, doubled each time
STEADY_SECONDS: Final = 60.0  # who has run for so long is forgiven what was before
STOP_SECONDS: Final = 15.0
POLL_SECONDS: Final = 0.2


@dataclass
class Member:
    """One device, its process, and how patient we are with it."""

    settings: Path
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    pause: float = FIRST_PAUSE
    again_at: float = field(default=0.0)

    def look(self, now: float) -> str:
        """Start it if that is due; what comes back is news for the log."""
        if self.process is None:
            if now < self.again_at:
                return ""
            self.process = subprocess.Popen(command("protofleet", "device", str(self.settings)))
            self.began = now
            return ""
        code = self.process.poll()
        if code is None:
            return ""
        self.pause = FIRST_PAUSE if now - self.began > STEADY_SECONDS else min(LONGEST_PAUSE, 2 * self.pause)
        self.process, self.again_at = None, now + self.pause
        return f"{self.settings.parent.name} ended with {code}; it is started again in {self.pause:.1f} s"

    def stop(self, deadline: float) -> None:
        if self.process is None:
            return
        try:
            self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()


def run_many(folder: Path) -> None:
    """Until a signal, which ends as a stopped device does."""
    members = [Member(path) for path in sorted(folder.glob(f"*/{SETTINGS}"))]
    if not members:
        raise SettingsError(f"{folder} has no */{SETTINGS}; it must hold a folder for each device")
    stopped: list[str] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: stopped.append(signal.Signals(number).name))
    while not stopped:
        for member in members:
            if news := member.look(time.monotonic()):
                print(f"protofleet: {news}", file=sys.stderr, flush=True)
        time.sleep(POLL_SECONDS)
    for member in members:
        if member.process is not None:
            member.process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for member in members:
        member.stop(deadline)
    raise RunError(f"signal {stopped[0]}")
