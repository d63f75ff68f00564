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
LISTENING = 1000.0  # A time after the end of the listening time.
PATIENT = RunPolicy(rounds=2, quorum=2, patience_seconds=30.0, grace_seconds=3.0, settle_seconds=1.0)


def new_vote(stated=(), known=None):
    return ClassNameVote(3, stated, known, 600.0)


def hello(device, names=NAMES):
    return Hello(device, 3, 10, names=names)


def by_hash(device, names=NAMES):
    return Hello(device, 3, 10, names_hash=digest_of(names))


def judged(made, *hellos, now=0.0):
    return [made.judge(each, now) for each in hellos]


# -- the vote, without a coordinator


def test_names_that_differ_from_the_settings_are_refused_with_both_lists_and_the_difference():
    (problem,) = judged(new_vote(NAMES), hello("a", OTHER))
    assert problem.reason is Reason.UNFIT
    assert problem.message == (
        "its classes have other names: class 1 is 'cow' in its data and 'dog' in this run; "
        "its data: cat, cow, owl; this run: cat, dog, owl"
    )
    assert judged(new_vote(NAMES), hello("a"), by_hash("b"), hello("c", ())) == [None] * 3


def test_names_that_are_sent_as_a_hash_are_compared_too():
    (problem,) = judged(new_vote(NAMES), by_hash("a", OTHER))
    assert digest_of(OTHER).hex()[:16] in problem.message and problem.message.endswith(
        "this run: cat, dog, owl"
    )


def test_a_device_with_fewer_names_than_classes_is_refused():
    (problem,) = judged(new_vote(), hello("a", ("cat", "dog")))
    assert problem.message == "it has 2 class names, this run has 3 classes"


def test_one_device_alone_fixes_no_names():
    made = new_vote()
    judged(made, hello("a"))
    made.fix_if_decided()
    assert made.fixed is None and made.names == ()


def test_two_of_three_devices_fix_the_names_when_a_round_begins_and_the_third_is_refused():
    made = new_vote()
    assert judged(made, hello("liar", OTHER), hello("a"), hello("b")) == [None] * 3
    assert [h.device for h in made.outvoted()] == ["liar"] and [h.device for h in made.released()] == ["a"]
    judged(made, hello("a"))
    made.fix_if_decided()
    assert made.names == NAMES
    (problem,) = judged(made, hello("liar", OTHER))
    assert "class 1 is 'cow' in its data" in problem.message


def test_a_device_with_other_names_waits_for_more_devices_and_the_log_gives_the_reason(caplog):
    made = new_vote()
    assert judged(made, hello("a"), hello("b", OTHER), now=5.0) == [None, None]
    assert made.waits("b") and not made.waits("a") and made.wake_at == 5.0 + LISTEN_SECONDS
    for now in range(int(made.wake_at) - 1, 3000, 15):
        made.wake(now)
        judged(made, hello("a"), hello("b", OTHER), now=now)
        assert made.waits("b") and not made.refused() and made.is_open
    assert made.wake_at == float("inf"), "the vote needs no more wake-ups"
    said = [r.getMessage() for r in caplog.records if "b has other class names" in r.getMessage()]
    assert 1 <= len(said) <= 6 and "set class_names in the coordinator's settings" in said[0]


def test_after_the_listening_time_names_are_fixed_as_soon_as_most_devices_agree():
    made = new_vote()
    judged(made, hello("liar", OTHER), hello("a"))
    made.wake(LISTENING)
    judged(made, hello("b"))
    assert made.names == NAMES and [*made.refused()] == [] and [h.device for h in made.released()] == ["a"]
    assert made.released() == [], "each device is released once"


def test_both_devices_wait_in_a_tie_and_no_device_waits_if_all_names_agree(caplog):
    made = new_vote()
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


def test_no_device_takes_part_if_two_of_four_devices_agree_and_two_have_other_names():
    made = new_vote()
    judged(made, hello("a"), hello("b"), hello("c", OTHER))
    assert made.outvoted() == [] and not made.waits("a") and made.waits("c"), "two of three could fix it"
    judged(made, hello("d", ("owl", "dog", "cat")))
    assert {h.device for h in made.outvoted()} == {"a", "b"} and made.waits("d")
    made.fix_if_decided()
    assert made.is_open


def test_the_names_of_a_device_that_is_no_longer_enrolled_do_not_count():
    enrolled = {"liar", "a"}
    made = ClassNameVote(3, (), None, 600.0, enrolled.__contains__)
    judged(made, hello("liar", OTHER), hello("a"))
    made.wake(1.0)
    assert made.waits("a") and made.released() == []
    enrolled.discard("liar")
    made.wake(2.0)
    assert [h.device for h in made.released()] == ["a"]


def test_the_names_of_a_device_that_left_in_a_tie_count_when_a_third_device_comes():
    made = new_vote()
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
def test_one_liar_fixes_no_names_with_any_list_at_any_time(said, lies):
    made = new_vote()
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


def test_a_device_without_class_names_is_accepted_with_one_warning(caplog):
    made = new_vote(NAMES)
    assert judged(made, hello("old", ()), hello("old", ()), hello("older", ())) == [None] * 3
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == 2 and warned[0].startswith("old sends no class names, so nothing shows")


def test_a_warning_names_settings_that_differ_from_the_class_names_of_the_run(caplog):
    made = new_vote()
    judged(made, hello("a"), hello("b"))
    made.fix_if_decided()
    again = new_vote(OTHER, made.fixed)
    assert again.names == OTHER and not again.saved
    assert "class 1 is 'cow' in class_names and 'dog' in the run so far" in caplog.text
    assert new_vote(NAMES, made.fixed).saved


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("cat", "dog"), "class_names has 2 names, but classes is 3"),
        (("cat", "dog", "cat"), "'cat' is the name of two classes"),
        (("cat", "dog", "ow\x1bl"), "is no name of a class"),
    ],
)
def test_invalid_class_names_in_the_settings_are_refused(names, words):
    with pytest.raises(ValueError, match=words):
        CoordinatorSettings("run", 1, 3, {"name": "fedavg"}, class_names=names)


# -- a whole coordinator among real agents


def odd_one(device="device-2", names=OTHER):
    return {device: replace(shard(int(device[-1])), names=names)}


@pytest.mark.parametrize("odd", ["device-0", "device-1", "device-2"])
def test_the_one_device_with_other_names_is_refused_and_the_run_continues(tmp_path, odd):
    run = simulation(tmp_path, "fedavg", policy=PATIENT, shards=odd_one(odd))
    run.run(lambda: run.agents[odd].finished)
    assert "class 1 is 'cow' in its data and 'dog' in this run" in run.agents[odd].view.problem
    run.run()
    assert run.service.finished and run.service.run.participants.name_vote.names == NAMES
    assert odd not in run.service.run.participants.members and len(run.service.run.participants.members) == 2


def test_the_device_with_other_names_is_refused_after_the_listening_time_if_the_quorum_is_all_devices(
    tmp_path,
):
    policy = replace(PATIENT, quorum=3, patience_seconds=600.0)
    run = simulation(tmp_path, "fedavg", policy=policy, shards=odd_one())
    run.run(lambda: run.agents["device-2"].finished)
    assert LISTEN_SECONDS <= run.clock.now < 2 * LISTEN_SECONDS
    assert "its classes have other names" in run.agents["device-2"].view.problem
    assert not any(run.agents[name].finished for name in ("device-0", "device-1"))


def test_fixed_names_survive_a_restart_of_the_coordinator(tmp_path):
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
    """An observer that notes the cohort of each task."""

    def __init__(self):
        self.drawn = set()

    def happened(self, view, event, commands, now):
        self.drawn |= {command.cohort for command in commands if isinstance(command, Save) and command.cohort}

    def answered(self, view, update, now):
        pass

    def stepped(self, view, step, now):
        pass


@pytest.mark.parametrize("settings", [(), OTHER])
def test_devices_with_different_names_get_no_common_task_after_a_restart_of_the_coordinator(
    tmp_path, settings
):
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


def test_a_device_leaves_if_the_plan_has_other_class_names(tmp_path, monkeypatch, caplog):
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


def test_a_device_sends_its_names_in_full_once_per_coordinator_and_connection(tmp_path):
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
        "a hello from before the device knew the epoch is not judged"
    )
    assert [bool(h.names) for h in second] == [True] + [False] * (len(second) - 1)
    for said in (first, second):
        assert {h.names_hash for h in said} == {b"", digest_of(NAMES)}
        assert not any(h.names and h.names_hash for h in said)


def test_names_that_are_too_long_for_a_packet_are_sent_as_a_hash(tmp_path):
    names = tuple(f"{i}-{'x' * 50}" for i in range(3))
    shards = {f"device-{i}": replace(shard(i), names=names if i else OTHER) for i in range(3)}
    run = simulation(tmp_path, "fedavg", policy=PATIENT, shards=shards, class_names=names)
    for agent in run.agents.values():
        agent.link.fits_in_message = lambda packed: False
    run.service.run.link.fits_in_message = lambda packed: False
    run.run()
    assert run.service.finished and len(run.service.run.participants.members) == 2
    assert digest_of(OTHER).hex()[:16] in run.agents["device-0"].view.problem


def test_the_index_returns_the_saved_class_names_after_a_restart(tmp_path):
    made = new_vote()
    judged(made, hello("a"), hello("b"))
    made.fix_if_decided()
    spool = Spool(tmp_path, durable=False)
    assert spool.class_names() is None
    spool.save_class_names(made.fixed)
    spool.close()
    again = Spool(tmp_path, durable=False)
    assert again.class_names() == made.fixed
    again.close()
