"""Tests of the link between operators and a coordinator: refusals, repeated commands and rate limits."""

from dataclasses import replace

import pytest

from protofleet.protocol.link.clocks import Clock
from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.link.operators import CommandReceiver, CommandSender, ReceivedNews
from protofleet.protocol.link.rate_limit import FRAME_BURST
from protofleet.protocol.security.keys import Identity, Keys
from protofleet.protocol.security.operators import OperatorRecord
from protofleet.protocol.wire.messages import Bye, CommandOutcome, CommandRequest, News
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.reasons import Reason, Rejected
from protofleet.protocol.wire.topics import Topics

TOPICS, NOW = Topics("lab"), 1_800_000_000
STOP = CommandRequest(bytes(16), "stop", b'{"run": "red"}')
DONE = CommandOutcome(STOP.id, "done", "the run is stopped", b"{}")


class Wire:
    """A transport that keeps each frame with its topic."""

    def __init__(self):
        self.sent = []

    def publish(self, topic, frame, retain=False, qos=1):
        self.sent.append((topic, frame))
        self.qos = qos


class World:
    """A coordinator with the device `board` and the operators `alice` and `bob`."""

    def __init__(self):
        self.keys = {name: Keys.new() for name in (COORDINATOR, "board", "alice", "bob")}
        self.public = {name: keys.public for name, keys in self.keys.items()}
        self.operators = {
            name: OperatorRecord(
                "lab", name, self.public[name].sign, self.public[name].receive, 7, 1, 2, frozenset({"run"})
            )
            for name in ("alice", "bob")
        }
        self.clock, self.wire = Clock(lambda: NOW), Wire()
        self.boot()

    def boot(self, epoch=NOW):
        devices = {"board": self.public["board"]}
        me = Identity(COORDINATOR, epoch, self.keys[COORDINATOR])
        self.link = CoordinatorLink(me, devices, TOPICS, self.wire, True, self.clock)
        self.coordinator = CommandReceiver(self.link, self.operators)

    def sender(self, name="alice", boot=NOW, sealed=True, keys=None):
        me = Identity(name, boot, keys or self.keys[name])
        return CommandSender(
            me, {COORDINATOR: self.public[COORDINATOR]}, TOPICS, self.wire, sealed, self.clock
        )

    def frame(self, command=STOP, **sender):
        self.sender(**sender).send(command)
        return self.wire.sent[-1]

    def why(self, topic, frame, now=0.0):
        with pytest.raises(Rejected) as fault:
            self.coordinator.arrived(topic, frame, now)
        return fault.value.reason


def test_a_command_and_its_result_arrive_once():
    world = World()
    alice = world.sender()
    alice.send(STOP)
    heard = world.coordinator.arrived(*world.wire.sent[-1], 0.0)
    assert (heard.operator.name, heard.request, heard.boot, heard.newest) == ("alice", STOP, NOW, 1)
    assert world.coordinator.arrived(*world.wire.sent[-1], 0.0) is None
    world.coordinator.answer("alice", DONE)
    assert alice.arrived(*world.wire.sent[-1]) == DONE and alice.arrived(*world.wire.sent[-1]) is None
    world.coordinator.answer("bob", DONE)  # A result for another operator does not open.
    topic, frame = world.wire.sent[-1]
    with pytest.raises(Rejected):
        alice.arrived(TOPICS.results_of("alice"), frame)
    del world.operators["bob"]
    world.coordinator.answer("bob", DONE)
    assert world.wire.sent[-1] == (topic, frame)


def test_a_restarted_coordinator_does_not_accept_an_earlier_command_again():
    world = World()
    topic, frame = world.frame()
    heard = world.coordinator.arrived(topic, frame, 0.0)
    world.boot(NOW + 1)
    world.coordinator.remember({"alice": (heard.boot, heard.newest, heard.operator.holder)})
    assert world.coordinator.arrived(topic, frame, 0.0) is None
    assert world.why(*world.frame(boot=NOW - 5)) is Reason.STALE_BOOT
    assert world.coordinator.arrived(*world.frame(boot=NOW + 1), 0.0)
    world.operators["alice"] = replace(world.operators["alice"], sign=world.public["bob"].sign)
    stolen = world.frame(boot=NOW + 2)
    assert world.why(*stolen) is Reason.BAD_SIGNATURE  # The operator has new keys now.


def test_each_invalid_command_is_refused_with_its_reason():
    world = World()
    topic, frame = world.frame()
    assert world.why(TOPICS.commands_of("bob"), frame) is Reason.WRONG_TOPIC
    assert world.why(topic, frame[:-1] + bytes([frame[-1] ^ 1])) is Reason.BAD_SIGNATURE
    assert world.why(topic, b"PF\x02" + bytes(40)) is Reason.MALFORMED
    assert world.why(topic, bytes(2 << 20)) is Reason.TOO_LARGE
    assert world.why(*world.frame(sealed=False)) is Reason.NOT_SEALED
    assert world.why(*world.frame(name="board")) is Reason.UNKNOWN_SENDER
    assert world.why(*world.frame(keys=world.keys["board"])) is Reason.BAD_SIGNATURE
    assert world.why(*world.frame(boot=NOW + 90_000)) is Reason.BOOT_AHEAD
    assert world.why(*world.frame(command=Bye("x"))) is Reason.MALFORMED
    assert world.why(*world.frame(command=replace(STOP, id=bytes(17)))) is Reason.MALFORMED
    assert world.why(*world.frame(command=replace(STOP, args=bytes(200_000)))) is Reason.MALFORMED
    assert world.link.unassigned.meter.rejected[Reason.MALFORMED] == 4
    assert world.coordinator.arrived(topic, frame, 0.0).request == STOP
    # A command is refused on the topic of a device, and counts there towards the rate limit of the device.
    with pytest.raises(Rejected, match="unknown_sender"):
        world.link.arrived(TOPICS.up("alice"), frame, 0.0)


def test_a_flood_by_one_operator_or_device_blocks_no_command_of_another_operator():
    world = World()
    floods = []
    world.coordinator.rate_limiter.on_flood = floods.append
    for _ in range(2_000):
        for name in ("alice", "board", "nobody"):
            with pytest.raises(Rejected):
                world.coordinator.arrived(TOPICS.commands_of(name), b"", 0.0)
    assert set(floods) == {"alice"} and world.why(*world.frame()) is Reason.FLOOD
    bob = world.sender("bob")
    for _ in range(int(FRAME_BURST)):
        bob.send(STOP)
        assert world.coordinator.arrived(*world.wire.sent[-1], 0.0)


def test_news_have_run_and_epoch_and_only_the_last_news_are_sent_at_qos_1():
    world = World()
    alice, some = world.sender(), News(3, ("round 1 of 2",))
    for news, qos in ((some, 0), (replace(some, over="finished"), 1)):
        world.coordinator.tell("alice", "red", news)
        topic, frame = world.wire.sent[-1]
        assert (topic, world.wire.qos) == (TOPICS.results_of("alice"), qos)
        assert alice.arrived(topic, frame) == ReceivedNews("red", NOW, news)
        assert alice.arrived(topic, frame) is None
    del world.operators["alice"]
    world.coordinator.tell("alice", "red", some)
    assert len(world.wire.sent) == 2
    assert world.why(*world.frame(name="bob", command=some)) is Reason.MALFORMED
