"""One enrolled device that comes first, or repeated old hellos: no device ends or is refused because of them.

The same holds for many devices that wait because of the hello of one of them.
"""

from __future__ import annotations

import time
from dataclasses import replace

from protofleet.coordinator.round.policy import Policy
from protofleet.coordinator.spool.older_copies import LISTEN_SECONDS
from protofleet.protocol.wire.names import COORDINATOR
from tests.hostile import wire
from tests.hostile.device import Device
from tests.hostile.federation import Federation


def test_a_single_device_that_answers_a_future_round_does_not_end_the_coordinator(tmp_path):
    policy = Policy(quorum=2, gather=2, settle_seconds=0.5, patience_seconds=6.0)
    with Federation(tmp_path, "bad", "one", "two", rounds=2, policy=policy) as f:
        coordinator = f.coordinator()
        bad = f.raw("bad", work=lambda task: None)
        bad.wait("welcome")
        seen = 'protofleet_older_copies_total{device="bad",whose="coordinator"}'
        bad.say("update", {"examples": 1, "metrics": {}, "arrays": wire.EMPTY}, (999, "train", b""))
        f.wait_until(lambda: f.metrics().get(seen), "its update to be counted")
        f.stays(
            coordinator.runs, "the coordinator to run", min(LISTEN_SECONDS, policy.patience_seconds) + 3.0
        )
        assert "know more of this run" not in f.log_of(coordinator), "one device alone is not believed"
        bad.stop()
        real = [f.device("one"), f.device("two")]
        assert f.wait_for_end(coordinator) == 0 and [f.wait_for_end(device) for device in real] == [0, 0]


def test_a_liar_that_comes_first_with_other_names_excludes_no_device_before_names_are_fixed(tmp_path):
    policy = Policy(quorum=2, gather=2, settle_seconds=0.5, patience_seconds=4.0)
    with Federation(tmp_path, "bad", "one", "two", rounds=2, policy=policy) as f:
        coordinator = f.coordinator()
        bad = f.raw("bad", hello={"can": ["names"], "names": ["x", "y", "z"]}, work=lambda task: None)
        bad.wait("welcome")
        f.wait_until(lambda: bad.epoch and f.metrics(), "it to be heard")
        one = f.device("one")
        waits = "one has other class names than other devices, so it waits (1 of 2 devices wait)"
        f.wait_until(lambda: waits in f.log_of(coordinator), "it to wait")
        f.stays(one.runs, "it to wait", policy.patience_seconds + 3.0)
        assert "cannot take part" not in f.log_of(coordinator)
        two = f.device("two")
        assert f.wait_for_end(coordinator) == 0 and [f.wait_for_end(device) for device in (one, two)] == [
            0,
            0,
        ]
        assert "are circle, line, square, because 2 of 3 devices sent them" in f.log_of(coordinator)
        assert {name for line in f.rounds() for name in line["participants"]} == {"one", "two"}


def test_a_device_that_came_first_with_other_names_is_refused_when_most_devices_agree(tmp_path):
    """The device sends one hello, like a device that gets a task in each round."""
    policy = Policy(quorum=2, gather=3, settle_seconds=0.5, patience_seconds=2.0)
    with Federation(tmp_path, "odd", "one", "two", rounds=5, policy=policy) as f:
        coordinator = f.coordinator()
        said = {"can": ["names"]}
        odd = f.raw("odd", hello={**said, "names": ["x", "y", "z"]}, again=1000.0)
        f.wait_until(lambda: '"event": "joined", "device": "odd"' in f.log_of(coordinator), "it to take part")
        f.raw("one", hello={**said, "names": ["a", "b", "c"]}, again=1000.0)
        f.wait_until(lambda: "one has other class names" in f.log_of(coordinator), "the next to wait")
        time.sleep(policy.patience_seconds + 1.0)  # No other device has come, so it continues to wait.
        f.raw("two", hello={**said, "names": ["a", "b", "c"]}, again=1000.0)
        assert f.wait_for_end(coordinator) == 0, f.log_of(coordinator)[-3000:]
        assert {name for line in f.rounds() for name in line["participants"]} == {"one", "two"}
        assert "its classes have other names" in odd.wait("refusal").fields["reason"]


def test_two_devices_with_different_class_names_never_train_together(tmp_path):
    """The coordinator restarts before any names are fixed, and gets the hello of the other device first."""
    policy = Policy(quorum=1, gather=1, settle_seconds=0.2, patience_seconds=4.0)
    with Federation(tmp_path, "one", "odd", taken_over=True, rounds=100_000, policy=policy) as f:
        first = f.coordinator()
        said = {"can": ["names"]}
        f.raw("one", hello={**said, "names": ["a", "b", "c"]}, again=0.5)
        f.wait_until(lambda: len(f.rounds()) >= 2, "rounds of one")
        f.proxy.passes = lambda frame: frame.party != "one" or frame.down or frame.kind != "hello"
        first.kill()
        second = f.coordinator()
        f.raw("odd", hello={**said, "names": ["x", "y", "z"]}, again=0.5)
        f.wait_until(lambda: '"event": "joined", "device": "odd"' in f.log_of(second), "the other one")
        f.proxy.passes = lambda frame: True
        f.proxy.cut("one")
        f.wait_until(lambda: "has other class names" in f.log_of(second), "one of them to wait")
        assert all(line["participants"] == ["one"] for line in f.rounds()[:2])
        f.stays(lambda: all(len(line["participants"]) == 1 for line in f.rounds()), "each alone", 3.0)


def test_no_device_trains_alone_in_a_tie_of_class_names(tmp_path):
    """The first device trains alone as long as no other device has other names; the open round may end."""
    policy = Policy(quorum=1, gather=1, settle_seconds=0.2, patience_seconds=3.0, grace_seconds=1.0)
    with Federation(tmp_path, "bad", "one", "two", rounds=100_000, policy=policy) as f:
        coordinator = f.coordinator()
        f.raw("bad", hello={"can": ["names"], "names": ["x", "y", "z"]})
        f.wait_until(lambda: len(f.rounds()) >= 2, "rounds of one that is alone")
        one = f.device("one")
        f.wait_until(lambda: "waits (2 of 2 devices wait)" in f.log_of(coordinator), "both to wait")
        words = "class_names in the coordinator's settings. The difference is: class 0 is"
        lists = ["x, y, z", "circle, line, square"]
        said = [line for line in f.log_of(coordinator).splitlines() if words in line]
        assert said and all(names in line for line in said for names in lists)
        done = len(f.rounds())
        f.stays(  # If one side still got tasks, there would be some hundred rounds.
            lambda: len(f.rounds()) <= done + 1 and one.runs(),
            "no more rounds",
            policy.patience_seconds + 3.0,
        )
        f.device("two")
        before = len(f.rounds())
        f.wait_until(lambda: len(f.rounds()) >= before + 3, "rounds of both that agree")
        assert {name for line in f.rounds()[before:] for name in line["participants"]} <= {"one", "two"}


def test_hellos_of_an_earlier_run_that_a_broker_repeats_do_not_count_as_votes(tmp_path):
    policy = Policy(quorum=2, gather=2, settle_seconds=0.2, patience_seconds=4.0)
    old = {"names": ["square", "line", "circle"], "can": ["names"]}
    with Federation(tmp_path, "one", "two", "three", taken_over=True, rounds=1, policy=policy) as f:
        spring = f.coordinator(name="spring")
        devices = [f.raw(name, hello=old) for name in ("one", "two")]
        assert f.wait_for_end(spring) == 0
        for device in devices:
            device.stop()
        kept = [f.proxy.frames("hello", name, down=False)[-1] for name in ("one", "two")]
        held = {"one", "two"}
        f.proxy.passes = lambda frame: (
            frame.down or frame.party not in held or frame.kind not in ("hello", "state")
        )
        # No party tells a device that comes back after the run that it is over.
        summer = f.coordinator(
            name="summer", policy=replace(policy, gather=3, settle_seconds=60.0, patience_seconds=60.0)
        )
        f.wait_until(lambda: any(x.header.get("run") == "summer" for x in f.proxy.seen), "the second run")
        for frame in kept:
            f.proxy.tell(COORDINATOR, frame.topic, frame.data)
        real = [f.device(name) for name in ("three", "one", "two")]
        heard = 'protofleet_messages_total{direction="up",kind="hello",result="accepted"}'
        f.wait_until(lambda: f.answers() and f.metrics().get(heard, 0) >= 3, "both old hellos and a real one")
        f.stays(summer.runs, "it to wait", policy.patience_seconds + 3.0)
        held.clear()
        for name in ("one", "two"):
            f.proxy.cut(name)
        f.settings["name"] = "summer"
        assert f.wait_for_end(summer) == 0, summer.last_word()
        assert [f.wait_for_end(device) for device in real] == [0, 0, 0]
        assert "cannot take part" not in f.log_of(summer) and "square, line, circle" not in f.log_of(summer)


def test_each_of_many_waiting_devices_gets_one_welcome(tmp_path):
    half = 40
    names = [f"d{i:03d}" for i in range(2 * half + 1)]
    policy = Policy(quorum=2 * half, gather=2 * half, settle_seconds=5.0, patience_seconds=600.0)
    with Federation(tmp_path, *names, taken_over=True, rounds=2, policy=policy) as f:
        coordinator = f.coordinator()
        f.wait_until(lambda: f.answers() and f.proxy.frames("state", down=False), "the coordinator")
        epoch = f.proxy.frames("state", down=False)[0].header["epoch"]
        heard = 'protofleet_messages_total{direction="up",kind="hello",result="accepted"}'

        def says(name, order):
            """Send a hello from the proxy to the coordinator; a process for each device would be too much."""
            device = Device(f.credentials(name))
            fields = {
                "classes": 3,
                "examples": 10,
                "protocol": [1, 1],
                "plan": b"",
                "names": order,
                "can": ["names"],
            }
            frame = device.frame("hello", fields, epoch=epoch)
            f.proxy.tell(COORDINATOR, f"{device.prefix}up/{name}", frame)

        for count, name in enumerate(names, 1):
            says(name, ["a", "b", "c"] if count <= half else ["b", "a", "c"])
            f.wait_until(lambda count=count: f.metrics().get(heard) == count, "the hello to be heard")

        def told():
            return [x for x in f.proxy.seen if not x.down and x.kind == "welcome"]

        f.wait_until(lambda: len(told()) >= len(names), "all devices to get a welcome")
        time.sleep(1.0)  # A second message to any device would follow the first at once.
        assert len(told()) == len(names) == len({x.header["recipient"] for x in told()})
        assert "Traceback" not in f.log_of(coordinator)
