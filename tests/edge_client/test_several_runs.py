"""A device takes part in several runs over one connection, and each run has the same results as alone."""

import weakref
from dataclasses import replace

import pytest

from protofleet.edge_client.state.device import DeviceState
from protofleet.protocol.wire.messages import Finished, Hello, Receipt, Task, Update, Welcome
from tests.support.scripted_coordinator import DEVICE, World
from tests.support.small_federation import plan

ROUNDS = 3
PLANS = {"red": plan("fedavg", ROUNDS), "blue": plan("ditto", ROUNDS)}


@pytest.fixture(scope="module")
def unshared(tmp_path_factory):
    """Return the updates and the last state of the half of each run alone, with a coordinator that leads one run."""
    answers, halves = {}, {}
    for name, made in PLANS.items():
        world = World(tmp_path_factory.mktemp(name), {name: made}, alone=True).run()
        answers, halves = answers | world.answers, halves | halves_of(world)
    assert {len(rows) for rows in answers.values()} == {ROUNDS} and halves["blue"], (
        "ditto has a personal model"
    )
    return answers, halves


@pytest.fixture
def alone(unshared):
    return unshared[0]


def halves_of(world):
    """Return the state of each run on the disk, as the name of its object."""
    return {entry.run: entry.half for entry in DeviceState(world.folder / DEVICE, durable=False).file.runs}


def test_each_of_two_runs_gets_the_same_updates_and_the_same_state_as_alone(tmp_path, unshared):
    world = World(tmp_path, PLANS).run()
    assert (world.answers, halves_of(world)) == unshared
    order = [run for run, message in world.coordinator.heard if isinstance(message, Update)]
    assert order.count("red") == order.count("blue") == ROUNDS
    assert order[:4] in (["red", "blue", "red", "blue"], ["blue", "red", "blue", "red"]), "they take turns"
    assert sorted(world.byes()) == [("blue", "finished"), ("red", "finished")]


def test_the_client_half_of_only_one_run_at_a_time_is_in_memory(tmp_path):
    halves, most = weakref.WeakSet(), []

    def noted(job):
        halves.add(job)
        most.append(len(halves))
        return job

    World(tmp_path, PLANS, job=noted).run()
    assert max(most) == 1 and len(most) > 2 * ROUNDS - 2, "each change of the run starts the job again"


def test_a_hello_states_how_many_more_runs_the_device_can_take(tmp_path):
    world = World(tmp_path, PLANS).run()
    hellos = [(run, message) for run, message in world.coordinator.heard if isinstance(message, Hello)]
    assert (hellos[0][0], hellos[0][1].capacity) == ("", 2)
    assert all("runs" in hello.can and (run or hello.capacity) for run, hello in hellos)
    assert {hello.capacity for run, hello in hellos if run} == {0, 1}
    world.kill_device()
    world.boot_device()
    world.run(until=lambda: False, seconds=1)
    assert isinstance(world.coordinator.heard[-1][1], Hello) and world.coordinator.heard[-1][1].capacity == 2


@pytest.mark.parametrize("limit", [1, 2])
def test_a_device_is_idle_only_while_the_coordinator_has_no_run(tmp_path, limit):
    world = World(tmp_path, {}, limit=limit)
    world.run(until=lambda: False, seconds=1)
    assert world.agent.view.idle, "a device that has no task"
    world.boot_coordinator(PLANS)
    world.run(until=lambda: any(world.answers.values()), seconds=60)
    assert not world.agent.view.idle


def test_a_coordinator_of_one_run_gets_the_same_messages_with_any_limit_on_runs(tmp_path):
    said = [
        World(tmp_path / str(n), {"red": PLANS["red"]}, True, limit=n).run().coordinator.heard for n in (1, 2)
    ]
    first = [
        messages.pop(1)[1] for messages in said
    ]  # It is sent before the first message of the coordinator.
    assert first[0] == replace(first[1], can=first[0].can, capacity=0)
    assert said[0] == said[1]


def test_a_run_above_the_limit_gets_a_bye_with_the_reason_and_disturbs_no_other_run(tmp_path, alone):
    world = World(tmp_path, {**PLANS, "green": PLANS["red"]})
    world.run(until=lambda: all(world.answers[name] for name in PLANS))
    world.coordinator.say("green", Welcome(PLANS["red"].encode()))
    world.run(until=lambda: not {*PLANS} & {*world.coordinator.active})
    assert ("green", "no_place: it takes part in red, blue; its setting runs is 2") in world.byes()
    assert {name: world.answers[name] for name in PLANS} == alone
    world.run()
    assert len(world.answers["green"]) == ROUNDS, "it has a place when the other runs are over"


def test_messages_of_a_thousand_runs_use_no_memory_and_no_disk(tmp_path):
    world = World(tmp_path, PLANS)
    world.run(until=lambda: all(world.answers.values()))
    agent, before = world.agent, len(world.coordinator.heard)
    files = {path: path.stat().st_size for path in (tmp_path / DEVICE).rglob("*.json")}
    kinds = (Welcome(PLANS["red"].encode()), Task(1, "train"), Receipt(1, "train", "late"), Finished(1))
    for number in range(1000):
        world.coordinator.say(f"run-{number}", kinds[number % 4])
    now = world.clock.now
    world.run(until=lambda: False, seconds=0.9)
    assert len(agent.places.followers) == 2 and agent.link.others == [agent.places.followers[1].link]
    told = [run for run, _ in world.coordinator.heard[before:] if run.startswith("run-")]
    assert len(told) <= 4 + world.clock.now - now + 1, "one reply a second, and a few at once"
    assert {path: path.stat().st_size for path in (tmp_path / DEVICE).rglob("*.json")}.keys() == files.keys()
    assert {entry.run for entry in agent.state.file.runs} == {*PLANS}


def test_a_run_that_ended_while_the_device_was_away_frees_its_place(tmp_path, alone):
    world = World(tmp_path, PLANS)
    world.run(until=lambda: len(world.answers["red"]) == 1)
    world.kill_device()
    world.coordinator.runs["red"].round = ROUNDS + 1
    world.coordinator.announce()
    world.boot_device()
    world.run()
    state = DeviceState(tmp_path / DEVICE, durable=False)
    assert state.of("red").saved.over and state.of("red").saved.answers
    assert world.answers["blue"] == alone["blue"] and ("red", "finished") in world.byes()


def test_a_temporary_coordinator_of_one_run_does_not_disturb_the_other_run(tmp_path, alone):
    world = World(tmp_path, PLANS)
    world.run(until=lambda: all(world.answers.values()))
    conducted = world.coordinator.runs
    for only in (True, False):
        world.boot_coordinator({}, only)
        world.coordinator.runs = {"red": conducted["red"]} if only else conducted
        for run in conducted.values():  # The new coordinator offers the same objects from its own store.
            run.offer = world.coordinator.with_new_key(world.coordinator.take_over(run, world.folder))
        world.run(until=lambda: len(conducted["red"].answers) >= (2 if only else 3))
    world.run()
    assert world.answers == alone and world.agent.state.of("blue").last_round == ROUNDS
