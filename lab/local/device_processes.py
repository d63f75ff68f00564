"""Manage the device processes of a run, and restart processes that were killed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from protofleet.lab.local.processes import Processes
from protofleet.runtime.children import Starter

# A process of several devices may be killed by a signal, for example when memory runs out. It is restarted at most
# this number of times.
MAX_RESTARTS: Final = 3


@dataclass
class DeviceProcess:
    """A process with one or several devices.

    A process of one device has the name of the device. Other processes are called devices-1, devices-2 and so
    on. The log has the name of the process.
    """

    name: str
    devices: tuple[str, ...]
    folder: Path  # The folder of the run.
    restarts: int = 0

    @property
    def _ended_file(self) -> Path:
        return self.folder / "logs" / f"{self.name}.ended.json"

    def start(self, processes: Processes, starter: Starter) -> None:
        files = [str(self.folder / "devices" / name / "device.toml") for name in self.devices]
        if len(files) == 1:
            processes.start(self.name, "device", *files, starter=starter)
            return
        self._ended_file.unlink(
            missing_ok=True
        )  # An earlier process may have left this file, which has the reasons why devices have failed.
        processes.start(self.name, "device", *files, "--ended", str(self._ended_file), starter=starter)

    def restart_if_killed(self, processes: Processes, starter: Starter) -> None:
        code = processes.exit_code(self.name)
        if len(self.devices) > 1 and code is not None and code < 0 and self.restarts < MAX_RESTARTS:
            self.restarts += 1
            self.start(processes, starter)

    def failed(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """Return the reason for each failed device of this process.

        `reasons` has the reasons by process name. If a process of several devices exits by itself, it has
        written the reasons of its devices to a file, which is read here.
        """
        whole = dict.fromkeys(self.devices, reasons[self.name]) if self.name in reasons else {}
        return whole | self._ended()

    def _ended(self) -> dict[str, str]:
        try:
            found = json.loads(self._ended_file.read_text())
        except FileNotFoundError:
            return {}
        return {str(name): str(reason) for name, reason in found.items()}


@dataclass(frozen=True)
class DeviceProcesses:
    """All device processes of a run."""

    processes: Processes
    starter: Starter
    each: Sequence[DeviceProcess] = field(default_factory=list)
    # The names of the processes that had exit code 0 at the last check.
    _done: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, groups: Sequence[tuple[str, ...]], processes: Processes, starter: Starter) -> DeviceProcesses:
        names = [group[0] if len(group) == 1 else f"devices-{i}" for i, group in enumerate(groups, 1)]
        folder = processes.folder
        members = [DeviceProcess(name, group, folder) for name, group in zip(names, groups, strict=True)]
        return cls(processes, starter, members)

    def start(self) -> None:
        for process in self.each:
            process.start(self.processes, self.starter)

    def states(self) -> list[str]:
        """Return the names of the processes that have not ended."""
        return [process.name for process in self.each if self.processes.exit_code(process.name) is None]

    def keep_running(self) -> None:
        """Start processes again that were killed."""
        for process in self.each:
            process.restart_if_killed(self.processes, self.starter)

    def failed(self) -> dict[str, str]:
        """Return the reason for each failed device. Call this only while the run goes on."""
        reasons, found = self.processes.failed() | self._done_too_early(), dict[str, str]()
        for process in self.each:
            found |= process.failed(reasons)
        return found

    def stop(self) -> None:
        """Do nothing, because the block of `processes` ends the devices together with the coordinator."""

    def _done_too_early(self) -> dict[str, str]:
        """Return the reasons for processes that ended with exit code 0 before the run was over.

        For example, a half may call `os._exit(0)`. After the end of the run, exit code 0 is not a failure. But it is
        possible that the run is over and that this program has not yet read the line in which the coordinator
        reports the end. Therefore a process is reported only if two checks in a row find exit code 0.
        """
        done = {process.name for process in self.each if self.processes.exit_code(process.name) == 0}
        twice = done & self._done
        self._done.clear()
        self._done.update(done)
        return {name: self.processes.reason(name) for name in twice}

    def __str__(self) -> str:
        """Describe the number of devices and of processes, for the terminal."""
        devices = sum(len(process.devices) for process in self.each)
        shared = f"{devices} in {len(self.each)} process" + ("es" if len(self.each) > 1 else "")
        return shared if devices > len(self.each) else f"{devices}, a process each"
