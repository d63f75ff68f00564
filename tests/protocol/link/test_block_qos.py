"""Tests of blocks at QoS 0, if a setting asks for it, as long as a broker loses almost none of them."""

import pytest

from protofleet.protocol.link.block_qos import FEWEST_AGAIN, BlockQos
from protofleet.protocol.wire.blocks import is_block
from protofleet.protocol.wire.names import COORDINATOR
from tests.protocol.ends import Ends, weights

LARGE = 1_000_000


@pytest.mark.parametrize(
    ("requests", "qos"),
    [
        ([(10_000, False)], 0),
        ([(1_000, False), (FEWEST_AGAIN - 1, True)], 0),  # Too few blocks to decide.
        ([(10_000, False), (100, True)], 0),
        ([(10_000, False), (102, True)], 1),
        ([(64, False), (64, True)], 1),
        ([(64, True), (100_000, False)], 1),  # The link does not go back to QoS 0.
    ],
)
def test_blocks_are_sent_at_qos_1_once_one_percent_of_them_was_requested_again(requests, qos):
    blocks = BlockQos(0)
    for count, again in requests:
        blocks.asked(count, again)
    assert blocks.qos == qos


def test_a_link_at_qos_1_stays_at_qos_1():
    blocks = BlockQos()
    blocks.asked(64, again=True)
    assert blocks.qos == 1


class Published:
    """A record of the QoS at which the blocks and the other messages of a party are sent."""

    def __init__(self, session):
        self._publish, session.publish = session.publish, self.publish
        self.blocks, self.others = [], []
        self.lost = 0  # Number of next blocks that do not arrive.

    def publish(self, topic, frame, retain=False, qos=1):
        (self.blocks if is_block(frame) else self.others).append(qos)
        if is_block(frame) and self.lost:
            self.lost -= 1
            return
        self._publish(topic, frame, retain, qos)


@pytest.mark.parametrize("sender", ["a", COORDINATOR])
def test_only_blocks_are_sent_at_qos_0_and_lost_blocks_switch_them_to_qos_1(tmp_path, sender):
    ends = Ends(tmp_path, "a")
    published = Published(ends.links[sender].transport)
    ends.parts[sender].block_qos = BlockQos(0)

    def transfer(seed):
        if sender == "a":
            ends.update("a", weights(LARGE, seed), round=seed)
        else:
            ends.broadcast(weights(LARGE, seed), ["a"], round=seed)
        ends.run()

    transfer(1)
    assert set(published.blocks) == {0} and set(published.others) == {1}
    published.blocks.clear()
    published.lost = 12
    transfer(2)
    assert set(published.blocks[-12:]) == {1}, "what was lost is sent again, and loses no more"
