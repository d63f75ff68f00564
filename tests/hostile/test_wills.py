"""A broker may publish the will of a device at any time, because the device has signed it."""

import time
from dataclasses import replace

import pytest

from protofleet.coordinator.round.policy import Policy
from tests.hostile.device import honest
from tests.hostile.federation import Federation

RULES = Policy(gather=2, quorum=1, grace_seconds=3.0, settle_seconds=0.2)


def say_the_will_of(f, name, coordinator="coordinator"):
    """Send the will of a device to the coordinator after each frame of that device."""

    def passes(frame):
        if frame.party == name and not frame.down and frame.kind != "state":
            will = f.proxy.wills[name]
            f.proxy.tell(coordinator, will.topic, will.data)
        return True

    f.proxy.passes = passes


def wills(f, device, outcome):
    return f.metrics().get(f'protofleet_device_wills_total{{device="{device}",outcome="{outcome}"}}', 0.0)


def test_a_device_whose_will_is_repeated_all_the_time_takes_part_in_each_round(tmp_path):
    with Federation(tmp_path, "one", "two", taken_over=True, rounds=5, policy=RULES) as f:
        gate = []
        coordinator = f.coordinator()
        one = f.raw("one", lambda task: honest(task) if gate or task.phase != "evaluate" else None)
        two = f.raw("two")
        two.wait("task")
        say_the_will_of(f, "two")
        f.wait_until(lambda: wills(f, "two", "refuted") > 3, "wills that are counted")
        f.wait_until(lambda: len(f.rounds()) == 5, "all rounds but the evaluation")
        assert [line["participants"] for line in f.rounds()] == [["one", "two"]] * 5
        assert wills(f, "two", "left") == 0 and wills(f, "one", "refuted") == 0
        gate.append("open")
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        assert "the will of two" in f.log_of(coordinator)
        one.wait("finished")


def test_a_round_waits_for_a_device_that_left_only_for_the_grace_time(tmp_path):
    with Federation(tmp_path, "one", "two", rounds=3, policy=RULES) as f:
        coordinator = f.coordinator()
        gone = []
        f.raw("one")
        two = f.raw("two", lambda task: honest(task) if task.round == 1 else gone.append(task))
        f.wait_until(lambda: gone, "the second round")
        two.die()
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        second = f.rounds()[1]
        assert second["participants"] == ["one"] and second["seconds"] < 60
        assert f.rounds()[2]["phases"][0]["asked"] == ["one"], "a device that left gets no task"


def test_a_device_that_returns_within_the_grace_time_is_asked_again(tmp_path):
    patient = replace(RULES, grace_seconds=60.0)  # Seconds; a loaded machine connects again in less.
    with Federation(tmp_path, "one", "two", rounds=2, policy=patient) as f:
        coordinator = f.coordinator()
        f.raw("one")
        broken = []

        def work(task):
            if task.round == 2 and not broken:
                broken.append(task)
                two.vanish()
                return None
            return honest(task)

        two = f.raw("two", work)
        f.wait_until(lambda: broken, "the second round")
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        assert [line["participants"] for line in f.rounds()] == [["one", "two"]] * 3


def last_seen(f, device):
    return f.metrics().get(f'protofleet_device_last_seen_timestamp_seconds{{device="{device}"}}', 0.0)


def heard_again(f):
    return any(n for name, n in f.metrics().items() if "messages_total" in name and '"duplicate"' in name)


def test_a_will_does_not_count_as_a_sign_of_life_of_its_device(tmp_path):
    """The broker publishes the will once when the device has left, and then again and again."""
    rules = Policy(gather=2, quorum=1, grace_seconds=10.0, straggler_factor=0.0)
    with Federation(tmp_path, "one", "two", taken_over=True, rounds=1, policy=rules) as f:
        gate = []
        coordinator = f.coordinator()
        f.raw("one", lambda task: honest(task) if gate else None)
        two = f.raw("two", lambda task: None)
        two.wait("task")
        two.die()
        died = time.time()
        f.wait_until(lambda: wills(f, "two", "left"), "its leaving, after the grace time")
        will = f.proxy.wills["two"]
        for _ in range(5):
            f.proxy.tell("coordinator", will.topic, will.data)
        hello = f.proxy.frames("hello", "two")[0]
        f.proxy.tell("coordinator", hello.topic, hello.data)
        f.wait_until(lambda: heard_again(f), "an old hello of it, after its wills")
        f.wait_until(lambda: last_seen(f, "one") > died + 8, "a message of the other device")
        assert 0 < last_seen(f, "two") < died + 8
        gate.append("open")
        assert f.wait_for_end(coordinator) == 0, f.last_words()


def dies_and_starts_again(f, device):
    device.die()
    return f.raw("two", lambda task: None, boot=device.boot + 1, **MUTE)


def connects_again(f, device):
    device.vanish()
    return device


MUTE = {"says_hello": False, "again": 1000.0}  # The device sends only what the test sends in its name.


@pytest.mark.parametrize("breaks", [dies_and_starts_again, connects_again])
def test_a_will_after_a_broken_connection_is_not_reported_as_a_fault_of_the_broker(tmp_path, breaks):
    rules = Policy(gather=2, quorum=1, grace_seconds=60.0, settle_seconds=0.2)
    with Federation(tmp_path, "one", "two", taken_over=True, rounds=1, policy=rules) as f:
        coordinator = f.coordinator()
        f.raw("one", lambda task: None)
        two = f.raw("two", lambda task: None, **MUTE)
        two.wait("state", lambda h: h.fields["online"])  # The coordinator is connected from now on.
        two.say("state", {"online": True})
        two.greet()
        two.wait("task")
        again = breaks(f, two)
        f.wait_until(lambda: said_by_the_broker(f, "two"), "its will")
        since = len(again.heard)
        again.greet()
        again.wait("task" if again is two else "welcome", since=since)
        again.say("state", {"online": True})
        f.wait_until(lambda: wills(f, "two", "returned") == 1, "its return", 20)
        assert wills(f, "two", "refuted") == 0 and "the will of two" not in f.log_of(coordinator)


def said_by_the_broker(f, name):
    """Return whether the broker has sent the will of a device to the coordinator."""
    seen = f.proxy.frames("state", name, down=True)
    return any(x.party == "coordinator" and x.header["sequence"] == 0 for x in seen)
