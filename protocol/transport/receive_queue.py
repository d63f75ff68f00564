"""Queue received frames and events for the thread of the event loop.

The queue has a limit of bytes in total, and limits for each topic.

Each message is acknowledged when it is in the queue, so the broker never waits for a slow reader. A frame for which
the queue has no space is dropped. This does no harm, because an update is sent again until its receipt arrives, and
other important messages are also sent again.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

from protofleet.protocol.transport.base import Arrived, Item

MAX_BYTES: Final = 96 << 20  # bytes; at most 256 blocks of 256 KiB are in flight, which is 64 MiB
MAX_TOPIC_BYTES: Final = 24 << 20  # bytes of one topic; a device has at most 64 blocks of 256 KiB in flight
MAX_TOPIC_FRAMES: Final = 2048
FRAME_COST: Final = 1024  # bytes that the queue itself needs for each frame


class ReceiveQueue(queue.SimpleQueue[Item]):
    """A bounded queue that is used like a SimpleQueue.

    `dropped` is called on the reader's thread with the number of dropped frames. `unwanted` is called on
    the network thread with the topic of a frame. If `unwanted` returns True, the frame is discarded.
    """

    def __init__(self, dropped: Callable[[int], None] = lambda number: None) -> None:
        self.dropped = dropped
        self.unwanted: Callable[[str], bool] = lambda topic: False
        self._lock = threading.Lock()
        self._bytes = self._lost = 0
        self._topics: dict[str, tuple[int, int]] = {}  # topic -> number of frames and bytes that wait

    def put(self, item: Item, block: bool = True, timeout: float | None = None) -> None:
        """Add an item without waiting, because the network thread must not wait."""
        if isinstance(item, Arrived):
            if self.unwanted(item.topic):
                return
            size = len(item.frame) + len(item.topic) + FRAME_COST
            with self._lock:
                frames, waiting = self._topics.get(item.topic, (0, 0))
                if self._full(frames + 1, waiting + size, self._bytes + size):
                    self._lost += 1
                    return
                self._topics[item.topic] = (frames + 1, waiting + size)
                self._bytes += size
        super().put(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Item:
        item = super().get(block, timeout)
        lost = 0
        if isinstance(item, Arrived):
            size = len(item.frame) + len(item.topic) + FRAME_COST
            with self._lock:
                frames, waiting = self._topics.pop(item.topic)
                if frames > 1:
                    self._topics[item.topic] = (frames - 1, waiting - size)
                self._bytes -= size
                lost, self._lost = self._lost, 0
        if lost:
            self.dropped(lost)
        return item

    @staticmethod
    def _full(frames: int, of_topic: int, of_all: int) -> bool:
        return frames > MAX_TOPIC_FRAMES or of_topic > MAX_TOPIC_BYTES or of_all > MAX_BYTES
