"""`protofleet fleet`: many simulated devices on one machine, a process each, restarted when one ends in error."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.deploy.errors import RunError
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime import children

SETTINGS: Final = "settings.toml"
FIRST_BACKOFF, LONGEST_BACKOFF = 0.5, 60.0  # seconds before a device is restarted, doubled each time
STABLE_SECONDS: Final = 60.0  # a device that has run for so long begins again with the first
STOP_SECONDS: Final = 15.0
POLL_SECONDS: Final = 0.2


@dataclass
class DeviceProcess:
    """One device's process, and when it is restarted."""

    settings: Path
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    backoff: float = FIRST_BACKOFF
    restart_at: float = 0.0

    def poll(self, now: float) -> str:
        """Start it if that is due; a line for the log if it has ended."""
        if self.process is None:
            if now >= self.restart_at:
                self.process = subprocess.Popen(children.command("protofleet", "device", str(self.settings)))
                self.started_at = now
            return ""
        code = self.process.poll()
        if code is None:
            return ""
        stable = now - self.started_at > STABLE_SECONDS
        self.backoff = FIRST_BACKOFF if stable else min(LONGEST_BACKOFF, 2 * self.backoff)
        self.process, self.restart_at = None, now + self.backoff
        return f"{self.settings.parent.name} ended with exit code {code}; restart in {self.backoff:.1f} s"


def run_many(folder: Path) -> None:
    """Until a signal, which ends it with RunError as it ends a device."""
    devices = [DeviceProcess(path) for path in sorted(folder.glob(f"*/{SETTINGS}"))]
    if not devices:
        raise SettingsError(f"{folder} has no */{SETTINGS}; it must hold a folder for each device")
    received: list[str] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: received.append(signal.Signals(number).name))
    while not received:
        for device in devices:
            if line := device.poll(time.monotonic()):
                print(f"protofleet: {line}", file=sys.stderr, flush=True)
        time.sleep(POLL_SECONDS)
    children.stop([device.process for device in devices if device.process is not None], STOP_SECONDS)
    raise RunError(f"signal {received[0]}")
