"""A process of many devices, which share one event loop, one training thread, one network thread and the data."""

from __future__ import annotations

import json
import logging
import math
import queue
import resource
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.shard import LOADED_BEFORE_FORK, Shards
from protofleet.edge_client.group.device import Assembly, Device, Process
from protofleet.edge_client.group.group import DeviceGroup, MemberQueue
from protofleet.edge_client.host.loaded_settings import LoadedSettings
from protofleet.edge_client.host.systemd import NotifySocket
from protofleet.edge_client.main import serve_metrics
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import Disk
from protofleet.runtime.allocator import keep_blocks_at_work
from protofleet.runtime.event_loop import serve, stop_on_signals
from protofleet.runtime.health import watchdog

FILES_BESIDE: Final = 128  # number of a process's open files that do not belong to a single device
MOST_RESTARTS: Final = 2  # largest number of restarts of a device in a row, if the process is for one run
FILES_OF_A_DEVICE: Final = 2  # number of open files of a device: its connection, and a file that it writes

log = logging.getLogger("protofleet.device")


def run_devices(
    given: Sequence[LoadedSettings],
    software: str,
    ended_file: Path | None = None,
    shards: Shards | None = None,
) -> dict[str, str]:
    """Run the devices until all have ended or a signal arrives.

    Return a dict with the names of the devices that ended early, each with the reason. If `ended_file` is given, the
    number of restarts is limited. The names of devices that will not be restarted are written to this file as JSON,
    with the reasons, while the other devices continue.
    """
    check_settings([one.settings for one in given])
    raise_open_files(len(given))
    keep_blocks_at_work()
    ready: queue.SimpleQueue[MemberQueue] = queue.SimpleQueue()
    process, systemd = Process("devices", len(given)), NotifySocket()
    starts = Starts(given, process, software, ready, shards)

    def report(group: DeviceGroup) -> None:
        systemd.notify("WATCHDOG=1", f"STATUS={len(group.running)} of {len(given)} devices run")
        if ended_file is not None:
            Disk(durable=False).replace(ended_file, json.dumps(group.given_up).encode(), durable=False)

    most = math.inf if ended_file is None else MOST_RESTARTS
    group = DeviceGroup([one.settings.name for one in given], starts, most, report)
    starts.forget_data()
    process.start_work(max(one.settings.threads for one in given))
    systemd.notify("READY=1")
    with watchdog(process.heartbeats, max(one.settings.watchdog_seconds for one in given)):
        stop_on_signals(group.put)
        signal.signal(signal.SIGUSR1, lambda number, frame: group.drain())
        serve(group, ready, time.monotonic, process.heartbeats)
    systemd.notify("STOPPING=1")
    group.close()
    report(group)
    return group.ended


def check_settings(devices: Sequence[DeviceSettings]) -> None:
    for one in devices:
        if one.trainer != "inside":
            raise SettingsError(
                f"{one.name} has trainer = {one.trainer!r}, but devices that share a process train inside this "
                "process; start this device in a process of its own"
            )
    names = [one.name for one in devices]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SettingsError(f"{twice[0]} is named more than once; give each device one settings file")


def raise_open_files(devices: int) -> None:
    """Raise this process's limit of open files, because the usual limit is too low for many devices."""
    wanted = FILES_BESIDE + FILES_OF_A_DEVICE * devices
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if hard != resource.RLIM_INFINITY and hard < wanted:
        log.warning(
            "%d devices need about %d open files, but this process may open only %d; raise the hard limit "
            "(ulimit -Hn, LimitNOFILE) or use more processes", devices, wanted, hard,
        )  # fmt: skip


class Starts:
    """The starter of devices by name; the devices share their loaded data until `forget_data` is called."""

    def __init__(
        self, given: Sequence[LoadedSettings], process: Process, software: str,
        ready: queue.SimpleQueue[MemberQueue], shards: Shards | None,
    ) -> None:  # fmt: skip
        self._given = {one.settings.name: one for one in given}
        self._process, self._software, self._ready = process, software, ready
        self._given_shards = shards
        self.forget_data()

    def __call__(self, name: str) -> tuple[MemberQueue, Device]:
        one, receive_queue = self._given[name], MemberQueue(self._ready)
        assembly = Assembly(self._process, self._software, self._shards)
        device = assembly.device(one.settings, one.version, receive_queue)
        if device.settings.metrics_port:
            self._serve_metrics(device)
        return receive_queue, device

    def forget_data(self) -> None:
        """Forget the loaded data, except the data that the parent process loaded before the fork.

        If a device is restarted after this call, the device loads its data again.
        """
        self._shards = self._given_shards or Shards(LOADED_BEFORE_FORK)

    def _serve_metrics(self, device: Device) -> None:
        """Serve the device's metrics on the device's own port.

        So Prometheus gets the same series as from a device that has its own process.
        """
        try:
            device.pages.enter_context(serve_metrics(device, self._process, self._software))
        except Exception:
            device.transport.kill()
            device.stop()
            raise
