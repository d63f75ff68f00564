"""Tests of the messages that a standby and the leading coordinator send, accept and refuse."""

from dataclasses import replace

import msgpack
import pytest

from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.link.rate_limit import FRAME_BURST
from protofleet.protocol.link.standby import SeenState, StandbyLink
from protofleet.protocol.security.envelope import Header, read_header, seal
from protofleet.protocol.security.keys import Identity, Keys
from protofleet.protocol.wire import blocks, codec
from protofleet.protocol.wire.messages import Bye, Manifest, Probe, State, StepDown
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.reasons import Reason, Rejected
from protofleet.protocol.wire.topics import Topics
from tests.protocol.ends import Ends

TOPICS, EPOCH = Topics("lab"), 1_800_000_000
KEYS, BOARD = Keys.new(), Keys.new()


class Wire:
    """A transport that keeps what is published."""

    def __init__(self):
        self.sent = []

    def publish(self, topic, frame, retain=False, qos=1):
        self.sent.append((topic, frame))

    def subscribe(self, topic):
        self.sent.append((topic, None))

    def unsubscribe(self, topic):
        pass


@pytest.fixture
def wire():
    return Wire()


@pytest.fixture
def leader(wire):
    return CoordinatorLink(Identity(COORDINATOR, EPOCH, KEYS), {"board": BOARD.public}, TOPICS, wire)


@pytest.fixture
def standby(wire):
    return StandbyLink(KEYS, TOPICS, wire)


def said(wire, message, keys=KEYS, **changes):
    """Return a frame of a standby, with some fields of the header changed."""
    StandbyLink(keys, TOPICS, wire).probe()
    header, _ = read_header(wire.sent.pop()[1])
    header = replace(header, kind=codec.KINDS[type(message)], **changes)
    return seal(header, codec.encode(message), keys.sign, KEYS.public.receive)


def why(link, topic, frame, *more):
    with pytest.raises(Rejected) as fault:
        link.arrived(topic, frame, *more)
    return fault.value.reason


def test_the_leader_receives_each_probe_and_step_down_request_without_a_sequence(wire, leader, standby):
    for _ in range(2):
        standby.probe()
        standby.step_down(EPOCH, "hall-2\n4711" + "x" * 90)
    assert {topic for topic, _ in wire.sent} == {TOPICS.coord_probe}
    received = [one for sent in wire.sent for one in leader.arrived(*sent, 0.0)]
    assert [one.message for one in received] == 2 * [
        Probe(),
        StepDown(EPOCH, r"hall-2\n4711" + "x" * 52),
    ]
    assert {(one.sender, one.run, one.epoch, one.boot, one.sequence) for one in received} == {
        (COORDINATOR, "", 0, 0, 0)
    }
    assert leader.unassigned.meter.messages["up", "probe", "accepted"] == 2
    assert leader.unassigned.meter.messages["up", "step_down", "accepted"] == 2
    assert not leader.unassigned.meter.wire


def test_the_leader_refuses_and_counts_all_other_frames_on_the_probe_topic(wire, leader):
    topic, probe = TOPICS.coord_probe, said(wire, Probe())
    block = blocks.pack(Manifest(bytes(32), 1, 1, (), ()), 0, b"x")
    refused = [
        (probe[:-1] + bytes([probe[-1] ^ 1]), Reason.BAD_SIGNATURE),
        (said(wire, Probe(), BOARD), Reason.BAD_SIGNATURE),
        (said(wire, Probe(), BOARD, sender="board"), Reason.UNKNOWN_SENDER),
        (said(wire, Probe(), federation="hall"), Reason.WRONG_FEDERATION),
        (said(wire, Probe(), recipient="board"), Reason.WRONG_RECIPIENT),
        (said(wire, Probe(), suite=1), Reason.NOT_FOR_US),
        (said(wire, State(True)), Reason.MALFORMED),
        (said(wire, Bye()), Reason.MALFORMED),
        (b"", Reason.MALFORMED),
        (block, Reason.WRONG_TOPIC),
    ]
    for frame, reason in refused:
        before = leader.unassigned.meter.rejected[reason]
        assert why(leader, topic, frame, 0.0) is reason
        assert leader.unassigned.meter.rejected[reason] == before + 1
    assert why(leader, TOPICS.up("board"), probe, 0.0) is Reason.UNKNOWN_SENDER  # A probe has its own topic.


def test_probes_use_the_rate_limit_of_the_name_coordinator(wire, leader, standby):
    standby.probe()
    for _ in range(int(FRAME_BURST)):
        leader.arrived(*wire.sent[-1], 0.0)
    assert why(leader, *wire.sent[-1], 0.0) is Reason.FLOOD
    assert leader.arrived(*wire.sent[-1], 1.0)


def test_a_coordinator_that_ignores_a_device_still_receives_probes(wire, leader):
    leader.subscribe_except({"board"})
    leader.subscribe_except(())
    assert (
        TOPICS.coord_probe,
        None,
    ) not in wire.sent  # It was never unsubscribed, so it is not subscribed anew.


def test_a_standby_sees_the_state_of_the_leader_with_its_epoch_and_run(wire, leader, standby):
    state = State(True, who="hall-1 4711", runs=("red",))
    leader.make_legacy("red")
    leader.announce(state, retain=True)
    assert standby.arrived(*wire.sent[-1], True) == SeenState(EPOCH, "red", state, True)
    will = leader.will(TOPICS.coord_state)
    seen = standby.arrived(will.topic, will.frame, False)
    assert (seen.epoch, seen.state.online, seen.retained) == (EPOCH, False, False)


def test_a_standby_rejects_a_state_that_its_own_key_has_not_signed(wire, standby):
    topic = TOPICS.coord_state
    mine = said(wire, State(True), recipient="*", epoch=EPOCH)
    assert standby.arrived(topic, mine, False).epoch == EPOCH
    assert why(standby, topic, mine[:-1] + bytes([mine[-1] ^ 1]), False) is Reason.BAD_SIGNATURE
    forged = said(wire, State(True), BOARD, epoch=EPOCH)
    assert why(standby, topic, forged, False) is Reason.BAD_SIGNATURE
    assert why(standby, topic, said(wire, State(True), BOARD, sender="board"), False) is Reason.UNKNOWN_SENDER
    assert why(standby, topic, said(wire, State(True), federation="hall"), False) is Reason.WRONG_FEDERATION
    assert why(standby, topic, said(wire, Bye()), False) is Reason.MALFORMED
    assert why(standby, topic, b"", True) is Reason.MALFORMED  # The broker's retained message was deleted.
    assert why(standby, TOPICS.device_state("board"), mine, False) is Reason.WRONG_TOPIC


def test_a_device_rejects_probes_and_step_down_requests(tmp_path):
    ends = Ends(tmp_path)
    for message in (Probe(), StepDown(1, "hall-2")):
        header = Header(
            1, 0, 1, codec.KINDS[type(message)], "test", "", 1, COORDINATOR, 1, 1, "a", 0, "", b""
        )
        frame = ends.sealed(header, codec.encode(message), COORDINATOR, "a")
        assert why(ends.links["a"], Topics("test").down("a"), frame, 0.0) is Reason.MALFORMED


@pytest.mark.parametrize(
    "fields", [{"by": "x" * 65}, {"by": "a\nb"}, {"by": 7}, {"epoch": -1}, {"epoch": True}]
)
def test_a_request_to_step_down_with_an_impossible_field_is_malformed(wire, leader, fields):
    header, _ = read_header(said(wire, StepDown(1, "x")))
    frame = seal(header, msgpack.packb({"epoch": 1, "by": "x", **fields}), KEYS.sign)
    assert why(leader, TOPICS.coord_probe, frame, 0.0) is Reason.MALFORMED
