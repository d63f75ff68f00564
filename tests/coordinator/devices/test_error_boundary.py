"""An error in a peer's message stops that peer, an internal error raises, and an observer's error does no harm."""

import errno
import logging

import pytest

import protofleet.coordinator.gate.gate
import protofleet.coordinator.participants
from protofleet.coordinator.answers import AnswerReceiver
from protofleet.coordinator.devices.bans import Bans
from protofleet.coordinator.devices.departures import Departures
from protofleet.coordinator.gate.gate import Gate
from protofleet.coordinator.spool.answer_log import DeviceAnswers
from protofleet.coordinator.spool.index import FencedError
from protofleet.coordinator.spool.spool import Spool
from protofleet.protocol.link.broadcast import Broadcast
from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.link.coordinator_run import CoordinatorRunLink
from protofleet.protocol.link.fetch import ObjectFetch
from protofleet.protocol.wire.messages import BlockRequest, Task
from protofleet.runtime.faults import OurFault
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import in_blocks, simulation

BAD = "device-1"
POLICY = RunPolicy(rounds=2, quorum=2, patience_seconds=20.0, grace_seconds=1.0, settle_seconds=0.5)


class Planted(Exception):
    pass


def plant(monkeypatch, place, name, when=lambda *given: True, times=10**9, what=Planted):
    """Let the method `name` of `place` raise `what` at the first `times` calls for which `when` is true."""
    honest, left = getattr(place, name), [times]

    def raises(*given, **more):
        if left[0] and when(*given):
            left[0] -= 1
            raise what("planted")
        return honest(*given, **more)

    monkeypatch.setattr(place, name, raises)


def of_update(receiver, update, *rest):
    return update.device == BAD


HANDLERS = {
    "hello": (protofleet.coordinator.participants, "hello_problem", lambda hello, *rest: hello.device == BAD),
    "bye": (Departures, "left", lambda departures, device, *rest: device == BAD),
    "update": (AnswerReceiver, "admit", of_update),
    "a broken body": (Gate, "completed", lambda gate, device: device == BAD),
    "its claims": (protofleet.coordinator.gate.gate, "update_problem", lambda update, member: update.device == BAD),
    "its space": (Gate, "reserve", lambda gate, device, size: device == BAD),
    "arrays": (DeviceAnswers, "open", lambda store, name: store.folder.parts[-2:] == ("updates", BAD)),
    "want": (Broadcast, "requested", lambda broadcast, device, *rest: device == BAD),
    "decoding": (CoordinatorLink, "open", lambda link, topic, frame: BAD in topic),
    "what it is sent": (CoordinatorRunLink, "publish", lambda link, topic, what, recipient="", *rest: (
        recipient == BAD)),
    "its task": (CoordinatorRunLink, "publish", lambda link, t, message, recipient="", *rest: (
        recipient == BAD and isinstance(message, Task))),
    "its fetch": (DeviceAnswers, "begin", lambda store, manifest: store.folder.parts[-2:] == ("updates", BAD)),
}  # fmt: skip


def asking(monkeypatch):
    """Let the devices be of minor version 0, which must ask for each broadcast that they get."""
    monkeypatch.setattr("protofleet.protocol.wire.forms.DEVICE_FORMS", ())


@pytest.mark.parametrize("handler", HANDLERS)
def test_an_error_in_the_work_for_one_device_stops_only_that_device(tmp_path, monkeypatch, caplog, handler):
    if handler == "want":
        asking(monkeypatch)
    run = simulation(tmp_path, "fedavg", policy=POLICY)
    in_blocks(run, monkeypatch)
    if handler == "bye":
        run.clock.call_at(1.0, lambda: run.agents[BAD].pause("paused"))
    plant(monkeypatch, *HANDLERS[handler])
    with caplog.at_level(logging.ERROR):
        run.run()
    assert run.service.finished and not run.service.stopped
    assert run.service.context.error_boundary.cut_off >= 1
    assert BAD in run.service.context.bans.ignored
    said = [record for record in caplog.records if record.exc_info and record.exc_info[0] is Planted]
    assert said and BAD in said[0].getMessage()
    assert BAD not in run.service.run.machine.roster


@pytest.mark.parametrize("moment", ["take", "wake", "fill"])
def test_an_error_in_a_fetch_stops_only_the_device_of_the_fetch(tmp_path, monkeypatch, moment):
    run = simulation(tmp_path, "fedavg", policy=POLICY)
    in_blocks(run, monkeypatch)

    class Fetched(ObjectFetch):
        """A fetch of the coordinator, not of a device."""

    if moment == "wake":
        Fetched.take = lambda fetch, *rest: ({}, False)  # Then it requests the blocks again.
    plant(monkeypatch, Fetched, moment, times=1)
    monkeypatch.setattr("protofleet.protocol.link.answer_fetcher.ObjectFetch", Fetched)
    run.clock.run(lambda: run.service.context.error_boundary.cut_off > 0, run.clock.now + 60)
    assert run.service.context.error_boundary.cut_off == 1 and len(run.service.context.bans.ignored) == 1
    assert not run.service.stopped


def test_an_error_in_a_delayed_block_counts_for_the_device_that_requested_it_first(
    tmp_path, monkeypatch, caplog
):
    """One device asks late, so blocks wait for it, and no message of a device is handled when they are sent."""
    asking(monkeypatch)
    run = simulation(tmp_path, "fedavg", policy=POLICY)
    link = run.agents[BAD].link
    send = link.send
    link.send = lambda message: (
        None if isinstance(message, BlockRequest) and run.clock.now < 4.0 else send(message)
    )
    plant(monkeypatch, CoordinatorRunLink, "send_block", times=1)
    run.run()
    assert (
        run.service.finished and not run.service.stopped and run.service.context.error_boundary.cut_off == 1
    )
    (said,) = [record.getMessage() for record in caplog.records if record.exc_info]
    assert said.startswith("an internal error occurred in the work for device-") and BAD not in said


def test_an_error_of_an_unknown_sender_aborts_no_fetch(tmp_path, monkeypatch):
    run = simulation(tmp_path, "fedavg", policy=POLICY)
    in_blocks(run, monkeypatch)
    begun, taken = [], []
    honest, take = DeviceAnswers.begin, ObjectFetch.take

    def begin(store, manifest):
        begun.append(store.folder)
        return honest(store, manifest)

    def error_meanwhile(fetch, *given):
        taken.append(fetch)
        run.service.context.error_boundary.exclude("")
        return take(fetch, *given)

    monkeypatch.setattr(DeviceAnswers, "begin", begin)
    monkeypatch.setattr(ObjectFetch, "take", error_meanwhile)
    run.run()
    of_answers = [folder for folder in begun if "updates" in folder.parts]
    assert run.service.finished and len(taken) > len(of_answers) == 2 * len(run.agents), (
        "each fetch is begun once"
    )


def test_a_paused_device_is_accepted_again_after_a_time_that_doubles(tmp_path, monkeypatch):
    bans = Bans(tmp_path)
    assert [bans.pause(BAD, 1000.0 * n) for n in range(3)] == [60.0, 120.0, 240.0]
    assert bans.drops(BAD) and not bans.drops("device-2")
    assert bans.refresh(2100.0) == 1 and bans.drops(BAD)
    bans.refresh(2241.0)
    assert not bans.drops(BAD) and bans.wake_at == float("inf")


class Faulty:
    """An observer that always raises."""

    def __init__(self):
        self.called = 0

    def happened(self, *given):
        self.called += 1
        raise Planted

    answered = stepped = happened


def test_an_observer_that_raises_stops_no_command_and_no_other_observer(tmp_path):
    class Counts:
        def __init__(self):
            self.called = 0

        def happened(self, *given):
            self.called += 1

        answered = stepped = happened

    faulty, counts = Faulty(), Counts()
    run = simulation(tmp_path, "fedavg", policy=POLICY, observers=[faulty, counts]).run()
    assert run.service.finished and len(run.service.run.machine.roster) == 3
    assert run.service.run.isolation.errors == faulty.called == counts.called > 10


@pytest.mark.parametrize("what", [FencedError, OSError, MemoryError])
@pytest.mark.parametrize("place", [(AnswerReceiver, "admit"), (CoordinatorLink, "open"), (Spool, "accept")])
def test_an_error_of_the_machine_is_raised_even_if_a_message_of_a_device_caused_it(
    tmp_path, monkeypatch, place, what
):
    run = simulation(tmp_path, "fedavg", policy=POLICY)
    plant(monkeypatch, *place, what=lambda words: what(errno.EIO, words) if what is OSError else what(words))
    with pytest.raises(what):
        run.run()


@pytest.mark.parametrize("step", ["save", "close_phase", "accept"])
def test_an_error_in_a_durable_step_is_raised_and_stops_no_device(tmp_path, monkeypatch, step):
    run = simulation(tmp_path, "fedavg", policy=POLICY)
    plant(monkeypatch, Spool, step)
    with pytest.raises(OurFault, match="could not be carried out"):
        run.run()
    assert run.service.context.error_boundary.cut_off == 0


def test_a_key_that_disappears_between_two_reads_is_read_once(tmp_path):
    class Vanishing(dict):
        """A folder of records in which each record can be read only once."""

        def __getitem__(self, name):
            return self.pop(name)

        def get(self, name, default=None):
            return self.pop(name, default)

    run = simulation(tmp_path, "fedavg", policy=POLICY)
    run.run(until=lambda: len(run.service.run.machine.roster) == 3)
    party, link = run.service.link, run.service.run.link
    party.keyring = Vanishing(party.keyring)
    before = link.meter.messages.total()
    for _ in range(2):
        link.send(BAD, Task(1, "train"))
    assert link.meter.messages.total() == before + 1 and run.service.context.error_boundary.cut_off == 0
