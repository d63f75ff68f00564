"""Implement `protofleet fleet --share`: the process of one group of devices, on any node that sees the run's folder.

The run may move its broker to another host while the devices work. A file says where the broker is now. When the file
changes, the device process is killed and started again. A kill costs nothing, because devices continue from their
folders. SIGTERM would make each device record that it has ended early.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from protofleet.lab.local.one_address import demand_one_address
from protofleet.lab.local.processes import (
    IMPORTED_BY_DEVICES,
    SIGNALS,
    Processes,
    uses_cuda,
)
from protofleet.protocol.settings.reader import SettingsError, read_toml
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.transport.address import FINAL_REASONS, TAKEN_OVER
from protofleet.protocol.user_error import FAILED
from protofleet.protocol.wire.reasons import DisconnectReason
from protofleet.runtime.children import Interpreters, Starter
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.launcher import CAN_FORK, Launcher
from protofleet.runtime.restart_backoff import RestartBackoff

ENGINE: Final = "engine"  # Folder of a run with the files for the tasks of an engine.
GROUPS: Final = "groups.json"
SETTINGS_FILE: Final = "device.toml"
LOOK_SECONDS: Final = 1.0  # Time between two looks at the broker file and at the ended devices.
POLL_SECONDS: Final = 0.1
# Time in which an earlier task of the same share sees that a later one has claimed it, and kills its devices. Two
# processes with the same devices would overwrite each other's files.
HAND_OVER_SECONDS: Final = 3.0
NO_TASK: Final = "none"  # The content of the owner file of a share that no task may run.
# If the process ends this number of times in a row within a minute of its start, its devices have failed.
MOST_FAILURES: Final = 3
KILLED: Final = (
    f"{DisconnectReason.SIGNAL.value}: "  # Begin of the reason of a device that a signal has ended.
)
# Parts of the reason of a device that another process has replaced, for example after a lost node has come back.
REPLACED: Final = ("another process of this device has taken over", FINAL_REASONS[TAKEN_OVER])


@dataclass(frozen=True)
class DeviceShare:
    """The part `index` of `count` parts of a run's devices; the first part has the index 0."""

    index: int
    count: int

    @property
    def process_name(self) -> str:
        return f"devices-{self.index}"

    def devices(self, folder: Path) -> list[str]:
        """Return the names of the devices of this part.

        `folder` has a folder for each device. The file `engine/groups.json` beside it has the parts. If there is no
        such file, the devices are dealt out in turn.
        """
        present = sorted(path.parent.name for path in folder.glob(f"*/{SETTINGS_FILE}"))
        if not present:
            raise SettingsError(
                f"{folder} has no */{SETTINGS_FILE}; it must contain a folder for each device"
            )
        written = folder.parent / ENGINE / GROUPS
        groups = (
            read_groups(written)
            if written.exists()
            else [present[i :: self.count] for i in range(self.count)]
        )
        if len(groups) != self.count:
            raise SettingsError(
                f"--share is {self.index}/{self.count}, but {written} has {len(groups)} groups of devices; use "
                f"--share {self.index}/{len(groups)}"
            )
        if missing := [name for name in groups[self.index] if name not in present]:
            raise SettingsError(f"{written} names the device {missing[0]}, but {folder} has no such device")
        if not groups[self.index]:
            raise SettingsError(
                f"--share is {self.index}/{self.count}, but {folder} has only {len(present)} devices; use at most "
                f"{len(present)} parts"
            )
        return groups[self.index]


def read_groups(path: Path) -> list[list[str]]:
    """Return the names of the devices of each task."""
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise SettingsError(f"{path} cannot be read ({error}); start the run again with --fresh") from None
    return [[str(name) for name in group] for group in found]


@dataclass(frozen=True)
class BrokerPlace:
    """The content of a broker file: host and port of the broker, and a word for the process that has started it.

    Without a host, the addresses in the settings of the devices count: those of a broker of several nodes.
    """

    host: str
    port: int
    start: str = ""

    @property
    def changes(self) -> list[str]:
        """Return the words with which the settings of a device get this address."""
        if not self.host:
            return []
        return ["--set", f"broker.host={self.host}", "--set", f"broker.port={self.port}"]

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.host else "the addresses in the settings of the devices"

    def write(self, path: Path) -> None:
        text = json.dumps({"host": self.host, "port": self.port, "start": self.start})
        Disk(durable=False).replace(path, text.encode())


def read_broker_place(path: Path) -> BrokerPlace | None:
    """Return the broker's place; None if the file does not exist yet or cannot be read at this moment."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(path.read_text())
        return BrokerPlace(str(found["host"]), int(found["port"]), str(found.get("start", "")))
    return None


@dataclass(frozen=True)
class EndedDevices:
    """The content of an ended file: the devices of a task that have failed, with the reasons.

    `start` is the word of the broker file for which the devices were started. A file with another word is of an
    earlier start, and says nothing about the devices now.
    """

    start: str
    reasons: Mapping[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        text = json.dumps({"start": self.start, "ended": dict(self.reasons)})
        Disk(durable=False).replace(path, text.encode())


def failed_devices(path: Path, start: str) -> dict[str, str]:
    """Return the reason for each failed device in an ended file; none if the file is of another start."""
    found: Any = None
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text())
    if not isinstance(found, dict) or found.get("start") != start or not isinstance(found.get("ended"), dict):
        return {}
    return {str(name): str(reason) for name, reason in found["ended"].items()}


@dataclass
class Owner:
    """The file that names the task that runs a share. A later task of the same share writes its own word there."""

    path: Path
    word: str = field(default_factory=lambda: secrets.token_hex(8))

    def claim(self) -> bool:
        """Write the word, and return whether an earlier task may still run the share."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        earlier = has_owner(self.path)
        Disk(durable=False).replace(self.path, self.word.encode())
        return earlier

    def is_lost(self) -> bool:
        """Return whether another task has claimed the share."""
        try:
            return self.path.read_text() != self.word
        except OSError:
            return False

    def release(self) -> None:
        if not self.is_lost():
            self.path.unlink(missing_ok=True)


def has_owner(path: Path) -> bool:
    """Return whether an owner file names a task."""
    with contextlib.suppress(OSError):
        return path.read_text() != NO_TASK
    return False


def end_tasks(run: Path) -> bool:
    """Tell the tasks that run shares of a run to end, and return whether there may be such a task."""
    owned = [path for path in (run / "logs").glob("devices-*.owner") if has_owner(path)]
    for path in owned:
        Disk(durable=False).replace(path, NO_TASK.encode())
    return bool(owned)


@dataclass
class SharedDevices:
    """The supervisor of the process with the devices of a share.

    `over` is True when the devices have ended because their run is over.
    """

    folder: Path  # The folder with a folder for each device, in the folder of the run.
    names: Sequence[str]
    processes: Processes
    process_name: str
    own_ended: Path  # The file of this node to which the device process writes its failed devices.
    changes: Sequence[str] = ()
    broker_file: Path | None = None
    ended_file: Path | None = None  # The file of the run's folder for the failed devices.
    over: bool = False
    not_before: float = 0.0  # Time of the first start, after which an earlier task of the share has ended.
    _place: BrokerPlace | None = None
    _running: bool = False
    _started_at: float = 0.0
    _start_at: float = 0.0
    _look_at: float = 0.0
    _backoff: RestartBackoff = field(default_factory=RestartBackoff)
    _written: EndedDevices | None = None

    def poll(self, now: float) -> str:
        """Start, restart or kill the process where this is needed, and return a line for the log, or ""."""
        line = ""
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            line = self._follow_broker()
            if self._running:
                self._publish(self._reasons())
        if self._running and (code := self.processes.exit_code(self.process_name)) is not None:
            self._running = False
            return self._ended(code, now)
        if not self._running and not self.over and now >= max(self._start_at, self.not_before):
            self._start(now)
        return line

    def _follow_broker(self) -> str:
        """Kill the process and plan its next start if the broker has moved."""
        if self.broker_file is None:
            return ""
        place = read_broker_place(self.broker_file)
        if place is None:
            if self._place is None:
                self._start_at = float("inf")
            return ""
        if place == self._place:
            return ""
        self._place, self._start_at, self._backoff = place, 0.0, RestartBackoff()
        self.kill()
        return f"the broker is at {place} now"

    def kill(self) -> None:
        if self._running:
            self.processes.kill(self.process_name)
            self._running = False

    def _start(self, now: float) -> None:
        self.own_ended.unlink(missing_ok=True)  # An earlier process may have left this file.
        self._publish({})
        files = [str(self.folder / name / SETTINGS_FILE) for name in self.names]
        place = self._place.changes if self._place is not None else []
        changes = [word for change in self.changes for word in ("--set", change)]
        words = [*files, "--ended", str(self.own_ended), *changes, *place]
        self.processes.start(self.process_name, "device", *words)
        self._running, self._started_at = True, now

    def _ended(self, code: int, now: float) -> str:
        """Decide what follows the end of the process, and return a line for the log."""
        reasons = self._reasons()
        by_itself = code == FAILED and reasons and not any(why.startswith(KILLED) for why in reasons.values())
        if code == 0 or (by_itself and len(reasons) < len(self.names)):
            self._publish(reasons)
            self.over = True
            return "the devices have finished"
        if by_itself and all(is_replaced(why) for why in reasons.values()):
            raise RunError(f"another task runs the same devices: {first_of(reasons)}")
        if by_itself:
            self._publish(reasons)
            self._wait_for_broker(problem := f"all devices have failed, for example {first_of(reasons)}")
            return f"{problem}; they start again when the broker moves"
        pause = self._backoff.failed(now - self._started_at)
        how = f"was killed by {SIGNALS.get(-code, -code)}" if code < 0 else f"ended with exit code {code}"
        if self._backoff.failures >= MOST_FAILURES:
            reason = self.processes.reason(self.process_name)
            self._publish(dict.fromkeys(self.names, reason))
            self._wait_for_broker(
                problem := f"the process of the devices {how} {MOST_FAILURES} times in a row: {reason}"
            )
            return problem
        self._start_at = now + pause
        return f"the process of the devices {how}; restart in {pause:.1f} s"

    def _wait_for_broker(self, problem: str) -> None:
        """Start no process until the broker moves. Raise RunError if no file tells where the broker is."""
        if self.broker_file is None:
            raise RunError(problem)
        self._start_at = float("inf")

    def _reasons(self) -> dict[str, str]:
        """Return the reason for each device that the process has given up."""
        try:
            found = json.loads(self.own_ended.read_text())
        except FileNotFoundError:
            return {}
        return {str(name): str(reason) for name, reason in found.items()}

    def _publish(self, reasons: Mapping[str, str]) -> None:
        """Write the failed devices into the run's folder.

        A device has not failed if a signal has ended it, or if another task runs it.
        """
        if self.ended_file is None:
            return
        failed = {
            name: why for name, why in reasons.items() if not (why.startswith(KILLED) or is_replaced(why))
        }
        ended = EndedDevices(self._place.start if self._place is not None else "", failed)
        if ended != self._written:
            ended.write(self.ended_file)
            self._written = ended


def is_replaced(reason: str) -> bool:
    return any(words in reason for words in REPLACED)


def first_of(reasons: Mapping[str, str]) -> str:
    name, reason = next(iter(reasons.items()))
    return f"{name}: {reason}"


def run_share(
    folder: Path,
    share: DeviceShare,
    broker_file: Path | None = None,
    ended_file: Path | None = None,
    changes: Sequence[str] = (),
) -> None:
    """Run the devices of a share in one process until their run is over.

    A run writes its devices and their settings before it writes its broker file. The imports of the devices go on
    meanwhile. If this process receives SIGINT or SIGTERM, it stops the devices and raises RunError.
    """
    if broker_file is None or broker_file.exists():
        checked_devices(share, folder, changes)  # A mistake is told before the imports.
    received: list[str] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: received.append(signal.Signals(number).name))
    with device_launcher() as launcher:
        while broker_file is not None and not broker_file.exists() and not received:
            time.sleep(POLL_SECONDS)
        if not received:
            names = checked_devices(share, folder, changes)
            supervise(folder, share, names, broker_file, ended_file, changes, launcher, received)
        if received:
            raise RunError(f"signal {received[0]}")
    shutil.rmtree(slots_folder(folder.absolute().parent), ignore_errors=True)  # The run is over.


def checked_devices(share: DeviceShare, folder: Path, changes: Sequence[str]) -> list[str]:
    names = share.devices(folder)
    demand_one_address([folder / name / SETTINGS_FILE for name in names], changes)
    return names


def supervise(
    folder: Path, share: DeviceShare, names: Sequence[str], broker_file: Path | None, ended_file: Path | None,
    changes: Sequence[str], launcher: Launcher | None, received: Sequence[str],
) -> None:  # fmt: skip
    """Keep the process of the devices running until their run is over, or until a signal is in `received`."""
    run = folder.absolute().parent
    with (
        tempfile.TemporaryDirectory(prefix="protofleet-") as own,
        Processes(run, starter_of(run, launcher)) as processes,
    ):
        devices = SharedDevices(
            folder.absolute(), names, processes, share.process_name, Path(own) / "ended.json",
            [*changes, *slots_of_node(run)], broker_file, ended_file,
        )  # fmt: skip
        owner = Owner(run / "logs" / f"{share.process_name}.owner")
        if owner.claim():
            devices.not_before = time.monotonic() + HAND_OVER_SECONDS
        while not received and not devices.over:
            if owner.is_lost():
                devices.kill()
                raise RunError(
                    f"another task runs the devices of --share {share.index}/{share.count} now"
                    if has_owner(owner.path)
                    else "the run goes on without its tasks"
                )
            if line := devices.poll(time.monotonic()):
                print(f"protofleet: {line}", file=sys.stderr, flush=True)
            time.sleep(POLL_SECONDS)
    owner.release()  # The devices have ended.


def device_launcher() -> contextlib.AbstractContextManager[Launcher | None]:
    """Return a launcher for the devices of a task; None if this node has CUDA, which does not work after a fork.

    The launcher is another process, which imports torch while this process waits for the broker. It is killed at the
    end, so the end of the task does not wait until all modules are freed.
    """
    if uses_cuda("auto") or not CAN_FORK:
        return contextlib.nullcontext()
    return Launcher(IMPORTED_BY_DEVICES)


def starter_of(run: Path, launcher: Launcher | None) -> Starter:
    """Return the launcher, or a starter of new interpreters if there is none or the run wants new interpreters."""
    with contextlib.suppress(SettingsError):
        if read_toml(run / "experiment.toml").get("devices", {}).get("start") == "spawn":
            return Interpreters()
    return launcher or Interpreters()


def slots_of_node(run: Path) -> Iterator[str]:
    """Yield the changes of settings that let at most one device for each core of this node compute at the same time.

    The slots are in the temporary folder of the node. In the run's folder, the devices of all nodes would share them.
    """
    folder = slots_folder(run)
    try:
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        if folder.parent.is_symlink() or folder.parent.stat().st_uid != os.getuid():
            return  # Another user could hold the slots for ever.
    except OSError:
        return
    yield f"slots.folder={folder}"
    yield f"slots.number={len(cores())}"


def slots_folder(run: Path) -> Path:
    """Return the folder of the slots for the devices of a run that compute on the same cores of this node.

    An engine may give each task cores of its own. Such tasks do not share slots.
    """
    word = hashlib.sha256(f"{run} {cores()}".encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"protofleet-slots-{os.getuid()}" / word


def cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
