"""The device processes of a run: which devices share one, which have failed, and which are restarted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from protofleet.deploy.local.processes import Processes
from protofleet.runtime.children import Starter

MAX_RESTARTS: Final = 3  # of a process of many devices that a signal has killed, as when memory runs out


@dataclass
class DeviceProcess:
    """A process and its devices. That of one device has the device's name and log; others are devices-1 and so on."""

    name: str
    devices: tuple[str, ...]
    folder: Path  # of the run
    restarts: int = 0

    @property
    def _ended_file(self) -> Path:
        return self.folder / "logs" / f"{self.name}.ended.json"

    def start(self, processes: Processes, starter: Starter) -> None:
        files = [str(self.folder / "devices" / name / "device.toml") for name in self.devices]
        if len(files) == 1:
            processes.start(self.name, "device", *files, starter=starter)
            return
        self._ended_file.unlink(missing_ok=True)  # of an earlier start
        processes.start(self.name, "device", *files, "--ended", str(self._ended_file), starter=starter)

    def restart_if_killed(self, processes: Processes, starter: Starter) -> None:
        code = processes.exit_code(self.name)
        if len(self.devices) > 1 and code is not None and code < 0 and self.restarts < MAX_RESTARTS:
            self.restarts += 1
            self.start(processes, starter)

    def failed(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """Device -> reason; `reasons` are those of processes.

        A process of many that exits by itself has written the reasons of its devices.
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
    # Of processes, whose exit code said at the last look that their work was done; and devices that were told of.
    _done: set[str] = field(default_factory=set)
    _told: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, groups: Sequence[tuple[str, ...]], processes: Processes, starter: Starter) -> DeviceProcesses:
        names = [group[0] if len(group) == 1 else f"devices-{i}" for i, group in enumerate(groups, 1)]
        folder = processes.folder
        members = [DeviceProcess(name, group, folder) for name, group in zip(names, groups, strict=True)]
        return cls(processes, starter, members)

    def start(self) -> None:
        for process in self.each:
            process.start(self.processes, self.starter)

    def restart_killed(self) -> None:
        for process in self.each:
            process.restart_if_killed(self.processes, self.starter)

    def failed(self) -> dict[str, str]:
        """Device -> reason, while the run goes on."""
        reasons, found = self.processes.failed() | self._done_too_early(), dict[str, str]()
        for process in self.each:
            found |= process.failed(reasons)
        return found

    def newly_failed(self, failed: Mapping[str, str]) -> dict[str, str]:
        """Those of them that no earlier call has had."""
        new = {name: reason for name, reason in failed.items() if name not in self._told}
        self._told.update(new)
        return new

    def _done_too_early(self) -> dict[str, str]:
        """Exit code 0, as of `os._exit(0)` in a half, is no failure once the run is over. That it is may have been
        said and not been read yet: so this counts at the second look."""
        done = {process.name for process in self.each if self.processes.exit_code(process.name) == 0}
        twice = done & self._done
        self._done.clear()
        self._done.update(done)
        return {name: self.processes.reason(name) for name in twice}

    def __str__(self) -> str:
        """For the terminal: how many devices, in how many processes."""
        devices = sum(len(process.devices) for process in self.each)
        shared = f"{devices} in {len(self.each)} process" + ("es" if len(self.each) > 1 else "")
        return shared if devices > len(self.each) else f"{devices}, a process each"
