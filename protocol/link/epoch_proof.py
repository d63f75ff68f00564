"""Keep the coordinator's newest state at a device.

The signature of this state proves the epoch of the coordinator. A coordinator that was restored from a backup has a
lower epoch, and cannot know the higher one. So a device sends the state to a coordinator with a lower epoch.
"""

from __future__ import annotations

import contextlib

from protofleet.protocol.security.envelope import contents, read_header
from protofleet.protocol.wire import codec
from protofleet.protocol.wire.codec import TaskId
from protofleet.protocol.wire.messages import MOST_STATE, State
from protofleet.protocol.wire.reasons import Rejected


class EpochProof:
    def __init__(self) -> None:
        self.frame = b""  # the newest state that is small enough for a hello; b"" if there is none
        self._epoch = 0  # epoch of this state
        # True if a coordinator with a lower epoch has announced itself since the last hello with the state.
        self.is_due = False

    def keep(self, frame: bytes) -> None:
        """Keep a state that the link has accepted. The link accepts only the highest epoch."""
        if len(frame) <= MOST_STATE:
            self.frame, self._epoch = frame, read_header(frame)[0].epoch

    def refused(self, frame: bytes) -> None:
        """Note a state that was refused because its epoch is lower; its signature is valid.

        The broker may publish the will of an earlier coordinator late, so a will or a leave needs no answer.
        """
        header, start = read_header(frame)
        with contextlib.suppress(Rejected):
            payload = contents(frame, header, start, None)
            message, _ = codec.decode(header.kind, payload, header.sender, TaskId())
            self.is_due |= isinstance(message, State) and message.online and header.epoch < self._epoch
