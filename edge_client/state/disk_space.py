"""The check whether the disk has room for one more update; a device with a full disk takes no work."""

from __future__ import annotations

import logging

from protofleet.edge_client.state.device import DeviceState
from protofleet.protocol.storage.full_disk import FullDiskLog

log = logging.getLogger("protofleet.device")


class DiskSpaceCheck:
    def __init__(self, state: DeviceState) -> None:
        self._state = state
        self._full_disk = FullDiskLog(log, state.folder, "no work is taken on", "work goes on")

    @property
    def problem(self) -> str:
        """Return why the device takes no work, or ""."""
        return self._full_disk.problem

    def has_room_for_answer(self, base: bytes) -> bool:
        """Return whether there is room for an update and the state after the update.

        The sizes of both are estimated from the last update, the last state and the broadcast.
        """
        needs, free = self._state.needed_bytes(base), self._state.disk.free_bytes(self._state.folder)
        if free < needs:
            self.ran_out(f"{needs} bytes are needed for an update, but only {free} are free")
            return False
        self._full_disk.found_room()
        return True

    def ran_out(self, why: str) -> None:
        self._full_disk.found_full(why)
