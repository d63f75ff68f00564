"""Whether the disk has room for one more answer: asked before any work, said once where it has not."""

from __future__ import annotations

import logging

from protofleet.edge_client.state.device import DeviceState
from protofleet.protocol.storage.disk import PAUSED

log = logging.getLogger("protofleet.device")


class DiskSpaceCheck:
    def __init__(self, state: DeviceState) -> None:
        self._state = state
        self.problem = ""  # why no work is taken on

    def has_room_for_answer(self, base: bytes) -> bool:
        """An answer and the state behind it are about as large as the last ones, or as what is asked about."""
        needs, free = self._state.next_bytes(base), self._state.disk.free_bytes(self._state.folder)
        if free < needs:
            self.ran_out(f"{needs} bytes are needed for an answer, {free} are free")
            return False
        if self.problem:
            log.warning("there is room again on the disk that holds %s; work goes on", self._state.folder)
            self.problem = ""
        return True

    def ran_out(self, why: str) -> None:
        if not self.problem:
            log.error(
                "the disk that holds %s is full (%s): no work is taken on %s",
                self._state.folder, why, PAUSED,
            )  # fmt: skip
        self.problem = why
