"""One of several coordinators on one broker is left, and it has the highest epoch."""

import pytest

from tests.coordinator.leading.world import World

SEEDS = range(40)


def one_leads(world):
    (leader,) = world.leading
    assert leader.disk.epoch == world.broker.highest
    assert world.broker.retained.epoch == leader.disk.epoch and world.broker.retained.state.online
    return leader


@pytest.mark.parametrize("seed", SEEDS)
def test_the_first_of_three_coordinators_that_start_one_after_the_other_leads(seed):
    world = World(seed)
    first = world.start(0)
    for host in (1, 2):
        world.run(world.dice.uniform(0.5, 5.0))
        world.start(host)
    world.run(120)
    assert one_leads(world) is first and first.cleared_after < 1
    assert all("hall-0 (pid 1) is the coordinator of lab" in one.why for one in world.processes[1:])


@pytest.mark.parametrize("seed", SEEDS)
def test_one_of_three_coordinators_that_start_at_once_leads(seed):
    world = World(seed)
    for host in range(3):
        world.run(world.dice.uniform(0.0, 0.3))
        world.start(host, behind=world.dice.choice([0, 0, 100]))
    world.run(200)
    one_leads(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_coordinator_that_takes_over_leads_and_the_first_ends_in_order(seed):
    world = World(seed)
    first = world.start(0)
    world.run(10)
    second = world.start(1, take_over=True)
    world.run(60)
    assert one_leads(world) is second
    assert first.why == "stepped down" and second.cleared_after < 2


@pytest.mark.parametrize("seed", SEEDS)
def test_one_of_two_coordinators_that_take_over_at_once_leads(seed):
    world = World(seed)
    world.start(0)
    world.run(10)
    for host in (1, 2):
        world.run(world.dice.uniform(0.0, 0.3))
        world.start(host, take_over=True)
    world.run(200)
    one_leads(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_only_one_of_three_coordinators_with_a_slow_set_up_ever_leads(seed):
    world = World(seed)
    for host in range(3):
        world.run(world.dice.uniform(0.5, 2.0))
        world.start(host, set_up=world.dice.uniform(1.0, 6.0))
    world.run(120)
    leader = one_leads(world)
    assert all("is the coordinator of lab" in one.why for one in world.processes if one is not leader)
    assert sum(one.leadership is not None for one in world.processes) == 1


def test_a_late_request_to_end_for_an_earlier_epoch_ends_no_coordinator():
    world = World(1)
    first = world.start(0)
    world.run(10)
    second = world.start(1, take_over=True)
    world.run(60)
    second.asked(first.disk.epoch)
    world.run(60)
    assert one_leads(world) is second


def test_a_frozen_coordinator_is_replaced_and_ends_when_it_continues():
    world = World(1)
    first = world.start(0)
    world.run(10)
    first.asked = lambda epoch: None
    second = world.start(1, take_over=True)
    world.run(30)
    assert one_leads(world) is second and 5 <= second.cleared_after < 7
    assert first.why == f"outranked by epoch {second.disk.epoch}" or "taken" in first.why


def test_a_killed_coordinator_leads_again_at_once_on_its_host():
    world = World(1)
    world.start(0)
    world.run(10)
    world.processes[0].kill()
    world.run(0.5)
    again = world.start(0)
    world.run(30)
    assert one_leads(world) is again and again.cleared_after < 0.5


def test_another_host_waits_five_seconds_after_a_will_also_if_the_will_comes_late():
    world = World(1)
    world.start(0)
    world.run(10)
    world.processes[0].kill()
    world.run(1)
    second = world.start(1)
    world.run(30)
    assert one_leads(world) is second and 4.5 < second.cleared_after < 6
    second.cut_off(10_000.0)
    world.run(1)
    third = world.start(2)
    world.run(100)
    # The will comes 45 s after the cut, and then there are 5 s for another connection.
    assert one_leads(world) is third and 45 < third.cleared_after < 60


def test_a_host_ends_if_it_lost_its_network_and_finds_a_later_coordinator():
    world = World(1)
    first = world.start(0)
    world.run(10)
    first.cut_off(100.0)
    world.run(1)
    second = world.start(1)
    world.run(200)
    assert one_leads(world) is second
    assert "hall-1 (pid 1) is the coordinator of lab" in first.why


def test_a_host_continues_after_it_lost_its_network_for_a_while():
    world = World(1)
    first = world.start(0)
    world.run(10)
    first.cut_off(100.0)
    world.run(200)
    assert one_leads(world) is first and first.disk.claims == [first.disk.epoch]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_late_will_of_an_old_process_is_replaced_by_another_birth(seed):
    world = World(seed, late_will=30.0)
    world.start(0)
    world.run(10)
    world.processes[0].kill()
    world.run(0.2)
    again = world.start(0)
    world.run(60)
    assert one_leads(world) is again


def test_a_coordinator_with_a_slow_clock_can_take_over():
    world = World(1)
    first = world.start(0)
    world.run(10)
    second = world.start(1, take_over=True, behind=3600)
    world.run(60)
    assert one_leads(world) is second and second.disk.epoch == first.disk.epoch + 1


@pytest.mark.parametrize("seed", range(100))
def test_one_coordinator_leads_after_kills_lost_networks_late_wills_and_take_overs(seed):
    late_will = [0.0, 3.0, 40.0][seed % 3]
    world = World(seed, late_will)
    # If a late will hides the highest epoch, only the devices and a clock that is right know that it was there.
    dice, behind = world.dice, 0 if late_will else 50
    world.start(0)
    for _ in range(12):
        world.run(dice.choice([0.05, 0.5, 3.0, 20.0]))
        process, host = dice.choice(world.processes), dice.randrange(3)
        match dice.choice(["start", "start", "take over", "kill", "cut off"]):
            case "start" if not is_locked(world, host):
                world.start(host, behind=dice.choice([0, behind]))
            case "take over" if not is_locked(world, host):
                world.start(host, take_over=True)
            case "kill":
                process.kill()
            case "cut off" if process.is_alive and process.is_reachable:
                process.cut_off(dice.choice([1.0, 10.0, 80.0]))
    world.run(300)
    if not world.leading:
        assert not any(one.is_alive for one in world.processes)
        world.start(0)
        world.run(300)
    one_leads(world)


def is_locked(world, host):
    return any(one.is_alive and one.disk is world.disks[host] for one in world.processes)
