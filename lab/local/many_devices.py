"""Implement `protofleet fleet`: many devices on one machine, in processes that are restarted after a failure."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from protofleet.edge_client.data.settings import DataSettings
from protofleet.lab.local.device_launcher import starter_of_devices
from protofleet.lab.local.one_address import demand_one_address
from protofleet.lab.local.processes import IMPORTED, uses_cuda
from protofleet.protocol.settings.reader import SettingsError, decode, read_toml
from protofleet.runtime import children
from protofleet.runtime.children import Child, Interpreters, Program, Starter
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.launcher import CAN_FORK, Launcher
from protofleet.runtime.restart_backoff import RestartBackoff

# Names of a device's settings file. `protofleet run` writes device.toml.
SETTINGS: Final = ("settings.toml", "device.toml")
STOP_SECONDS: Final = 15.0
POLL_SECONDS: Final = 0.2
# The numbers of standard output and standard error, which the device processes share with this process.
OUTPUT, ERRORS = 1, 2


@dataclass
class SupervisedProcess:
    """The process of one or several devices. After a failure, it is restarted."""

    settings: tuple[Path, ...]  # The settings file of each device in the process.
    starter: Starter
    changes: tuple[str, ...] = ()  # Changes to the settings of all devices, each in the form of --set.
    process: Child | None = None
    started_at: float = 0.0
    backoff: RestartBackoff = field(default_factory=RestartBackoff)
    restart_at: float = 0.0
    # True after exit code 0: the run of the devices is over, or the devices were drained.
    finished: bool = False

    @property
    def name(self) -> str:
        names = [path.parent.name for path in self.settings]
        return (
            names[0]
            if len(names) == 1
            else f"the process of {names[0]} to {names[-1]} ({len(names)} devices)"
        )

    def poll(self, now: float) -> str:
        """Start the process if it does not run and the time for its next start has come.

        If the process has just exited, return a line for the log. Otherwise return "".
        """
        if self.process is None:
            if now >= self.restart_at:
                self.process = self._start()
                self.started_at = now
            return ""
        code = self.process.poll()
        if code is None:
            return ""
        if code == 0:
            self.process, self.finished, self.restart_at = None, True, float("inf")
            return f"{self.name} has finished"
        pause = self.backoff.failed(now - self.started_at)
        self.process, self.restart_at = None, now + pause
        return f"{self.name} ended with exit code {code}; restart in {pause:.1f} s"

    def _start(self) -> Child:
        """Start the process. The process prints to the output of this process."""
        changes = [word for change in self.changes for word in ("--set", change)]
        arguments = ["device", *map(str, self.settings), *changes]
        return self.starter.start(Program(self.name, "protofleet", arguments), OUTPUT, ERRORS)


def run_devices(folder: Path, changes: Sequence[str] = (), processes: int = 0) -> None:
    """Run the devices of a folder until all of them have finished.

    If this process receives SIGINT or SIGTERM, it stops the devices and raises RunError. The command for a single
    device reacts to these signals in the same way. If `processes` is 0, each device has its own process.
    """
    settings = sorted(path for name in SETTINGS for path in folder.glob(f"*/{name}"))
    if not settings:
        raise SettingsError(
            f"{folder} has no */{' or */'.join(SETTINGS)}; it must contain a folder for each device"
        )
    demand_one_address(settings, changes)
    received: list[str] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: received.append(signal.Signals(number).name))
    count = min(processes or len(settings), len(settings))
    with starter_of(settings) as launcher, starter_of_devices(launcher, data_of(settings), count) as starter:
        devices = [
            SupervisedProcess(tuple(settings[i::count]), starter, tuple(changes)) for i in range(count)
        ]
        while not received and not all(device.finished for device in devices):
            for device in devices:
                if line := device.poll(time.monotonic()):
                    print(f"protofleet: {line}", file=sys.stderr, flush=True)
            time.sleep(POLL_SECONDS)
        children.stop([device.process for device in devices if device.process is not None], STOP_SECONDS)
    if received:
        raise RunError(f"signal {received[0]}")


def starter_of(settings: list[Path]) -> contextlib.AbstractContextManager[Starter]:
    if not CAN_FORK or any(uses_cuda(compute(path)) for path in settings):
        return contextlib.nullcontext(Interpreters())
    return Launcher(IMPORTED)


def data_of(settings: list[Path]) -> dict[str, DataSettings]:
    found = {}
    for path in settings:
        with contextlib.suppress(SettingsError):  # The device reports this error when it reads its settings.
            found[str(path)] = decode(DataSettings, read_toml(path).get("data", {}))
    return found


def compute(settings: Path) -> str:
    """Return the value of `compute` in a settings file.

    If the file cannot be read, return "cpu". The device reports the error when it reads its settings.
    """
    with contextlib.suppress(SettingsError):
        return str(read_toml(settings).get("compute", "auto"))
    return "cpu"
