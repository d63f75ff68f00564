"""A broker that keeps all frames and replays them: later, on other topics, or to restarted parties."""

import re
from dataclasses import replace

import pytest

from protofleet.coordinator.here_timer import HERE_SECONDS
from protofleet.coordinator.observe.metrics import Metrics
from protofleet.coordinator.spool.spool import Accepted, FencedError, Spool
from protofleet.edge_client.conversation.coordinator_watchdog import SILENT_SECONDS
from protofleet.protocol.link.clocks import Clock
from protofleet.protocol.security.envelope import read_header
from protofleet.protocol.transport.base import Arrived
from protofleet.protocol.wire import blocks
from protofleet.protocol.wire.reasons import Reason
from tests.support.small_federation import POLICY, assert_same, simulation

ANSWER = Accepted("a", b"", bytes(32), 5, {})


def recorded(run):
    kept, publish, run.times = [], run.broker.publish, []

    def listen(topic, frame, retain):
        kept.append((topic, frame))
        run.times.append(run.clock.now)
        publish(topic, frame, retain)

    run.broker.publish = listen
    return kept


def deliver(run, name, frames):
    for topic, frame in frames:
        run.broker.clients[name].deliver(Arrived(topic, frame))


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return simulation(tmp_path_factory.mktemp("honest"), "fedavg").run()


def test_replayed_messages_of_a_device_are_duplicates_for_a_restarted_coordinator(tmp_path, honest):
    run = simulation(tmp_path, "fedavg")
    kept = recorded(run)
    run.run(until=lambda: run.service.run.machine.round == 3 and run.service.run.machine.asked == "train")
    run.kill("coordinator")
    run.boot_coordinator()
    old = [(topic, frame) for topic, frame in kept if topic.endswith("up/device-1")]
    before = dict(run.service.run.link.meter.messages)
    deliver(run, "coordinator", old)
    now = run.service.run.link.meter.messages
    new = {key: n - before.get(key, 0) for key, n in now.items() if n > before.get(key, 0) and key[0] == "up"}
    assert sum(n for (_, _, result), n in new.items() if result == "duplicate") > 3
    assert run.service.run.spool.last_heard()["device-1"][1] > 3
    run.run()
    assert_same(honest, run)


def test_only_the_later_of_two_coordinators_on_one_folder_writes(tmp_path):
    old, new = Spool(tmp_path, durable=False), Spool(tmp_path, durable=False)
    assert old.start_run("spring", "{}", 5) == 5
    old.accept(1, "train", ANSWER)
    old.commit()
    assert new.start_run("spring", "{}", 5) == 6
    with pytest.raises(
        FencedError, match=r"another coordinator, of epoch 6, has taken over .*of epoch 5, stops"
    ):
        old.accept(1, "train", replace(ANSWER, device="b"))
    with pytest.raises(FencedError):
        old.save(1, 0, ["a"], {}, {})
    new.accept(1, "train", replace(ANSWER, device="c"))
    assert sorted(new.answers(1, "train")) == ["a", "c"]


def test_a_restarted_device_rejects_replayed_tasks_of_earlier_rounds(tmp_path, honest):
    run = simulation(tmp_path, "fedavg")
    kept = recorded(run)
    run.run(until=lambda: run.service.run.machine.round == 3 and run.service.run.machine.asked == "train")
    run.kill("device-1")
    run.boot_device("device-1")
    run.run(until=lambda: run.agents["device-1"].run.plan is not None)
    link = run.agents["device-1"].link
    down = [(topic, frame) for topic, frame in kept if topic.endswith("down/device-1")]
    deliver(run, "device-1", down)
    assert link.meter.rejected[Reason.STALE_ROUND] == 1, (
        "only the task of round 1, because the device has answered round 2 last"
    )
    run.run()
    assert_same(honest, run)


def test_a_restarted_device_rejects_replayed_messages_of_an_older_epoch(tmp_path, honest):
    run = simulation(tmp_path, "fedavg")
    kept = recorded(run)
    run.run(until=lambda: run.service.run.machine.round == 2 and run.service.run.machine.asked == "train")
    old = [(topic, frame) for topic, frame in kept if topic.endswith("down/device-1")]
    run.kill("coordinator")
    run.boot_coordinator()
    run.run(until=lambda: run.service.run.machine.round == 3 and run.service.run.machine.asked == "train")
    run.kill("device-1")
    run.boot_device("device-1")
    assert run.agents["device-1"].state.saved.epoch == run.service.link.epoch
    run.broker.clients["device-1"].deliver(Arrived(*old[0]))
    deliver(run, "device-1", old)
    assert run.agents["device-1"].link.meter.rejected[Reason.STALE_EPOCH] >= len(old)
    run.run()
    assert_same(honest, run)


def frozen(number):
    """Return a clock at a time from which this number is ten days ahead."""
    return Clock(now=lambda: number - 10 * 86_400.0)


def test_a_boot_far_in_the_future_is_rejected_and_the_device_gets_the_fix(tmp_path, honest):
    run = simulation(tmp_path, "fedavg")
    run.run(until=lambda: run.service.run.machine.round == 2)
    run.kill("device-1")
    run.agents["device-1"].state.boot(1_900_000_000)
    run.boot_device("device-1")
    agent, link = run.agents["device-1"], run.service.link
    assert agent.link.me.boot == 1_900_000_001
    link.clock = frozen(1_900_000_001)  # The clock of the device is right.
    run.run(until=lambda: agent.finished)
    assert "lies 10.0 days ahead" in agent.view.problem and "enrol renew device-1" in agent.view.problem
    assert run.service.run.link.meter.rejected[Reason.BOOT_AHEAD] and link.last_heard("device-1")[0] < 1000
    link.clock = Clock(now=lambda: 1_900_000_001.0)
    run.boot_device("device-1")
    run.run()
    assert_same(honest, run)


def test_a_device_does_not_adopt_an_epoch_far_in_the_future(tmp_path, honest):
    run = simulation(tmp_path, "fedavg")
    run.run(until=lambda: run.service.run.machine.round == 2)
    run.kill("coordinator")
    before, run.boots = run.boots, 1_900_000_000
    for agent in run.agents.values():
        agent.link.clock = frozen(run.boots)
    run.boot_coordinator()
    run.run(until=lambda: run.clock.now > 100)
    assert all(agent.link.meter.rejected[Reason.EPOCH_AHEAD] for agent in run.agents.values())
    assert all(agent.link.epoch == before for agent in run.agents.values())
    for agent in run.agents.values():
        agent.link.clock = Clock(now=lambda: 1_900_000_001.0)
    run.run()
    assert_same(honest, run)


def idle(tmp_path):
    """Return a run whose first round waits for a device that never answers."""
    run = simulation(tmp_path, "fedavg", policy=replace(POLICY, patience_seconds=1e6))
    run.run(until=lambda: run.service.run.machine.asked == "train")
    run.workers["device-2"].alive = False
    return run


def test_a_device_reports_a_silent_coordinator_even_if_old_messages_are_replayed(tmp_path, caplog):
    run = idle(tmp_path)
    agent, kept = run.agents["device-0"], recorded(run)
    run.clock.call_at(1000.1, lambda: None)
    run.run(until=lambda: run.clock.now > 1000)
    assert not agent.view.coordinator_silent, "a waiting coordinator sends a message every minute"
    heard_at = [at for at, (topic, _) in zip(run.times, kept) if topic == run.topics.coord_state]
    first = [
        heard_at[0] + seconds for seconds in (0, 15, 45)
    ]  # These times are 15, 30 and 60 s after the task.
    assert heard_at[:3] == pytest.approx(first, abs=0.1)
    assert sum(at <= 1000 for at in heard_at) == 3 + (1000 - first[-1]) // HERE_SECONDS
    hellos = [
        at for at, (topic, f) in zip(run.times, kept) if "up" in topic and read_header(f)[0].kind == "hello"
    ]
    here = heard_at[0]
    assert not any(here < at < here + 10 for at in hellos), "no device replies to this message"
    run.broker.publish = lambda topic, frame, retain: None  # No new frame gets through.
    for later in range(1010, 1600, 10):
        run.clock.call_at(later, lambda: deliver(run, "device-0", [k for k in kept if "coord/state" in k[0]]))
    run.run(until=lambda: run.clock.now > 1000 + SILENT_SECONDS)
    assert (
        agent.view.coordinator_silent
        and caplog.text.count("no new message of the coordinator for 180 s") == 2
    ), caplog.text


def test_a_device_reports_the_first_new_message_after_a_silence(tmp_path, caplog):
    run = idle(tmp_path)
    publish, run.broker.publish = run.broker.publish, lambda topic, frame, retain: None
    run.run(until=lambda: run.agents["device-0"].view.coordinator_silent)
    run.broker.publish = publish
    run.run(until=lambda: not run.agents["device-0"].view.coordinator_silent, limit=HERE_SECONDS + 1)
    assert (
        not run.agents["device-0"].view.coordinator_silent and "has sent a new message, after" in caplog.text
    )


def test_messages_that_the_broker_drops_are_counted_as_missing(tmp_path):
    run = simulation(tmp_path, "fedavg")
    metrics = Metrics(run.service.run.view)
    publish, said, swallowed = run.broker.publish, [], []

    def swallow(topic, frame, retain):
        if topic.endswith("up/device-1") and not blocks.is_block(frame):
            said.append(frame)
            if len(said) > 3 and len(swallowed) < 4:  # Device and coordinator know each other.
                return swallowed.append(frame)
        publish(topic, frame, retain)

    run.broker.publish = swallow
    run.run()
    assert run.service.link.missing() == {"device-0": 0, "device-1": 4, "device-2": 0}
    metrics.set_missing()
    value = metrics.registry.get_sample_value
    assert value("protofleet_device_messages_missing", {"device": "device-1"}) == 4


def test_the_older_process_of_a_name_ends_and_restarts_with_a_higher_boot(tmp_path):
    """This happens with a copied card, or with a device whose clock was once in the future."""
    run = simulation(tmp_path, "fedavg")
    run.run(until=lambda: run.service.run.machine.round == 2 and run.service.run.machine.asked == "train")
    agent = run.agents["device-1"]
    later = agent.link.me.boot + 70
    run.service.link.remember({"device-1": (later, 1, "")})
    run.run(until=lambda: agent.finished)
    words = f"a later process uses the name device-1 \\(boot {later}\\)"
    assert agent.finished and re.search(words, agent.view.problem)
    run.boot_device("device-1")
    assert run.agents["device-1"].link.me.boot == later + 1
    run.run()
    assert run.service.finished
