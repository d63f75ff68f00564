"""A coordinator that leads answers probes, ends for another one, and finds out which process took its name."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from protofleet.coordinator.leader import Leader
from protofleet.coordinator.leading.look import Blocked, Clear, Rank, Taken
from protofleet.coordinator.leading.standby import Looked
from protofleet.protocol.link.base import Received
from protofleet.protocol.link.standby import SeenState
from protofleet.protocol.transport.base import Disconnected
from protofleet.protocol.wire.messages import CONNECTION_LOST, State, StepDown
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.topics import Topics
from protofleet.runtime.command.errors import OutrankedError, RunError, SteppedDownError

ME = "hall-1 pid 7 folder 0123abcd start 00000001"
OTHER = "hall-2 pid 9 folder 4567cdef start 00000002"
CLEAR = Clear(50)


class World:
    """A coordinator of epoch 50, and all messages that it sends."""

    def __init__(self, folder, looks=True):
        self.said, self.ends, self.looks, self.reconnects = [], [], [], 0
        link = SimpleNamespace(epoch=50, who=ME, topics=Topics("lab"))
        bans = SimpleNamespace(folder=Path(folder) / "runs" / "spring" / "coordinator")
        self.context = SimpleNamespace(link=link, bans=bans, now=0.0, announce=self.said.append)
        self.leader = Leader(
            self.context,
            self.ends.append,
            lambda: self.said.append("birth"),
            lambda: self.said.append("here"),
        )
        self.leader.reconnect = self.reconnected
        if looks:
            self.leader.look = lambda rank, then: self.looks.append((rank, then))

    def reconnected(self):
        self.reconnects += 1

    def hear(self, epoch=50, online=True, reason="", who=OTHER, retained=False, now=0.0):
        state = State(online, reason, who)
        self.leader.state_received(Received(COORDINATOR, state, "red", epoch), state, retained, now)

    def cut(self, now, result=CLEAR, lasted=1.0, at_once=True, taken_over=False):
        """Let the connection end after some seconds, and let the look end with this result."""
        self.leader.connected(now - lasted)
        self.context.now = now
        self.leader.cut(Disconnected("gone", taken_over=taken_over), now)
        if self.looks:
            rank, then = self.looks.pop()
            assert rank == Rank(50, ME)
            then(Looked(result, at_once))


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_the_leader_answers_at_most_one_probe_a_second(world):
    for number in range(30):
        world.leader.probed(number / 10)
    assert world.said == ["here"] * 3


def test_only_a_request_for_its_own_epoch_ends_the_leader_at_the_end_of_the_turn(world):
    for epoch in (0, 49, 51):
        world.leader.asked_to_end(StepDown(epoch, OTHER))
        world.leader.end_turn()
    assert not world.said and not world.ends
    world.leader.asked_to_end(StepDown(50, OTHER))
    assert not world.said and not world.ends
    world.leader.end_turn()
    (said,), (end,) = world.said, world.ends
    assert not said.online and said.reason == "another coordinator takes over"
    assert isinstance(end, SteppedDownError) and str(end).endswith(f"because {OTHER} takes over")


def test_the_leader_ends_without_a_message_if_a_state_has_precedence(world):
    world.hear(epoch=51)
    (end,) = world.ends
    assert isinstance(end, OutrankedError) and not world.said and world.leader.wake_at == float("inf")
    assert "it has epoch 51 and run red, this one has epoch 50" in str(end) and OTHER in str(end)


def test_the_leader_sends_one_birth_after_late_wills(world):
    world.hear(49, False, CONNECTION_LOST, now=100.0)
    world.hear(48, False, CONNECTION_LOST, now=100.5)
    assert not world.ends and world.leader.wake_at == 101.5
    for now in (101.4, 101.5, 200.0):
        world.leader.wake(now)
    assert world.said == ["birth"]


def test_a_birth_that_was_due_at_the_end_of_a_connection_is_not_sent_later(world):
    world.hear(49, False, CONNECTION_LOST, now=100.0)
    world.cut(100.5)
    assert world.leader.wake_at == float("inf")
    world.leader.wake(200.0)
    assert world.said == []


def test_a_short_connection_counts_as_a_cut_and_the_sixth_cut_in_ten_minutes_ends_the_leader(world):
    for number in range(5):
        world.cut(10.0 * number)
    assert not world.ends and world.reconnects == 5
    world.cut(60.0)
    (end,) = world.ends
    assert type(end) is RunError and "ended the connection 6 times within 10 minutes" in str(end)
    assert world.reconnects == 5


@pytest.mark.parametrize(
    ("more", "counts"),
    [
        ({"lasted": 61.0}, False),
        ({"lasted": 61.0, "taken_over": True}, True),
        ({"at_once": False}, False),
        ({"at_once": False, "taken_over": True}, True),
        ({"result": Blocked("not authorized", True)}, True),
    ],
)
def test_a_cut_does_not_count_if_the_network_or_the_broker_explains_it(world, more, counts):
    for number in range(8):
        world.cut(70.0 * number, **more)
    assert bool(world.ends) == counts


def test_after_a_cut_the_leader_ends_if_another_coordinator_leads(world):
    world.cut(10.0, result=None)
    assert not world.ends and not world.reconnects
    world.cut(20.0, Taken(SeenState(51, "red", State(True, who=OTHER), True), "hall-2 leads"))
    (end,) = world.ends
    assert isinstance(end, OutrankedError) and "epoch 51" in str(end) and not world.reconnects


def test_a_process_that_cannot_look_lets_its_transport_connect_again(tmp_path):
    world = World(tmp_path, looks=False)
    for number in range(8):
        world.cut(float(number))
    assert not world.ends and not world.reconnects
