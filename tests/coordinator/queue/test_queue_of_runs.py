"""The queue of runs: each state with each command, the order of runs, and a kill before each durable step."""

import sqlite3
from dataclasses import replace

import pytest

from protofleet.coordinator.devices.labels import DeviceLabels
from protofleet.coordinator.queue.commands import Decision, QueueCommand, Submission, decide
from protofleet.coordinator.queue.labelling import Labelling, decide_labels
from protofleet.coordinator.queue.queue_file import QUEUE_FILE, QueueFile
from protofleet.coordinator.queue.settle import Change, Conduct, Tell, settle
from protofleet.coordinator.queue.states import FINAL, STATES, QueuedRun, RunFact, waits_for
from protofleet.coordinator.spool.index import FencedError, RunMismatchError
from protofleet.coordinator.spool.origin import Origin
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.wire.names import RULE
from tests.coordinator.queue.world import World

NOW = 1_790_000_000
SCRIPT = (  # the states of runs that must be reached first, the command, its run, and more of a submission
    ({}, "submit", "one", {}),
    ({}, "submit", "two", {"after": "one", "origin": Origin("grey", 7, "ab" * 32)}),
    ({}, "submit", "bad", {"priority": -1}),
    ({}, "submit", "last", {"after": "bad"}),
    ({}, "submit", "red", {"priority": 5}),
    ({}, "submit", "one", {}),
    ({}, "pause", "red", {}),
    ({}, "extend", "two", {"rounds": 2}),
    ({"one": "running"}, "pause", "one", {}),
    ({"one": "paused"}, "extend", "one", {"rounds": 5}),
    ({"one": "paused"}, "resume", "one", {}),
    ({"two": "running"}, "resume", "red", {}),
    ({"two": "finished"}, "stop", "two", {}),
    ({"two": "finished"}, "extend", "two", {"rounds": 9}),
    ({"red": "running"}, "stop", "red", {}),
    ({"bad": "failed", "last": "failed"}, "resume", "bad", {}),
)

CHANGES = (
    Labelling("a", "hall", {"gpu": "orin", "site": "x"}),
    Labelling("b", "yard"),
    Labelling("a", None, {"gpu": "nano", "site": ""}),
    Labelling("b", ""),
    Labelling("c", "hall"),
    Labelling("a", None, {"g pu": "nano"}),
)


def row(name, state="queued", number=1, **more):
    """Return a row of the queue; a run that is active has started."""
    started = NOW * (state in ("starting", "running", "pausing"))
    made = QueuedRun(name, number, state, "because", 1, 3, 0, "", "rounds = 3", "local:ann", NOW, started)
    return replace(made, **more)


def runs(*rows):
    return {one.name: one for one in rows}


def said(verb, state, **more):
    """Return the decision about a command on a run in this state."""
    command = QueueCommand(bytes(16), "local:ann", verb, "a", "wrong data")
    return decide(command, runs(row("a", state, **more)), NOW)


@pytest.mark.parametrize(
    ("state", "stop", "pause", "resume"),
    [
        ("submitted", "stopped", "paused", "same"),
        ("queued", "stopped", "paused", "same"),
        ("starting", "stopped", "pausing", "same"),
        ("running", "stopped", "pausing", "same"),
        ("pausing", "stopped", "same", "running"),
        ("paused", "stopped", "same", "submitted"),
        ("finished", "refused", "refused", "refused"),
        ("failed", "refused", "refused", "refused"),
        ("stopped", "same", "refused", "refused"),
    ],
)
def test_each_command_has_the_result_of_the_table_in_each_state(state, stop, pause, resume):
    for verb, wanted in (("stop", stop), ("pause", pause), ("resume", resume)):
        decision = said(verb, state)
        if wanted in ("same", "refused"):
            assert (decision.verdict, decision.changed) == (
                "refused" if wanted == "refused" else "done",
                (),
            )
            continue
        (changed,) = decision.changed
        assert (changed.state, changed.revision) == (wanted, 2)
        assert "local:ann: wrong data" in changed.reason
        assert changed.closed == (wanted == "stopped" and not row("a", state).started)


def test_an_active_run_that_continues_after_a_pause_is_running_at_once():
    paused = row("a", "queued", started=NOW)
    assert settle(runs(paused), {}, slots=1) == Change("a", "running", "")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("started", [0, NOW])
def test_only_a_run_that_failed_or_was_stopped_before_its_start_can_be_submitted_again(state, started):
    before = row("a", state, number=7, started=started, ended=NOW, closed=int(state in FINAL))
    command = QueueCommand(bytes(16), "local:ann", "submit", "a")
    decision = decide(command, runs(before), NOW, Submission("rounds = 4", 4))
    if state == "failed" or (state == "stopped" and not started):
        (again,) = decision.changed
        assert (again.state, again.number, again.rounds, again.started) == ("submitted", 8, 4, 0)
    else:
        assert (decision.verdict, decision.changed) == ("refused", ())
        assert "there is a run a already" in decision.words


def test_a_run_cannot_come_after_itself():
    command = QueueCommand(bytes(16), "local:ann", "submit", "a")
    decision = decide(command, {}, NOW, Submission("rounds = 4", 4, after="a"))
    assert decision.words == "a cannot come after itself; name another run with --after"


@pytest.mark.parametrize("state", STATES)
def test_the_rounds_of_a_run_can_be_set_until_its_end_unless_the_run_refuses(state):
    command, a = QueueCommand(bytes(16), "local:ann", "extend", "a", rounds=5), row("a", state)
    decision = decide(command, runs(a), NOW)
    if state in FINAL:
        assert (decision.verdict, decision.changed) == ("refused", ())
        assert "`protofleet submit FILE --from a`" in decision.words
        return
    assert (decision.verdict, decision.changed) == ("done", (replace(a, rounds=5, revision=2),))
    again = decide(command, runs(*decision.changed), NOW)
    assert (again.verdict, again.changed) == ("done", ())
    refused = decide(command, runs(a), NOW, refusal="round 7 has begun")
    assert (refused.verdict, refused.words, refused.changed) == ("refused", "round 7 has begun", ())


FACTS = {
    "ready": RunFact("running", ""),
    "rests": RunFact("paused", "p"),
    "ended": RunFact("finished", "all done"),
}


@pytest.mark.parametrize(
    ("state", "fact", "step"),
    [
        ("submitted", None, Change("a", "queued", "waits for its turn")),
        ("queued", None, Change("a", "starting", "")),
        ("starting", None, Conduct("a")),
        ("starting", "rests", Change("a", "running", "")),
        ("starting", "ready", Change("a", "running", "")),
        ("running", None, Conduct("a")),
        ("running", "ready", None),
        ("running", "rests", Tell("a", "resume", "")),
        ("running", "ended", Change("a", "finished", "all done")),
        ("pausing", "ready", Tell("a", "pause", "because")),
        ("pausing", "rests", Change("a", "paused", "because")),
        ("pausing", "ended", Change("a", "finished", "all done")),
        ("paused", None, Conduct("a")),
        ("paused", "ready", Tell("a", "pause", "because")),
        ("paused", "rests", None),
        ("stopped", None, Conduct("a")),
        ("stopped", "ready", Tell("a", "stop", "because")),
        ("stopped", "rests", Tell("a", "stop", "because")),
        ("stopped", "ended", None),
        ("finished", None, Conduct("a")),
        ("finished", "ended", None),
    ],
)
def test_the_next_step_depends_on_the_row_and_the_folder_of_the_run(state, fact, step):
    has_begun = state not in ("submitted", "queued")
    active = row("a", state, started=NOW * has_begun)
    assert settle(runs(active), {"a": FACTS[fact]} if fact else {}) == step


def test_a_run_that_is_over_is_closed_when_its_devices_know_it_and_needs_no_more_steps():
    for state in FINAL:
        active, fact = row("a", state, started=NOW), RunFact("finished", "all done", closed=True)
        assert settle(runs(active), {"a": fact}) == Change("a", state, "because", closed=True)
        assert settle(runs(replace(active, closed=1)), {}) is None


def test_one_run_is_active_at_a_time_and_the_others_start_by_priority_and_then_in_order():
    first, second, third = row("a", number=1), row("b", number=2, priority=1), row("c", number=3)
    assert settle(runs(first, second, third), {}) == Change("b", "starting", "")
    assert settle(runs(first, replace(second, closed=1, started=NOW, state="finished"), third), {}) == Change(
        "a", "starting", ""
    )
    # A run that has begun holds the devices, also while it is paused or resumed.
    for state in ("paused", "queued"):
        held = replace(third, state=state, started=NOW)
        found = settle(runs(first, second, held), {"c": FACTS["rests"]})
        assert found == (None if state == "paused" else Change("c", "running", ""))
    words = waits_for(first, runs(first, second, row("c", "paused", 3, started=NOW)))
    assert words == (
        "waits for c, which is paused and holds the devices; resume it or stop it; 1 run is before it in the queue"
    )


def test_a_run_after_another_run_waits_for_its_end_and_fails_with_it():
    after = row("b", "submitted", 2, after="a")
    for state in STATES:
        found = settle(runs(row("a", state, started=0, closed=1), after), {})
        words = {"failed": "a has failed", "stopped": "a was stopped"}.get(state)
        if words:
            assert found == Change("b", "failed", f"{words}, and this run was to come after it")
        elif state == "finished":
            assert found == Change("b", "queued", "waits for its turn")
        else:
            assert found is None or found.run == "a"
    assert waits_for(after, runs(row("a", "running"), after)) == "waits for the end of a, which is running"


def test_with_two_slots_two_runs_are_active_and_each_run_gets_its_own_orders():
    first, second, third = (row(name, number=n) for n, name in enumerate("abc", 1))
    begun = replace(first, state="running", started=NOW)
    assert settle(runs(begun, second, third), {"a": FACTS["ready"]}, 2) == Change("b", "starting", "")
    both = runs(begun, replace(second, state="pausing", started=NOW), third)
    assert settle(both, {}, 2) == Conduct("a")
    assert settle(both, {"a": FACTS["ready"]}, 2) == Conduct("b")
    assert settle(both, dict.fromkeys("ab", FACTS["ready"]), 2) == Tell("b", "pause", "because")
    assert settle(both, dict.fromkeys("ab", FACTS["ready"]), 2, told={"b"}) is None
    rests = {"a": FACTS["ready"], "b": FACTS["rests"]}
    assert settle(both, rests, 2) == Change("b", "paused", "because")
    held = {**both, "b": replace(both["b"], state="paused")}
    assert settle(held, rests, 2) is None, "a paused run keeps its slot"
    assert settle(held, rests, 3) == Change("c", "starting", "")
    assert waits_for(third, held, 2) == (
        "waits for a, which is running, or b, which is paused and holds the devices; resume it or stop it"
    )
    assert waits_for(third, held, 3) == "because"


def test_the_whole_script_has_the_expected_states_and_verdicts(tmp_path):
    rows, told, ends = World(tmp_path).play(SCRIPT).essence()
    assert rows == {
        "one": ("finished", "all rounds are done", 1, 5, ""),
        "two": ("finished", "all rounds are done", 1, 2, "grey"),
        "red": ("stopped", "stopped by local:ann", 1, 3, ""),
        "bad": ("failed", "its plan cannot be built", 1, 3, ""),
        "last": ("failed", "bad has failed, and this run was to come after it", 1, 3, ""),
    }
    refused = {5, 12, 13, 15}  # A name that is taken, and three commands on runs that are over.
    assert told == {n: "refused" if n in refused else "done" for n in range(len(SCRIPT))}
    assert ends == {"one": ("finished", 5), "two": ("finished", 2), "red": ("stopped", 3), "bad": ("", 3)}


@pytest.mark.parametrize(
    ("every", "again", "slots"), [(11, (), 1), (23, (), 2), pytest.param(1, (1,), 1, marks=pytest.mark.slow)]
)
def test_a_kill_before_any_durable_step_changes_no_state_reason_or_verdict(tmp_path, every, again, slots):
    # With two slots, red is over before two is.
    script = SCRIPT if slots == 1 else [one for one in SCRIPT if one[1:3] != ("stop", "red")]
    whole = World(tmp_path / "whole", slots=slots).play(script)
    assert whole.starts == 1
    for point in range(1, whole.disk.points + 1, every):
        killed = World(tmp_path / str(point), {point, *(point + more for more in again)}, slots=slots)
        killed.play(script)
        assert killed.starts > 1 and killed.essence() == whole.essence(), point
        killed.queue.close()


@pytest.mark.slow
def test_a_kill_between_a_commit_and_its_copy_changes_no_state_reason_or_verdict(tmp_path):
    steps = ("commit", "merge", "rename")
    whole = World(tmp_path / "whole", steps=steps).play(SCRIPT)
    for point in range(2, whole.disk.points + 1, 7):
        killed = World(tmp_path / str(point), {point}, steps).play(SCRIPT)
        assert killed.essence() == whole.essence(), point
        killed.queue.close()


def opened(folder, wall=NOW, federation="lab"):
    return QueueFile(folder, federation, lambda: wall, Disk(durable=False))


def submitted(queue, number=0, name="a"):
    command = QueueCommand(number.to_bytes(16, "big"), "local:ann", "submit", name)
    decision = decide(command, queue.runs, NOW, Submission("rounds = 3", 3))
    queue.save(command, decision)
    return command


def test_a_run_is_refused_if_it_cannot_start_from_another_run_and_names_its_origin_if_it_can(tmp_path):
    queue, command = opened(tmp_path), QueueCommand(bytes(16), "local:ann", "submit", "a")
    refused = decide(command, {}, NOW, Submission("rounds = 3", 3, problem="red has no snapshot"))
    assert (refused.verdict, refused.words, refused.changed) == ("refused", "red has no snapshot", ())
    decision = decide(command, {}, NOW, Submission("rounds = 3", 3, origin=Origin("red", 7, "ab" * 32)))
    assert decision.words == "a is submitted; it starts with the state of red after round 7"
    queue.save(command, decision)
    queue.close()
    again = opened(tmp_path)
    made = again.runs["a"]
    assert (made.origin_run, made.origin_round, made.origin_object) == ("red", 7, "ab" * 32)
    again.close()


def test_a_copy_replaces_a_damaged_queue_and_without_a_copy_the_error_gives_a_fix(tmp_path):
    queue = opened(tmp_path)
    command = submitted(queue)
    queue.close()
    with sqlite3.connect(tmp_path / QUEUE_FILE) as db:
        db.execute("UPDATE runs SET rounds = 4")  # The checksum of the row is wrong now.
    db.close()
    again = opened(tmp_path)
    assert again.runs["a"].rounds == 3 and again.result_of(command).words == "a is submitted"
    again.close()
    for name in (QUEUE_FILE, "service.copy.sqlite"):
        (tmp_path / name).write_bytes(b"nothing" * 500)
    with pytest.raises(DamagedError, match="submit the runs that are not over again under their names"):
        opened(tmp_path)


def test_an_earlier_process_cannot_write_and_another_federation_cannot_use_the_folder(tmp_path):
    earlier = opened(tmp_path)
    submitted(earlier)
    later = opened(tmp_path)
    with pytest.raises(FencedError):
        earlier.change(Change("a", "queued", "waits for its turn"))
    with pytest.raises(RunMismatchError, match="holds the queue of the federation lab"):
        opened(tmp_path, federation="other")
    earlier.close(), later.close()


def test_results_are_kept_for_a_week(tmp_path):
    queue = opened(tmp_path)
    first = submitted(queue, 1, "a")
    queue.close()
    later = opened(tmp_path, NOW + 8 * 86_400)
    submitted(later, 2, "b")
    assert later.result_of(first) is None and [one.run for one in later.newest_results("b", 5)] == ["b"]
    later.close()


def test_labels_and_their_result_are_durable_also_if_the_process_is_killed_before_any_step(tmp_path):
    def play(folder, die_before=()):
        world, told = World(folder, die_before), []
        for number, change in enumerate(CHANGES):
            command = QueueCommand(bytes([number]) * 16, "local:ann", "label", "")

            def execute(command=command, change=change):
                known = world.queue.result_of(command) or decide_labels(
                    change, world.queue.labels, {"a", "b"}
                )
                if isinstance(known, Decision):
                    world.queue.save(command, known)
                world.disk.passing()  # The result leaves the process.
                return known.words

            while (words := world.alive(execute)) is None:
                pass
            told.append(words)
        world.boot()
        return world, told

    whole, told = play(tmp_path / "whole")
    assert told == [
        "a: group hall, gpu=orin, site=x", "b: group yard", "a: group hall, gpu=nano", "b: no labels",
        "c is not enrolled; there are a, b", "'g pu' cannot be a group or a part of a label; it has " + RULE,
    ]  # fmt: skip
    assert whole.queue.labels == {"a": DeviceLabels("hall", {"gpu": "nano"})}
    for point in range(1, whole.disk.points + 1):
        killed, said = play(tmp_path / str(point), {point})
        assert (said, killed.queue.labels) == (told, whole.queue.labels), point
        killed.queue.close()


def test_an_older_queue_without_labels_and_its_legacy_run_are_read(tmp_path):
    queue = opened(tmp_path)
    assert (queue.labels, queue.legacy) == ({}, "")
    queue.choose_legacy("red")
    queue.close()
    with sqlite3.connect(tmp_path / QUEUE_FILE) as db:
        db.execute("DROP TABLE devices")
    db.close()
    again = opened(tmp_path)
    assert (again.labels, again.legacy) == ({}, "red")
    again.close()
