"""A coordinator handles hellos, and a hello without news changes nothing."""

from dataclasses import replace

import pytest

from protofleet.coordinator.round.events import Joined, Stage, Unenrolled
from protofleet.protocol.wire.messages import Hello
from tests.support.small_federation import POLICY, assert_same, simulation

LOOK_FOR_A_LATER_COORDINATOR = "SELECT epoch FROM run"


class Waiting:
    """A run in which two of three devices have answered round 1 and the third has lost its task."""

    def __init__(self, folder, **policy):
        self.run = run = simulation(folder, "fedavg", policy=replace(POLICY, patience_seconds=1e6, **policy))
        run.run(until=lambda: len(run.agents) == 3)
        self.hellos, self.told = {}, []
        for device, agent in run.agents.items():
            agent.link.send = self._keeping(device, agent.link.send)
        run.run(until=lambda: run.service.run.machine.asked == "train")
        run.workers["device-2"].alive = False
        self.pass_seconds(50.0)
        assert run.service.run.machine.waited_for == {"device-2"}
        run.service.run.observers.append(self)

    def _keeping(self, device, send):
        def sent(message):
            if isinstance(message, Hello):
                self.hellos[device] = message
            send(message)

        return sent

    def pass_seconds(self, seconds):
        until = self.run.clock.now + seconds
        self.run.clock.call_at(until, lambda: None)
        self.run.run(until=lambda: self.run.clock.now >= until)

    def happened(self, run, event, commands, now):
        self.told.append(event)

    def answered(self, run, update, now):
        """Do nothing, as these tests do not look at answers."""

    def stepped(self, run, step, now):
        """Do nothing, as these tests do not look at steps."""

    def greet(self, device, **other):
        """Send the last hello of a device again, and return the index's SQL statements and the events that follow."""
        statements, self.told = [], []
        db = self.run.service.run.spool.index.db
        db.set_trace_callback(statements.append)
        self.run.agents[device].link.send(replace(self.hellos[device], **other))
        self.pass_seconds(0.5)
        db.set_trace_callback(None)
        return statements, self.told


@pytest.fixture
def waiting(tmp_path):
    return Waiting(tmp_path)


def test_a_hello_without_news_causes_no_event_and_no_row(waiting):
    waiting.greet("device-0")  # Its first hello after its answer has news.
    for _ in range(3):
        statements, events = waiting.greet("device-0")
        assert statements == [LOOK_FOR_A_LATER_COORDINATOR] and not events


def test_a_hello_of_a_device_without_an_answer_repeats_its_task(waiting):
    _, events = waiting.greet("device-2")
    assert events[0] == Joined("device-2")
    assert waiting.run.service.run.machine.round > 1, "device-2 has answered, and the round has ended"


@pytest.mark.parametrize("other", [{"examples": 47}, {"domain": "elsewhere"}, {"holds": (bytes(32),)}])
def test_a_hello_with_news_causes_one_event(waiting, other):
    waiting.greet("device-0")
    assert waiting.greet("device-0", **other)[1] == [Joined("device-0")]


def test_a_device_that_left_joins_again_by_the_same_hello(waiting):
    waiting.greet("device-0")
    waiting.run.service.run.participants.bye_received("device-0", "")
    assert "device-0" not in waiting.run.service.run.machine.roster
    assert waiting.greet("device-0")[1] == [Joined("device-0")]
    assert "device-0" in waiting.run.service.run.machine.roster


def test_the_software_of_a_device_is_kept_if_later_hellos_leave_it_out(waiting):
    waiting.greet("device-0")
    known = waiting.run.service.run.participants.software
    waiting.greet("device-0", software="0.1.0; a board", examples=41)
    waiting.greet("device-0", software="0.1.0", examples=42)
    assert known["device-0"] == "0.1.0; a board"
    waiting.greet("device-0", software=f"0.2.0; {'x' * 400}", examples=43)
    assert known["device-0"].startswith("0.2.0; x") and len(known["device-0"]) == 300


@pytest.fixture
def two_suffice(tmp_path):
    return Waiting(tmp_path, quorum=2)


def after_a_revocation(waiting, die_in_between):
    """End the enrolment of device-2 while the run waits for it, and return the run after its end."""
    run = waiting.run
    del run.keyring["device-2"]
    if die_in_between:
        run.kill("coordinator")
        run.boot_coordinator()
    waiting.pass_seconds(60.0)
    assert run.service.run.machine.round > 1, "patience_seconds are a million"
    run.run()
    return run


def test_a_device_that_is_revoked_during_a_round_is_left_out_at_once_and_reported_once(two_suffice, caplog):
    after_a_revocation(two_suffice, die_in_between=False)
    said = [line for line in caplog.messages if line.startswith("device-2 is not enrolled any more: ")]
    assert said == [
        "device-2 is not enrolled any more: there is no key of it any more; the run does not wait for this "
        "device, and the device takes no further part in the run"
    ]
    assert Unenrolled("device-2", "there is no key of it any more") in two_suffice.told


def test_a_coordinator_that_is_killed_after_a_revocation_computes_the_same_bits(
    two_suffice, tmp_path_factory
):
    unbroken = Waiting(tmp_path_factory.mktemp("unbroken"), quorum=2)
    assert_same(after_a_revocation(unbroken, False), after_a_revocation(two_suffice, True))


def test_a_round_that_needs_a_revoked_device_begins_again_at_once(waiting):
    del waiting.run.keyring["device-2"]
    waiting.pass_seconds(10.0)
    machine = waiting.run.service.run.machine
    assert (machine.stage, machine.round, machine.attempt) == (Stage.GATHERING, 1, 1)


def test_records_are_checked_every_few_seconds_during_a_wait_and_not_at_each_turn(waiting):
    looks = []

    class Counting(dict):
        def __contains__(self, name):
            looks.append(name)
            return super().__contains__(name)

    waiting.run.service.context.link.keyring = Counting(waiting.run.keyring)
    waiting.pass_seconds(100.0)
    assert 15 <= looks.count("device-2") <= 25
