"""Devices send few hellos if the coordinator names the devices it waits for, and no device waits after the end."""

from dataclasses import replace
from itertools import pairwise

import pytest

from protofleet.coordinator.here_timer import ASK_SECONDS
from protofleet.coordinator.round.events import Stage
from protofleet.coordinator.shutdown import AGAIN_SECONDS, STAY_SECONDS
from protofleet.edge_client.conversation.hello_timer import (
    HEARD_SECONDS,
    LEAST_OF_QUIET,
    QUIET_SECONDS,
    HelloTimer,
)
from protofleet.protocol.security.envelope import read_header
from protofleet.protocol.wire.blocks import is_block
from protofleet.protocol.wire.messages import HERE, RoundStatus, State, Welcome
from tests.support.small_federation import POLICY, assert_same, simulation

LONG = 20.0  # seconds of work; after its first `here` a device is quiet
SLOW = replace(POLICY, patience_seconds=1e6)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return simulation(tmp_path_factory.mktemp("honest"), "fedavg").run()


class EnvelopeLog:
    """A record of all envelopes with the times of sending; the broker loses those that `drops` selects."""

    def __init__(self, run, drops=lambda header, topic: False):
        self.heard, self.drops, self._run = [], drops, run
        self._publish, run.broker.publish = run.broker.publish, self._hear

    def _hear(self, topic, frame, retain):
        if not is_block(frame):
            header = read_header(frame)[0]
            self.heard.append((self._run.clock.now, header, topic))
            if self.drops(header, topic):
                return
        self._publish(topic, frame, retain)

    def times(self, kind, sender):
        return [at for at, header, _ in self.heard if (header.kind, header.sender) == (kind, sender)]


def gaps(times):
    return [after - before for before, after in pairwise(times)]


def waiting_for_one(folder):
    """Run a round in which two devices send updates and the third never ends its work.

    Return the log of the envelopes from the task to second 3000.
    """
    run = simulation(folder, "fedavg", policy=SLOW)
    run.run(until=lambda: run.service.run.machine.asked == "train")
    run.workers["device-2"].alive = False
    log = EnvelopeLog(run)
    run.clock.call_at(3000.0, lambda: None)
    run.run(until=lambda: run.clock.now >= 3000.0)
    return log


def test_a_device_that_has_sent_its_update_sends_hello_about_every_ten_minutes(tmp_path):
    log = waiting_for_one(tmp_path)
    hellos = log.times("hello", "device-0")
    assert 3 <= len(hellos) <= 6
    assert all(LEAST_OF_QUIET * QUIET_SECONDS <= pause <= QUIET_SECONDS for pause in gaps(hellos)), hellos
    others = log.times("hello", "device-1")
    assert not set(map(round, hellos[1:])) & set(map(round, others[1:])), "each at its own time"


def test_a_device_that_works_on_its_task_sends_few_hellos(tmp_path):
    log = waiting_for_one(tmp_path)
    assert len(log.times("hello", "device-2")) <= 5


def test_a_device_outside_the_cohort_sends_few_hellos(tmp_path):
    run = simulation(tmp_path, "fedavg", policy=replace(SLOW, quorum=2, cohort=2, gather=3))
    run.run(until=lambda: run.service.run.machine.asked == "train")
    asked = run.service.run.machine.cohort
    (outside,) = set(run.agents) - set(asked)
    for device in asked:
        run.workers[device].alive = False
    log = EnvelopeLog(run)
    run.clock.call_at(3000.0, lambda: None)
    run.run(until=lambda: run.clock.now >= 3000.0)
    hellos = log.times("hello", outside)
    assert 3 <= len(hellos) <= 9, hellos


def test_devices_send_many_hellos_if_here_messages_lack_the_round_status(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "protofleet.coordinator.participants.Participants.round_status", lambda participants: None
    )
    log = waiting_for_one(tmp_path)
    assert len(log.times("hello", "device-0")) > 150


@pytest.mark.parametrize("words_lost", [0, 1, 2])
def test_a_device_sends_hello_at_the_next_here_after_its_task_was_lost(tmp_path, honest, words_lost):
    run, lost = simulation(tmp_path, "fedavg"), []
    run.work_seconds = LONG
    for worker in run.workers.values():
        worker.seconds = LONG

    def first_task_of_round_2_and_later_heres(header, topic):
        task = header.kind == "task" and header.round == 2 and topic.endswith("device-1")
        here = topic == run.topics.coord_state and lost
        if (task and not lost) or (here and len(lost) <= words_lost):
            lost.append(run.clock.now)
            return True
        return False

    log = EnvelopeLog(run, first_task_of_round_2_and_later_heres)
    run.run()
    asked = min(at for at in log.times("hello", "device-1") if at > lost[0])
    assert asked - lost[0] == pytest.approx(2**words_lost * ASK_SECONDS, abs=0.1)
    assert_same(honest, run)


def test_the_coordinator_sends_a_lost_finished_message_again(tmp_path, honest):
    run, lost = simulation(tmp_path, "fedavg"), []
    run.work_seconds = LONG
    for worker in run.workers.values():
        worker.seconds = LONG

    def drops(header, topic):
        last_words = header.kind == "finished" or (
            topic == run.topics.coord_state and run.service.run.machine.stage is Stage.FINISHED
        )
        if last_words and run.clock.now < (lost or [1e9])[0] + 1:
            lost.append(run.clock.now)
            return True
        return False

    EnvelopeLog(run, drops)
    run.run()
    assert run.service.finished and all(agent.finished for agent in run.agents.values())
    assert run.clock.now - lost[0] == pytest.approx(AGAIN_SECONDS, abs=0.1)
    assert_same(honest, run)


def test_a_device_sends_hello_after_a_long_time_without_a_here(tmp_path):
    """All messages of the coordinator are lost from second 100."""
    run = simulation(tmp_path, "fedavg", policy=SLOW)
    run.run(until=lambda: run.service.run.machine.asked == "train")
    run.clock.call_at(100.0, lambda: None)
    run.workers["device-2"].alive = False
    run.run(until=lambda: run.clock.now >= 100.0)
    quiet = run.agents["device-0"]
    log = EnvelopeLog(run, lambda header, topic: header.sender == "coordinator")
    run.run(until=lambda: log.times("hello", "device-0"))
    assert run.clock.now == pytest.approx(61.0 + HEARD_SECONDS, abs=1), "the last `here` was at 61"
    assert not quiet.finished and HEARD_SECONDS < STAY_SECONDS


def test_a_coordinator_ends_at_once_after_all_devices_have_finished(tmp_path, honest):
    last = max(agent.state.last_round for agent in honest.agents.values())
    assert last and honest.service.finished and all(agent.finished for agent in honest.agents.values())
    run = simulation(tmp_path, "fedavg")
    log = EnvelopeLog(run)
    run.run()
    ended = [at for at, header, _ in log.heard if header.kind == "finished"][0]
    assert run.clock.now - ended < 0.1


def test_a_coordinator_waits_a_limited_time_for_a_lost_bye(tmp_path):
    run = simulation(tmp_path, "fedavg")
    log = EnvelopeLog(run, lambda header, topic: header.kind == "bye" and header.sender == "device-1")
    run.run()
    ended = [at for at, header, _ in log.heard if header.kind == "finished"][0]
    assert run.service.finished and run.clock.now - ended == pytest.approx(STAY_SECONDS, abs=1)


def test_broadcast_blocks_for_other_devices_are_not_rejected(tmp_path):
    """Every device subscribes to the common topic, and two of three devices get a task in each round."""
    rules = replace(POLICY, rounds=6, quorum=2, cohort=2)
    run = simulation(tmp_path, "fedavg", policy=rules).run()
    meters = [agent.link.meter.snapshot() for agent in run.agents.values()]
    assert sum(meter.messages["down", "block", "for_others"] for meter in meters) > 0
    assert not [meter.rejected for meter in meters if sum(meter.rejected.values())]


def test_a_hello_without_a_welcome_is_repeated_within_15_s_even_if_heres_arrive():
    timer = HelloTimer("device-0")
    timer.coordinator_is(1)
    timer.hello_sent(100.0)
    due = timer.next_hello(100.0)
    assert 107.5 <= due <= 115.0
    for now in range(101, 107):
        timer.heard(State(True, HERE, now=RoundStatus(1, "train", 0, ())), 1)
        assert timer.next_hello(now) == due
    timer.heard(Welcome(b""), 1)
    assert timer.next_hello(115.0) > 130.0
