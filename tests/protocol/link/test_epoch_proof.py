"""Tests that a device keeps only a state of the coordinator that fits into a hello."""

import pytest

from protofleet.protocol.link.epoch_proof import EpochProof
from protofleet.protocol.security.envelope import OPEN, Header, seal
from protofleet.protocol.security.keys import Keys
from protofleet.protocol.wire import codec
from protofleet.protocol.wire.messages import MOST_STATE, Hello, State
from protofleet.protocol.wire.names import COORDINATOR, EVERYBODY

KEYS = Keys.new()


def state(epoch, reason="", online=True):
    message = State(online, reason)
    header = Header(
        1, 0, OPEN, codec.KINDS[State], "lab", "red", epoch, COORDINATOR, epoch, 1, EVERYBODY, 0, "", b""
    )
    return seal(header, codec.encode(message), KEYS.sign)


def test_a_state_that_is_too_large_for_a_hello_does_not_replace_the_earlier_one():
    proof, small, large = EpochProof(), state(5), state(6, "x" * 400)
    proof.keep(small)
    proof.keep(large)
    assert len(large) > MOST_STATE and proof.frame == small
    proof.keep(state(7))
    assert proof.frame == state(7)
    codec.encode(Hello("a", 3, 5, last_state=proof.frame))


@pytest.mark.parametrize(
    ("epoch", "online", "is_due"), [(4, True, True), (4, False, False), (5, True, False), (6, True, False)]
)
def test_a_proof_is_due_only_after_an_online_state_with_a_lower_epoch(epoch, online, is_due):
    proof = EpochProof()
    proof.keep(state(5))
    proof.refused(state(epoch, online=online))
    assert proof.is_due == is_due
