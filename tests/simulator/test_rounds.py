"""Tests of rounds under faults: the rules of the policy hold for whole federations and many seeds."""

from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest

from protofleet.protocol.wire.names import COORDINATOR
from tests.simulator.federation import Federation, close_files, tally_known
from tests.simulator.run import judge
from tests.simulator.scenario import draw
from tests.support.run_policy import RunPolicy

CALM = RunPolicy(
    rounds=4, quorum=2, patience_seconds=60.0, grace_seconds=5.0, settle_seconds=1.0, straggler_factor=0.0
)
DEVICES = tuple(f"d{i}" for i in range(5))
MORE_THAN_A_DAY = 90_000.0


@contextmanager
def judging(folder):
    """Yield a function that runs a scenario, checks all its promises and returns the federation as it ended."""
    made = []

    def run(seed, before=lambda f: None, **changes):
        changes = {"kinds": frozenset(), "devices": DEVICES, "policy": CALM, "method": "tally", **changes}
        scenario = replace(draw(seed), hyper={"numbers": 16, "rows": 6}, work_seconds=2.0, **changes)
        with tally_known():
            federation = Federation(scenario, folder / str(len(made)))
            made.append(federation)
            before(federation)
            judge(federation)
        return federation

    yield run
    for federation in made:
        for process in federation.processes.values():
            close_files(process)


@pytest.fixture
def judged(tmp_path):
    with judging(tmp_path) as run:
        yield run


def decisions(federation):
    """Return all decisions of the coordinator, without its epoch."""
    saves = [(s.round, s.attempt, s.cohort, s.state) for s in federation.history.saves]
    return saves, federation.history.closed


def as_soon_as(f, holds, call):
    """Check the condition twenty times a second, and call the function when the condition holds."""
    if holds():
        call()
    else:
        f.clock.after(0.05, "look", lambda: as_soon_as(f, holds, call))


# `make test-all` runs all seeds.
SEEDS = pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])


def slow_from_the_start(f, device, seconds):
    """Make a device slow at its work once the first round has begun."""
    as_soon_as(f, lambda: f.history.saves, lambda: f.work_seconds.update({device: seconds}))


def seconds_of_training(federation):
    saves = federation.history.saves
    return saves[-2].at - saves[0].at


def longest_round(federation):
    saves = federation.history.saves[:-1]
    return max(after.at - before.at for before, after in pairwise(saves))


@pytest.mark.slow
@SEEDS
def test_wall_clocks_that_are_less_than_a_day_ahead_change_no_decision(judged, seed):
    """The clocks are right, an hour off, in 1970 or years behind the coordinator's clock.

    In one case all of them go back by half a day in the middle.
    """

    def wrong(offsets, jump=0.0):
        def before(f):
            for i, host in enumerate(f.hosts.values()):
                host.wall_offset += offsets[i % len(offsets)]
                f.clock.at(
                    5.0,
                    "clocks jump",
                    lambda host=host: setattr(host, "wall_offset", host.wall_offset + jump),
                )

        return before

    weather = {
        "kinds": frozenset({"kill_device", "kill_coordinator", "cut"}),
        "faults": 5,
        "bad_seconds": 60.0,
    }
    right = judged(seed, wrong([0.0]), **weather)
    for clocks in (wrong([3600.0, -3600.0]), wrong([-1.7e9]), wrong([0.0, -1e8], jump=-43_200.0)):
        assert decisions(judged(seed, clocks, **weather)) == decisions(right)


def test_a_coordinator_restarted_over_a_day_behind_continues_when_its_clock_is_set(judged):
    """The coordinator knows the boots of its devices and rejects none. They reject its epoch, which looks older."""

    def before(f):
        def again():
            f.kill(COORDINATOR)
            f.hosts[COORDINATOR].wall_offset -= MORE_THAN_A_DAY
            f.clock.after(1.0, f"{COORDINATOR} is switched on", lambda: f.boot(COORDINATOR))

        as_soon_as(f, lambda: (2, 0, "mix") in f.history.closed, again)

    before_the_fault, behind, set_right = judged(1, before, policy=replace(CALM, quorum=5)).history.epochs
    assert behind < before_the_fault < set_right


@SEEDS
def test_a_device_that_joins_late_works_only_in_the_current_and_later_rounds(judged, seed):
    at = {}

    def before(f):
        f.boot_late = f.boot

        def boot(place, *rest):
            if place == "d4" and not at:
                if not f.history.saves or f.history.saves[-1].round < 3:  # It joins only in round 3.
                    f.clock.after(0.5, "d4 is not there yet", lambda: boot(place))
                    return
                at["round"] = f.history.saves[-1].round
            f.boot_late(place, *rest)

        f.boot = boot

    run = judged(seed, before)
    rounds = [work.answer.round for work in run.history.works[run.folder / "d4"]]
    assert at["round"] >= 3 and min(rounds) >= at["round"]
    assert max(rounds) == CALM.rounds + 1


@SEEDS
def test_a_spare_halves_the_time_of_training_with_a_straggler(judged, seed):
    def slow(f):
        slow_from_the_start(f, "d0", 50.0)

    rules = replace(CALM, cohort=4, quorum=4, gather=5)
    waited = seconds_of_training(judged(seed, slow, policy=rules, bad_seconds=2000.0))
    spared = seconds_of_training(judged(seed, slow, policy=replace(rules, spares=1), bad_seconds=2000.0))
    assert spared < waited / 2, (spared, waited)


@SEEDS
def test_the_straggler_factor_closes_phases_before_the_patience_time(judged, seed):
    def slow(f):
        slow_from_the_start(f, "d0", 500.0)

    patient = judged(seed, slow, policy=replace(CALM, gather=5), bad_seconds=3000.0)
    hurried = judged(seed, slow, policy=replace(CALM, gather=5, straggler_factor=3.0), bad_seconds=3000.0)
    assert seconds_of_training(hurried) < seconds_of_training(patient)
    # After the first patience d0 counts as silent, and no later round waits for it.
    assert longest_round(patient) >= CALM.patience_seconds > 2 * longest_round(hurried)
    closed = {place: devices for place, devices in hurried.history.closed.items() if place[0] <= CALM.rounds}
    assert {place[0] for place in closed} == set(range(1, CALM.rounds + 1))
    assert all("d0" not in devices for devices in closed.values())


@pytest.mark.slow
def test_the_rule_for_flapping_devices_shortens_the_training(judged):
    """Its connection breaks every 11 s and its work takes minutes; without the rule each phase waits."""

    def flapping(f):
        slow_from_the_start(f, "d0", 500.0)

        def flap():
            if (process := f.processes.get("d0")) and process.alive and process.line:
                process.line.reset()
            f.clock.after(11.0, "d0 flaps", flap)

        f.clock.at(1.0, "d0 flaps", flap)

    rules = replace(CALM, rounds=8, gather=5, patience_seconds=60.0)
    lasted = {
        flaps: sum(
            seconds_of_training(judged(seed, flapping, policy=replace(rules, flaps=flaps), bad_seconds=600.0))
            for seed in range(3)
        )
        for flaps in (0, 3)
    }
    # Without the rule a round waits once for the whole patience; from then on d0 counts as silent.
    assert lasted[3] < 0.75 * lasted[0], lasted


def test_a_device_that_leaves_between_two_phases_is_not_awaited_after_the_grace_time(judged):
    """d0 trains, and leaves before it gets the task of phase mix."""

    def before(f):
        as_soon_as(f, lambda: (1, 0, "train") in f.history.closed, lambda: f.kill("d0"))

    run = judged(1, before, policy=replace(CALM, gather=5), bad_seconds=15.0)
    closed = run.history.closed
    assert "d0" in closed[1, 0, "train"] and "d0" not in closed[1, 0, "mix"]
    assert COORDINATOR not in closed[1, 0, "mix"] and len(closed[1, 0, "mix"]) == 4


TEN_MINUTES = 600.0
MOMENTS = {
    "before the first task": lambda f: True,
    "while a broadcast is sent": lambda f: f.history.saves,
    "while devices work": lambda f: any(f.history.saves) and f.clock.now > f.history.saves[0].at + 1.0,
    "between two phases": lambda f: (1, 0, "train") in f.history.closed,
    "in the second round": lambda f: len(f.history.saves) > 1,
}


@pytest.mark.slow
@pytest.mark.parametrize("keeps", ["nothing", "all"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_broker_outage_of_ten_minutes_delays_a_run_by_at_most_eleven_minutes(judged, moment, keeps):
    """The policy has the default patience time of ten minutes. Sessions at the broker end sooner."""
    outage = {}

    def before(f):
        def back():
            f.broker.start()
            outage["over"] = f.clock.now

        def gone():
            f.broker.die(keeps)
            f.clock.after(TEN_MINUTES, "the broker is back", back)

        as_soon_as(f, lambda: f.clock.now > 0.5 and MOMENTS[moment](f), gone)

    calm = judged(1, policy=RunPolicy(rounds=4, quorum=5))
    run = judged(1, before, policy=RunPolicy(rounds=4, quorum=5), bad_seconds=900.0)
    assert run.history.saves[-1].at < calm.history.saves[-1].at + TEN_MINUTES + 60.0
    assert outage["over"] < run.history.saves[-1].at
    states = [{save.round: save.state for save in f.history.saves} for f in (run, calm)]
    assert states[0] == states[1], "the same bits as without it"
