"""At which QoS of MQTT blocks leave. What is lost is asked for again in any case, so 0 is as safe as 1."""

from __future__ import annotations

import logging
from typing import Final

MOST_AGAIN: Final = 0.01  # of the blocks that are asked for
FEWEST_AGAIN: Final = 8  # blocks; fewer say nothing about a broker

log = logging.getLogger("protofleet")


class BlockQos:
    """1, or 0 for as long as hardly any block has to be asked for again: then the broker drops what it cannot pass on
    at once, and each lost block costs a pause, which at QoS 1 it does not."""

    def __init__(self, qos: int = 1) -> None:
        self.qos = qos
        self._asked = self._again = 0

    def asked(self, blocks: int, again: bool) -> None:
        """The other side wants so many blocks; `again`: they have not come."""
        if self.qos == 1:
            return
        self._asked += blocks
        self._again += blocks if again else 0
        if self._again >= FEWEST_AGAIN and self._again > MOST_AGAIN * self._asked:
            self.qos = 1
            log.warning(
                "%d of %d blocks had to be asked for again: they leave at QoS 1 from now on, whatever block_qos says",
                self._again,
                self._asked,
            )
