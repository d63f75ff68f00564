"""Choose the MQTT quality of service (QoS) of blocks.

The receiver requests each lost block again, so QoS 0 is as safe as QoS 1.
"""

from __future__ import annotations

import logging
from typing import Final

MOST_AGAIN: Final = 0.01  # share of the requested blocks that may be requested again
FEWEST_AGAIN: Final = 8  # blocks; with fewer repeated blocks than this, QoS 0 stays

log = logging.getLogger("protofleet")


class BlockQos:
    """The QoS that blocks are sent with.

    QoS 0 is used only as long as hardly any block has to be requested again. At QoS 0 a broker drops the
    blocks that it cannot pass on at once, and each lost block costs a pause. QoS 1 avoids this.
    """

    def __init__(self, qos: int = 1) -> None:
        self.qos = qos
        self._asked = self._again = 0

    def asked(self, blocks: int, again: bool) -> None:
        """Note that the other side has requested `blocks` blocks.

        `again` says that the other side requested these blocks before and did not receive them.
        """
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
