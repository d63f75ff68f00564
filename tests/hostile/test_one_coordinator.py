"""One of several coordinators of a federation leads, as real processes."""

import random
import re
import signal
import socket
import time

import pytest

from protofleet.protocol.link.standby import StandbyLink
from tests.support.coordinators import Coordinators, Silent, Thief, pid_of

pytestmark = [pytest.mark.slow, pytest.mark.broker]


@pytest.fixture
def world(tmp_path):
    with Coordinators(tmp_path) as made:
        yield made


@pytest.fixture(params=["without certificates", "with certificates"])
def each_world(request, tmp_path):
    with Coordinators(tmp_path, secured=request.param == "with certificates") as made:
        yield made


def led_by(world, observer, host):
    """Wait until this process leads, and return its state."""

    def found():
        assert host.code is None, host.lines
        state = observer.leader
        return state if state and pid_of(state) == host.pid else None

    return world.wait_until(found, f"{host.name} to lead")


def states_of(observer, epoch):
    return [seen.state for seen in observer.seen if seen.epoch == epoch]


@pytest.mark.parametrize("kind", ["of a run", "of a queue"])
def test_a_second_coordinator_ends_with_one_line_that_names_the_first(each_world, kind):
    run = "spring" if kind == "of a run" else ""
    seen = each_world.observe()
    first = each_world.start("hall-1", run=run)
    epoch = led_by(each_world, seen, first).epoch
    second = each_world.start("hall-2", run="red" if not run else "")
    assert each_world.wait_for_end(second) == 3
    assert re.fullmatch(
        rf"protofleet: \S+ \(pid {first.pid}\) is the coordinator of {each_world.federation}, epoch {epoch}, "
        rf"{'run spring' if run else 'no runs'}; --take-over ends it",
        second.last_line,
    )
    assert not list((each_world.folder / "hall-2").rglob("*.sqlite"))
    assert first.code is None and seen.leader.epoch == epoch


def test_one_of_two_coordinators_that_start_at_once_ends_and_the_other_leads(each_world):
    seen = each_world.observe()
    pair = [each_world.start(name) for name in ("hall-1", "hall-2")]
    each_world.wait_until(lambda: any(host.code is not None for host in pair), "one of them to end")
    ended, other = sorted(pair, key=lambda host: host.code is None)
    assert ended.code == 3, ended.lines
    led_by(each_world, seen, other)


def test_a_coordinator_takes_over_and_the_first_ends_in_order_and_names_it(each_world):
    seen = each_world.observe()
    first = each_world.start("hall-1", run="spring")
    before = led_by(each_world, seen, first)
    second = each_world.start("hall-2", "--take-over", run="spring")
    after = led_by(each_world, seen, second)
    assert each_world.wait_for_end(first) == 0
    assert f"pid {second.pid}" in first.last_line and "takes over" in first.last_line
    assert after.epoch > before.epoch
    assert [state.reason for state in states_of(seen, before.epoch) if not state.online] == [
        "another coordinator takes over"
    ]


def test_a_repeated_request_to_end_does_not_end_a_later_coordinator(world):
    seen = world.observe()
    first = world.start("hall-1")
    led_by(world, seen, first)
    second = world.start("hall-2", "--take-over")
    epoch = led_by(world, seen, second).epoch
    kept = Silent()
    link = StandbyLink(world.keys, world.topics, kept)
    link.step_down(epoch - 1, "hall-3")
    seen.publish(*kept.sent[0])
    link.probe()
    count = len(seen.seen)
    seen.publish(*kept.sent[1])
    world.wait_until(lambda: len(seen.seen) > count, "an answer to the probe")
    assert second.code is None and seen.leader.epoch == epoch
    link.step_down(epoch, "hall-3")
    seen.publish(*kept.sent[2])
    assert world.wait_for_end(second) == 0 and "because hall-3 takes over" in second.last_line


def test_a_killed_coordinator_leads_again_at_once_and_another_host_waits_five_seconds(each_world):
    seen = each_world.observe()
    first = each_world.start("hall-1")
    begun = time.monotonic()
    led_by(each_world, seen, first)
    usual = time.monotonic() - begun
    first.kill()
    again = each_world.start("hall-1")
    begun = time.monotonic()
    led_by(each_world, seen, again)
    assert time.monotonic() - begun < usual + 2.0
    again.kill()
    each_world.wait_until(lambda: not seen.leader, "the will")
    other = each_world.start("hall-2")
    begun = time.monotonic()
    led_by(each_world, seen, other)
    assert 4.5 < time.monotonic() - begun < usual + 9.0


def test_another_host_leads_at_once_after_a_coordinator_that_ended_in_order(world):
    seen = world.observe()
    first = world.start("hall-1")
    begun = time.monotonic()
    led_by(world, seen, first)
    usual = time.monotonic() - begun
    first.say(signal.SIGTERM)
    assert world.wait_for_end(first) == 143
    other = world.start("hall-2")
    begun = time.monotonic()
    led_by(world, seen, other)
    assert time.monotonic() - begun < usual + 2.0


def test_a_listener_that_does_not_answer_delays_a_start_by_five_seconds(world):
    seen = world.observe()
    seen.listen_to_probes()
    first = world.start("hall-1")
    begun = time.monotonic()
    led_by(world, seen, first)
    assert 4.5 < time.monotonic() - begun < 25


def test_a_signal_ends_a_process_during_its_look_at_once(world):
    seen = world.observe()
    seen.listen_to_probes()
    first = world.start("hall-1")
    world.wait_until(lambda: "standby" in world.broker.log.read_text(), "the look")
    first.say(signal.SIGTERM)
    begun = time.monotonic()
    assert world.wait_for_end(first) == 143 and time.monotonic() - begun < 3.0
    assert not seen.seen


def test_a_coordinator_whose_folder_is_in_use_ends_and_names_the_process(world):
    seen = world.observe()
    first = world.start("hall-1")
    led_by(world, seen, first)
    second = world.start("hall-1")
    assert world.wait_for_end(second) == 3
    assert f"another coordinator (pid {first.pid}) uses {world.folder / 'hall-1'}" in second.last_line


BROKEN_LOOK = """
from protofleet.coordinator.leading.standby import Standby
look = Standby.look
def broken(self, needs, rank=None, **more):
    if rank is not None:
        raise ValueError("planted")
    return look(self, needs, rank, **more)
Standby.look = broken
"""
FULL_DISK = """
import errno, os
def full(number):
    raise OSError(errno.ENOSPC, "No space left on device")
os.fsync = full
"""


def waits_after_the_claim(gate):
    """Return the text that makes a process wait, after it has claimed its folder, while the file exists."""
    gate.touch()
    return f"""
import os, time
from protofleet.coordinator.spool.lives import Life
begin = Life.__init__
def slow(self, *arguments):
    begin(self, *arguments)
    while os.path.exists({str(gate)!r}):
        time.sleep(0.05)
Life.__init__ = slow
"""


def start_and_hold(world, seen, kind):
    """Start a coordinator that waits after its claim, and then another one; return both and the gate."""
    run, gate = "spring" if kind == "of a run" else "", world.folder / "gate"
    first = world.start("hall-1", run=run, planted=waits_after_the_claim(gate))
    world.wait_until(lambda: list((world.folder / "hall-1").rglob(".*.life")), "the claim of hall-1")
    second = world.start("hall-2", run="red" if run else "")
    led_by(world, seen, second)
    return first, second, gate


@pytest.mark.parametrize("kind", ["of a run", "of a queue"])
def test_a_coordinator_with_a_slow_set_up_looks_again_and_ends_if_another_one_leads(world, kind):
    seen = world.observe()
    first, second, gate = start_and_hold(world, seen, kind)
    epoch = seen.leader.epoch
    gate.unlink()
    assert world.wait_for_end(first) == 3
    assert f"(pid {second.pid}) is the coordinator of {world.federation}, epoch {epoch}" in first.last_line
    assert second.code is None and all(state.online for state in states_of(seen, epoch))
    assert {state.epoch for state in seen.seen} == {epoch}


def test_a_coordinator_with_a_lower_epoch_than_an_ended_one_ends_and_asks_for_a_restart(world):
    seen = world.observe()
    first, second, gate = start_and_hold(world, seen, "of a queue")
    epoch = seen.leader.epoch
    second.say(signal.SIGTERM)
    world.wait_for_end(second)
    gate.unlink()
    assert world.wait_for_end(first) == 1
    assert f"another coordinator has led with epoch {epoch}" in first.last_line
    assert "start this one again" in first.last_line
    again = world.start("hall-1")
    assert led_by(world, seen, again).epoch > epoch


@pytest.mark.parametrize("setting", ["metrics_port", "page_port"])
@pytest.mark.parametrize("kind", ["of a run", "of a queue"])
def test_a_coordinator_whose_port_is_in_use_ends_no_other_coordinator(world, kind, setting):
    seen = world.observe()
    first = world.start("hall-1")
    epoch = led_by(world, seen, first).epoch
    with socket.create_server(("127.0.0.1", 0)) as used:
        more = {setting: used.getsockname()[1], "run": "red" if kind == "of a run" else ""}
        second = world.start("hall-2", "--take-over", **more)
        assert world.wait_for_end(second) == 1
    assert setting in second.last_line and "cannot be used" in second.last_line
    assert first.code is None and all(state.online for state in states_of(seen, epoch))


def test_a_coordinator_whose_disk_is_full_ends_no_other_coordinator(world):
    seen = world.observe()
    first = world.start("hall-1")
    epoch = led_by(world, seen, first).epoch
    second = world.start("hall-2", "--take-over", planted=FULL_DISK)
    assert world.wait_for_end(second) == 1
    assert "cannot be written to (No space left on device)" in second.last_line
    assert first.code is None and all(state.online for state in states_of(seen, epoch))


def test_a_coordinator_with_an_unreadable_second_certificate_connects_again_after_a_cut(tmp_path):
    with Coordinators(tmp_path, secured=True) as world:
        seen = world.observe()
        first = world.start("hall-1")
        epoch = led_by(world, seen, first).epoch
        world.own_file("standby.crt").rename(tmp_path / "standby.crt")
        thief = Thief(world)
        world.wait_until(lambda: not seen.leader, "the will")
        assert led_by(world, seen, first).epoch == epoch
        thief.close()
        assert sum("so it connects again" in line for line in first.lines) == 1


def test_a_coordinator_whose_certificate_files_are_missing_for_a_moment_connects_again(tmp_path):
    with Coordinators(tmp_path, secured=True) as world:
        seen = world.observe()
        first = world.start("hall-1")
        epoch = led_by(world, seen, first).epoch
        kept = {name: tmp_path / name for name in ("tls.crt", "standby.crt")}

        def take_away():
            for name, place in kept.items():
                world.own_file(name).rename(place)

        thief = Thief(world, take_away)
        world.wait_until(lambda: "tls.crt in tls.cert does not exist" in "".join(first.lines), "a failed try")
        for name, place in kept.items():
            place.rename(world.own_file(name))
        assert led_by(world, seen, first).epoch == epoch
        thief.close()


def test_an_unexpected_error_of_the_look_ends_the_process_with_one_line(world):
    seen = world.observe()
    first = world.start("hall-1", planted=BROKEN_LOOK)
    led_by(world, seen, first)
    thief = Thief(world)
    assert world.wait_for_end(first) == 1
    thief.close()
    assert (
        first.last_line
        == "protofleet: this coordinator cannot ask whether another one leads: ValueError('planted')"
    )


def test_a_coordinator_looks_and_sends_a_birth_after_a_foreign_client_took_its_name_once(each_world):
    seen = each_world.observe()
    first = each_world.start("hall-1")
    epoch = led_by(each_world, seen, first).epoch
    thief = Thief(each_world)
    each_world.wait_until(lambda: not seen.leader, "the will")
    assert led_by(each_world, seen, first).epoch == epoch
    thief.close()
    assert "connected to the broker again" in first.last_line


@pytest.mark.parametrize("each_world", ["with certificates"], indirect=True)
def test_a_coordinator_ends_with_one_line_after_a_foreign_client_took_its_name_six_times(each_world):
    seen = each_world.observe()
    first = each_world.start("hall-1")
    epoch = led_by(each_world, seen, first).epoch
    for number in range(6):
        births = sum(state.online for state in states_of(seen, epoch))
        thief = Thief(each_world)
        if number < 5:
            each_world.wait_until(
                lambda births=births: sum(state.online for state in states_of(seen, epoch)) > births,
                "a birth",
            )
        thief.close()
    assert each_world.wait_for_end(first) == 1
    assert (
        "another program keeps connecting to the broker under the name of the coordinator" in first.last_line
    )


def test_an_old_will_after_the_birth_is_followed_by_another_birth(world):
    seen = world.observe()
    first = world.start("hall-1")
    led_by(world, seen, first)
    first.kill()
    world.wait_until(lambda: not seen.leader, "the will")
    will = seen.frames[-1]
    again = world.start("hall-1")
    led_by(world, seen, again)
    seen.publish(world.topics.coord_state, will, retain=True)
    world.wait_until(lambda: not seen.leader, "the old will")
    led_by(world, seen, again)
    late = world.observe()
    world.wait_until(lambda: late.seen, "the retained state")
    assert late.leader is not None and pid_of(late.leader) == again.pid


@pytest.mark.parametrize("each_world", ["with certificates"], indirect=True)
def test_one_of_two_hosts_with_service_managers_leads_after_twenty_starts(each_world):
    """An operator starts a host again after exit code 3; the service manager does it after all other codes."""
    seen, dice = each_world.observe(), random.Random(1)
    hosts, ended_for_good = [each_world.start(name) for name in ("hall-1", "hall-2")], 0
    while sum(host.starts for host in hosts) < 20:
        time.sleep(dice.uniform(0.2, 1.0))
        for host in hosts:
            ended_for_good += host.code == 3
            host.start()
        if dice.random() < 0.3:
            dice.choice(hosts).child.kill()

    def one_runs():
        for host in hosts:
            if host.code not in (None, 3):
                host.start()
        return sum(host.runs() for host in hosts) == 1

    each_world.wait_until(one_runs, "one of them to lead")
    (leader,) = (host for host in hosts if host.runs())
    led_by(each_world, seen, leader)
    assert ended_for_good >= 1
