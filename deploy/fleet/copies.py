"""Back up the runs of a coordinator, and restore them on the coordinator's host or on a new host."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Final

from protofleet.coordinator.queue.folder import queue_folder
from protofleet.coordinator.queue.queue_file import QUEUE_FILE
from protofleet.deploy.fleet.device.scripts import HostRole
from protofleet.deploy.fleet.execute import Executor, read_state, require_success
from protofleet.deploy.fleet.ssh import Ssh
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.command.errors import RunError

COPY: Final = "runs.tar"
PACK_SECONDS: Final = 1800.0


def take(ssh: Ssh, place: HostRole, folder: Path) -> str:
    """Copy the coordinator's runs to a folder of this machine; the coordinator is stopped during the copy.

    A copy that is made while the coordinator writes would not be consistent.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    running = read_state(ssh.name, require_success(ssh.run(place.steps, "state"))).service.active == "active"
    require_success(ssh.run(place.steps, "stop", "30", seconds=150.0))
    try:
        require_success(ssh.run(place.steps, "pack", seconds=PACK_SECONDS))
    finally:
        if running:
            require_success(ssh.run(place.steps, "start"))
    fresh = folder / ".new"
    fresh.mkdir(exist_ok=True, mode=0o700)
    require_success(ssh.fetch(f"{place.role.top}/copy", fresh))
    require_success(ssh.run(place.steps, "discard"))
    (fresh / COPY).replace(folder / COPY)
    fresh.rmdir()
    afterwards = "the coordinator runs again" if running else "the coordinator stays stopped"
    return f"{folder / COPY}: {(folder / COPY).stat().st_size / 1e6:.1f} MB, and {afterwards}"


def check(folder: Path, run: str) -> None:
    """Raise SettingsError if the copy cannot be read or lacks this run; "" stands for a queue of runs.

    The caller checks the copy before it stops the coordinator.
    """
    if not (folder / COPY).is_file():
        problem = f"has no {COPY}" if folder.is_dir() else "is no folder"
        way_out = (
            "name the folder of a backup with --from; `protofleet deploy backup coordinator` makes a backup"
        )
        raise SettingsError(f"{folder} {problem}; {way_out}")
    try:
        with tarfile.open(folder / COPY) as copy:
            parts = [PurePosixPath(name).parts for name in copy.getnames()]
    except (tarfile.TarError, OSError, EOFError) as error:
        raise SettingsError(f"{folder / COPY} cannot be read: {error}; use another copy") from None
    held = sorted(
        {found[1] for found in parts if len(found) > 2 and found[0] == "runs" and found[2] == "coordinator"}
    )
    if not run:
        if ("runs", queue_folder(Path()).name, QUEUE_FILE) not in parts:
            raise SettingsError(
                f"{folder / COPY} holds no queue of runs, but the coordinator in the fleet's file names no run; use "
                "a copy of a coordinator with a queue, or name the run and its settings"
            )
    elif run not in held:
        raise SettingsError(
            f"{folder / COPY} holds {', '.join(held) or 'no run'}, but coordinator.name in the fleet's file is "
            f"{run}; set coordinator.name to the run that you want to restore, and set the method and the settings "
            "of that run"
        )


def put_back(folder: Path, run: str, from_round: int | None) -> Callable[[Executor], None]:
    """Return the function that restores the copy. `Rollout.deploy` calls it before the service starts."""

    def put(executor: Executor) -> None:
        place, ssh = executor.place, executor.ssh
        require_success(ssh.send(folder, f"{place.role.top}/copy", private=True))
        executor.run_step("unpack", seconds=PACK_SECONDS)
        if from_round is None:
            return
        try:
            executor.run_step("go_on", executor.target.desired.release, run, str(from_round))
        except RunError as error:
            executor.run_step("put_before_back")
            executor.run_step("start")
            raise RunError(
                f"{error}; the earlier runs are in place again, and the coordinator is started"
            ) from None

    return put


def demand_coordinator(hosts: dict[str, Ssh], coordinator: list[str], step: str) -> Ssh:
    if not coordinator:
        raise SettingsError(
            f"the fleet's file has no coordinator, but {step} works only on the coordinator's host"
        )
    if list(hosts) != coordinator:
        named = ", ".join(name for name in hosts if name not in coordinator)
        way_out = f"run `protofleet deploy {step} {coordinator[0]}`"
        raise SettingsError(
            f"{named} is not the coordinator, and {step} works only on the coordinator's host; {way_out}"
        )
    return hosts[coordinator[0]]
