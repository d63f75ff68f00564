"""Choose the MQTT quality of service (QoS) of blocks.

The receiver requests each lost block again, so QoS 0 is as safe as QoS 1.
"""

from __future__ import annotations

import logging
from typing import Final

MOST_AGAIN: Final = 0.01  # largest share of blocks that may be requested again at QoS 0
FEWEST_AGAIN: Final = 8  # QoS 0 is kept until at least this many blocks were requested again

log = logging.getLogger("protofleet")


class BlockQos:
    """The QoS of the blocks that are sent.

    QoS 0 is used only as long as hardly any block has to be requested again. At QoS 0, a broker drops each
    block that it cannot deliver at once, and the receiver waits before it requests the block again. At QoS 1,
    the broker stores such a block.
    """

    def __init__(self, qos: int = 1) -> None:
        self.qos = qos
        self._asked = self._again = 0

    def asked(self, blocks: int, again: bool) -> None:
        """Record that the other side has requested `blocks` blocks.

        `again` says that the other side requested these blocks before and did not receive them.
        """
        if self.qos == 1:
            return
        self._asked += blocks
        self._again += blocks if again else 0
        if self._again >= FEWEST_AGAIN and self._again > MOST_AGAIN * self._asked:
            self.qos = 1
            log.warning(
                "%d of %d blocks had to be requested again, so blocks are now sent at QoS 1, even if block_qos is 0",
                self._again,
                self._asked,
            )
