"""Most devices decide the names of a run's classes, one device alone never does, and the names stay."""

import logging
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.devices.class_names import LISTEN_SECONDS, ClassNameVote
from protofleet.coordinator.round.events import Save
from protofleet.coordinator.spool.spool import Spool
from protofleet.protocol.wire.class_names import digest_of
from protofleet.protocol.wire.messages import Hello
from protofleet.protocol.wire.reasons import Reason
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import NAMES, shard, simulation

OTHER = ("cat", "cow", "owl")
LISTENING = 1000.0  # seconds until all devices have been heard
PATIENT = RunPolicy(rounds=2, quorum=2, patience_seconds=30.0, grace_seconds=3.0, settle_seconds=1.0)


def naming(stated=(), known=None):
    return ClassNameVote(3, stated, known, 600.0)


def hello(device, names=NAMES):
    return Hello(device, 3, 10, names=names)


def by_hash(device, names=NAMES):
    return Hello(device, 3, 10, names_hash=digest_of(names))


def judged(made, *hellos, now=0.0):
    return [made.judge(each, now) for each in hellos]


# -- one list of names, and the names that each device says


def test_what_is_stated_refuses_with_both_lists_and_the_first_difference():
    (problem,) = judged(naming(NAMES), hello("a", OTHER))
    assert problem.reason is Reason.UNFIT
    assert problem.message == (
        "its classes have other names: class 1 is 'cow' in its data and 'dog' in this run; "
        "its data: cat, cow, owl; this run: cat, dog, owl"
    )
    assert judged(naming(NAMES), hello("a"), by_hash("b"), hello("c", ())) == [None] * 3


def test_names_that_are_said_by_their_hash_are_compared_too():
    (problem,) = judged(naming(NAMES), by_hash("a", OTHER))
    assert digest_of(OTHER).hex()[:16] in problem.message and problem.message.endswith(
        "this run: cat, dog, owl"
    )


def test_more_names_than_classes_are_refused():
    (problem,) = judged(naming(), hello("a", ("cat", "dog")))
    assert problem.message == "it has 2 class names, this run has 3 classes"


def test_nothing_is_fixed_by_one_device_and_nobody_is_told():
    made = naming()
    judged(made, hello("a"))
    made.fix_if_decided()
    assert made.fixed is None and made.names == ()


def test_two_of_three_fix_it_when_a_round_begins_and_the_third_is_refused():
    made = naming()
    assert judged(made, hello("liar", OTHER), hello("a"), hello("b")) == [None] * 3
    assert [h.device for h in made.outvoted()] == ["liar"] and [h.device for h in made.released()] == ["a"]
    judged(made, hello("a"))
    made.fix_if_decided()
    assert made.names == NAMES
    (problem,) = judged(made, hello("liar", OTHER))
    assert "class 1 is 'cow' in its data" in problem.message


def test_who_contradicts_waits_for_as_long_as_nobody_else_comes_and_the_log_says_for_what(caplog):
    made = naming()
    assert judged(made, hello("a"), hello("b", OTHER), now=5.0) == [None, None]
    assert made.waits("b") and not made.waits("a") and made.wake_at == 5.0 + LISTEN_SECONDS
    for now in range(int(made.wake_at) - 1, 3000, 15):
        made.wake(now)
        judged(made, hello("a"), hello("b", OTHER), now=now)
        assert made.waits("b") and not made.refused() and made.is_open
    assert made.wake_at == float("inf"), "there is nothing more to wake for"
    said = [r.getMessage() for r in caplog.records if "b has other class names" in r.getMessage()]
    assert 1 <= len(said) <= 6 and "set class_names in the coordinator's settings" in said[0]


def test_after_the_listening_the_first_to_make_most_of_them_fixes_it():
    made = naming()
    judged(made, hello("liar", OTHER), hello("a"))
    made.wake(LISTENING)
    judged(made, hello("b"))
    assert made.names == NAMES and [*made.refused()] == [] and [h.device for h in made.released()] == ["a"]
    assert made.released() == [], "each is told once"


def test_in_a_tie_all_wait_and_who_is_alone_or_agrees_with_all_does_not(caplog):
    made = naming()
    judged(made, hello("liar", OTHER))
    assert made.outvoted() == [] and not made.waits("liar"), "all agree"
    judged(made, hello("a"))
    assert made.waits("a") and [h.device for h in made.outvoted()] == ["liar"] and made.released() == []
    assert "waits (1 of 2 devices wait). The wait ends when enough devices agree" in caplog.text
    assert "at least two, and more than half of all devices that sent names" in caplog.text
    assert "set class_names in the coordinator's settings. The difference is: class 1 is 'dog'" in caplog.text
    assert "its data: cat, dog, owl; another's: cat, cow, owl" in caplog.text
    judged(made, hello("a", OTHER))
    assert made.waits("a") is False and made.outvoted() == [], "it has changed its data, and all agree again"


def test_two_of_four_that_say_three_lists_take_no_part_either():
    made = naming()
    judged(made, hello("a"), hello("b"), hello("c", OTHER))
    assert made.outvoted() == [] and not made.waits("a") and made.waits("c"), "two of three could fix it"
    judged(made, hello("d", ("owl", "dog", "cat")))
    assert {h.device for h in made.outvoted()} == {"a", "b"} and made.waits("d")
    made.fix_if_decided()
    assert made.is_open


def test_who_is_not_enrolled_any_more_has_said_nothing():
    enrolled = {"liar", "a"}
    made = ClassNameVote(3, (), None, 600.0, enrolled.__contains__)
    judged(made, hello("liar", OTHER), hello("a"))
    made.wake(1.0)
    assert made.waits("a") and made.released() == []
    enrolled.discard("liar")
    made.wake(2.0)
    assert [h.device for h in made.released()] == ["a"]


def test_who_has_left_in_a_tie_counts_when_a_third_comes():
    made = naming()
    judged(made, hello("liar", OTHER), hello("a"))
    made.wake(LISTENING)
    made.refused()
    made.left("a")
    assert judged(made, hello("b")) == [None]
    made.fix_if_decided()
    assert made.names == NAMES and judged(made, hello("a"), hello("liar", OTHER))[0] is None


@given(
    st.lists(st.tuples(st.sampled_from(["liar", "a", "b", "c"]), st.booleans(), st.booleans()), max_size=30),
    st.lists(st.sampled_from([OTHER, ("owl", "dog", "cat"), NAMES, ()]), min_size=30, max_size=30),
)
def test_one_liar_decides_nothing_whatever_it_says_and_whenever(said, lies):
    made = naming()
    for (device, settles, looks), lie in zip(said, lies, strict=False):
        judged(made, hello(device, lie if device == "liar" else NAMES))
        if settles:
            made.fix_if_decided()
        if looks:
            made.wake(LISTENING)
        assert made.names in ((), NAMES)
    honest = ["a", "b"]
    judged(made, *map(hello, honest))
    made.fix_if_decided()
    assert judged(made, *map(hello, honest)) == [None, None] and not any(map(made.waits, honest))


def test_a_device_that_says_none_is_taken_with_one_warning(caplog):
    made = naming(NAMES)
    assert judged(made, hello("old", ()), hello("old", ()), hello("older", ())) == [None] * 3
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == 2 and warned[0].startswith("old sends no class names, so nothing shows")


def test_settings_above_what_a_run_has_called_its_classes_are_warned_of(caplog):
    made = naming()
    judged(made, hello("a"), hello("b"))
    made.fix_if_decided()
    again = naming(OTHER, made.fixed)
    assert again.names == OTHER and not again.saved
    assert "class 1 is 'cow' in class_names and 'dog' in the run so far" in caplog.text
    assert naming(NAMES, made.fixed).saved


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("cat", "dog"), "class_names has 2 names, but classes is 3"),
        (("cat", "dog", "cat"), "'cat' is the name of two classes"),
        (("cat", "dog", "ow\x1bl"), "is no name of a class"),
    ],
)
def test_class_names_that_cannot_be_used_are_one_line(names, words):
    with pytest.raises(ValueError, match=words):
        CoordinatorSettings("run", 1, 3, {"name": "fedavg"}, class_names=names)


# -- a whole coordinator among real agents


def odd_one(device="device-2", names=OTHER):
    return {device: replace(shard(int(device[-1])), names=names)}


@pytest.mark.parametrize("odd", ["device-0", "device-1", "device-2"])
def test_whoever_says_what_fewest_say_is_refused_and_the_others_go_on(tmp_path, odd):
    run = simulation(tmp_path, "fedavg", policy=PATIENT, shards=odd_one(odd))
    run.run(lambda: run.agents[odd].finished)
    assert "class 1 is 'cow' in its data and 'dog' in this run" in run.agents[odd].view.problem
    run.run()
    assert run.service.finished and run.service.run.participants.name_vote.names == NAMES
    assert odd not in run.service.run.participants.members and len(run.service.run.participants.members) == 2


def test_where_all_are_waited_for_the_odd_one_is_refused_after_a_while(tmp_path):
    policy = replace(PATIENT, quorum=3, patience_seconds=600.0)
    run = simulation(tmp_path, "fedavg", policy=policy, shards=odd_one())
    run.run(lambda: run.agents["device-2"].finished)
    assert LISTEN_SECONDS <= run.clock.now < 2 * LISTEN_SECONDS
    assert "its classes have other names" in run.agents["device-2"].view.problem
    assert not any(run.agents[name].finished for name in ("device-0", "device-1"))


def test_what_is_fixed_stays_when_the_coordinator_starts_again(tmp_path):
    run = simulation(tmp_path, "fedavg", policy=replace(PATIENT, rounds=40))
    run.run(lambda: run.service.run.machine.round == 2)
    run.kill("coordinator")
    run.boot_coordinator()
    run.shards.update(odd_one())
    run.boot_device("device-2")
    assert (
        run.service.run.participants.name_vote.names == NAMES and run.service.run.participants.name_vote.saved
    )
    run.run(lambda: run.agents["device-2"].finished)
    assert "its classes have other names" in run.agents["device-2"].view.problem and not run.service.finished


class Cohorts:
    """An observer that keeps which devices are asked together."""

    def __init__(self):
        self.drawn = set()

    def happened(self, view, event, commands, now):
        self.drawn |= {command.cohort for command in commands if isinstance(command, Save) and command.cohort}

    def answered(self, view, update, now):
        pass

    def stepped(self, view, step, now):
        pass


@pytest.mark.parametrize("settings", [(), OTHER])
def test_who_took_part_before_a_restart_is_not_asked_with_one_that_says_other_names_first(tmp_path, settings):
    """The network of that device is down when the next coordinator starts, and the broker has not noticed yet."""
    policy = RunPolicy(rounds=40, quorum=1, patience_seconds=20.0, grace_seconds=3.0, settle_seconds=1.0)
    cohorts = Cohorts()
    run = simulation(tmp_path, "fedavg", policy=policy, shards=odd_one("device-1"), observers=[cohorts])
    for device in ("device-1", "device-2"):
        run.kill(device)
    run.run(lambda: run.service.run.machine.round == 3)
    run.kill("coordinator")
    run.broker.clients["device-0"].close()
    run.class_names = settings
    run.boot_coordinator()
    run.boot_device("device-1")
    run.run(lambda: run.service.run.machine.round == 5)
    run.boot_device("device-0")
    until = run.clock.now + 60.0
    run.run(lambda: run.clock.now >= until or run.service.finished)
    assert cohorts.drawn == {("device-0",), ("device-1",)}
    assert run.service.finished is bool(settings), "in a tie both wait"


def test_a_device_leaves_by_itself_where_the_run_calls_its_classes_otherwise(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(ClassNameVote, "judge", lambda self, hello, now: None)
    run = simulation(tmp_path, "fedavg", policy=PATIENT, shards=odd_one(), class_names=NAMES)
    with caplog.at_level(logging.WARNING):
        run.run()
    assert run.agents["device-2"].view.problem == (
        "this device cannot follow the run's plan: the classes of this device have other names: class 1 is 'cow' in "
        "this device's data and 'dog' in the run; this device's data: cat, cow, owl; the run: cat, dog, owl"
    )
    assert "device-2 leaves: cannot_follow: the classes of this device have other names" in caplog.text
    assert run.service.finished


def test_names_are_said_in_full_once_to_each_coordinator_on_each_connection(tmp_path):
    run = simulation(tmp_path, "fedavg", policy=replace(PATIENT, rounds=3))
    said = []
    judge = ClassNameVote.judge
    ClassNameVote.judge = lambda self, hello, now: (said.append(hello), judge(self, hello, now))[1]
    try:
        run.run(lambda: run.service.run.machine.round == 2)
        first = [h for h in said if h.device == "device-1"]
        run.kill("coordinator")
        run.boot_coordinator()
        said.clear()
        run.run()
    finally:
        ClassNameVote.judge = judge
    second = [h for h in said if h.device == "device-1"]
    assert [bool(h.names) for h in first] == [True, False], (
        "what it said before it heard the epoch is not judged"
    )
    assert [bool(h.names) for h in second] == [True] + [False] * (len(second) - 1)
    for said in (first, second):
        assert {h.names_hash for h in said} == {b"", digest_of(NAMES)}
        assert not any(h.names and h.names_hash for h in said)


def test_names_that_no_packet_holds_are_said_by_their_hash(tmp_path):
    names = tuple(f"{i}-{'x' * 50}" for i in range(3))
    shards = {f"device-{i}": replace(shard(i), names=names if i else OTHER) for i in range(3)}
    run = simulation(tmp_path, "fedavg", policy=PATIENT, shards=shards, class_names=names)
    for agent in run.agents.values():
        agent.link.fits_in_message = lambda packed: False
    run.service.run.link.fits_in_message = lambda packed: False
    run.run()
    assert run.service.finished and len(run.service.run.participants.members) == 2
    assert digest_of(OTHER).hex()[:16] in run.agents["device-0"].view.problem


def test_what_an_index_keeps_is_read_again(tmp_path):
    made = naming()
    judged(made, hello("a"), hello("b"))
    made.fix_if_decided()
    spool = Spool(tmp_path, durable=False)
    assert spool.class_names() is None
    spool.save_class_names(made.fixed)
    spool.close()
    again = Spool(tmp_path, durable=False)
    assert again.class_names() == made.fixed
    again.close()
