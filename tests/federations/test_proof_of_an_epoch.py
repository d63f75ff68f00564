"""A device proves the highest epoch that it has seen to a coordinator with a lower epoch, and does not follow it."""

import shutil

import pytest

from protofleet.coordinator.leading.behind import BehindError
from protofleet.protocol.link.base import unverified_header
from protofleet.protocol.link.own_topic import opened_by_own_key
from protofleet.protocol.security.envelope import OPEN, Header, seal
from protofleet.protocol.security.keys import Keys
from protofleet.protocol.wire import codec
from protofleet.protocol.wire.messages import HERE, Hello, State, Welcome
from protofleet.protocol.wire.names import COORDINATOR, EVERYBODY
from protofleet.protocol.wire.reasons import Reason
from tests.support.small_federation import assert_same, simulation

SECONDS = 600.0
LATER = 5  # Epochs between the backup and the newest coordinator.


def restore_epoch_one(run, folder):
    """Let the devices receive higher epochs, and start the coordinator from a copy of its first epoch.

    The broker has lost its retained messages, so only the devices know the higher epoch.
    """
    shutil.copytree(folder / "coordinator", folder / "backup")
    for _ in range(LATER):
        run.kill(COORDINATOR)
        run.boot_coordinator()
        run.run(
            until=lambda: {agent.link.epoch for agent in run.agents.values()} == {run.service.link.epoch},
            limit=SECONDS,
        )
    run.kill(COORDINATOR)
    shutil.rmtree(folder / "coordinator")
    shutil.copytree(folder / "backup", folder / "coordinator")
    run.boots = 0
    run.broker.retained.clear()
    run.boot_coordinator()


def hellos(run):
    """Return a list that gets the time and the message of each hello of the devices."""
    found = []
    for agent in run.agents.values():
        send = agent.link.send

        def sent(message, send=send):
            if isinstance(message, Hello):
                found.append((run.clock.now, message))
            send(message)

        agent.link.send = sent
    return found


@pytest.fixture
def behind(tmp_path):
    """Return a run whose restored coordinator has an epoch below the epoch that the devices have seen."""
    run = simulation(tmp_path, "fedavg")
    run.run(until=lambda: bool(run.service.run.machine.answered), limit=SECONDS)
    restore_epoch_one(run, tmp_path)
    return run


def test_a_coordinator_with_a_lower_epoch_than_its_devices_ends_and_names_the_fix(behind):
    epoch = behind.agents["device-0"].link.epoch
    assert epoch == 1 + LATER > behind.service.link.epoch
    behind.run(until=lambda: behind.service.finished, limit=60.0)
    assert isinstance(behind.service.end, BehindError) and behind.service.end.proven == epoch
    assert "--restored" in behind.service.stopped and str(epoch) in behind.service.stopped
    assert behind.service.context.higher_epochs > 0
    frame = behind.broker.retained[behind.topics.coord_state]
    header, state = opened_by_own_key(behind.keys[COORDINATOR], "simulated", frame)
    assert header.epoch < epoch and not state.online, "other parties must not consider the process alive"
    assert {agent.link.epoch for agent in behind.agents.values()} == {epoch}, "no device follows it"


def test_a_coordinator_that_claims_an_epoch_above_the_proved_epoch_continues(behind, tmp_path):
    behind.run(until=lambda: behind.service.finished, limit=60.0)
    behind.boots = behind.service.end.proven
    behind.kill(COORDINATOR)
    behind.boot_coordinator()
    behind.run(limit=SECONDS)
    assert behind.service.run.view.over and not behind.service.end
    whole = simulation(tmp_path / "whole", "fedavg").run(limit=SECONDS)
    assert_same(behind, whole)


def test_each_device_proves_an_epoch_at_most_once_a_minute(behind):
    sent = hellos(behind)
    behind.service.link.proven_epoch = lambda frame: 0  # The coordinator does not notice the proof.
    behind.run(until=lambda: False, limit=200.0)
    for device in behind.agents:
        times = [at for at, hello in sent if hello.device == device and hello.last_state]
        assert 3 <= len(times) <= 4 and all(b - a > 59.9 for a, b in zip(times, times[1:], strict=False))


def test_the_hellos_of_a_run_with_rising_epochs_have_no_state(tmp_path):
    run = simulation(tmp_path, "fedavg")
    sent = hellos(run)
    run.run(until=lambda: run.service.run.machine.round == 2, limit=SECONDS)
    run.kill(COORDINATOR)
    run.boot_coordinator()
    run.run(limit=SECONDS)
    assert run.service.run.view.over and sent and not any(hello.last_state for _, hello in sent)


def welcomes(run):
    """Return a list that gets each device to which the coordinator sends a welcome."""
    found, send = [], run.service.run.link.send

    def sent(device, message, *more):
        if isinstance(message, Welcome):
            found.append(device)
        return send(device, message, *more)

    run.service.run.link.send = sent
    return found


def state_of(run, epoch, keys=None, federation="simulated", state=State(True)):
    keys = keys or run.keys[COORDINATOR]
    header = Header(
        1, 0, OPEN, codec.KINDS[type(state)], federation, "simulated", epoch, COORDINATOR, epoch, 1, EVERYBODY, 0, "",
        b"",
    )  # fmt: skip
    return seal(header, codec.encode(state), keys.sign)


def tell(run, frame, epoch=0):
    """Let a device send a hello with this state, whose header has the epoch."""
    link = run.agents["device-0"].link
    link.epoch, before = epoch or link.epoch, link.epoch
    made = Hello("device-0", 3, 5, last_state=frame)
    link.send(made)
    link.epoch = before
    run.run(until=lambda: False, limit=0.5)


OF_THE_WHOLE_HELLO = ("oversized",)  # The hello itself cannot be read.


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("forged", Reason.BAD_SIGNATURE),
        ("of a device", Reason.UNKNOWN_SENDER),
        ("foreign", Reason.WRONG_FEDERATION),
        ("nonsense", Reason.MALFORMED),
        ("oversized", Reason.MALFORMED),
        ("years ahead", Reason.EPOCH_AHEAD),
        ("of the same epoch", None),
        ("of a lower epoch", None),
        ("of another kind", None),
        ("only in the header", None),
    ],
)
def test_a_hello_with_an_invalid_proof_is_harmless(tmp_path, fault, reason):
    run = simulation(tmp_path, "fedavg")
    run.run(until=lambda: bool(run.service.run.machine.cohort), limit=SECONDS)
    high, epoch = 10_000, run.service.link.epoch
    frame = {
        "forged": lambda: state_of(run, high, Keys.new()),
        "of a device": lambda: (
            run.agents["device-0"].link.seal(State(True)).replace(b"device-0", b"device-9")
        ),
        "foreign": lambda: state_of(run, high, federation="other"),
        "nonsense": lambda: b"PF\x01 nonsense",
        "oversized": lambda: state_of(run, high, state=State(True, "x" * 400)),
        "years ahead": lambda: state_of(run, 1 << 40),
        "of the same epoch": lambda: state_of(run, epoch),
        "of a lower epoch": lambda: state_of(run, epoch - 1),
        "of another kind": lambda: state_of(run, high, state=Hello(COORDINATOR, 3, 5)),
        "only in the header": lambda: b"",
    }[fault]()
    replies = welcomes(run)
    before = run.service.link.legacy.meter.rejected.copy()
    counted = run.service.context.higher_epochs
    tell(run, frame, epoch=1 << 40 if fault == "only in the header" else 0)
    assert dict(run.service.link.legacy.meter.rejected - before) == ({reason: 1} if reason else {})
    assert run.service.context.higher_epochs - counted == (fault == "only in the header")
    assert bool(replies) == (fault not in OF_THE_WHOLE_HELLO), "the rest of the hello counts"
    run.run(limit=SECONDS)
    assert run.service.run.view.over and not run.service.end and run.service.link.epoch == epoch


@pytest.mark.parametrize("state", [State(False, "connection lost"), State(True, HERE)])
def test_a_device_sends_its_proof_only_to_a_coordinator_that_is_online(tmp_path, state):
    """The broker may publish the will of an earlier coordinator late."""
    run = simulation(tmp_path, "fedavg")
    run.boots = 10
    run.kill(COORDINATOR)
    run.boot_coordinator()
    run.run(until=lambda: bool(run.service.run.machine.cohort), limit=SECONDS)
    sent = hellos(run)
    frame = state_of(run, 3, state=state)
    assert unverified_header(frame).epoch == 3
    run.broker.publish(run.topics.coord_state, frame, retain=False)
    run.run(until=lambda: False, limit=10.0)
    assert bool([hello for _, hello in sent if hello.last_state]) == state.online
    run.run(limit=SECONDS)
    assert run.service.run.view.over and not run.service.end
