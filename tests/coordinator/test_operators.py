"""The coordinator carries out commands of operators: bounds, grants, and what is stored of each command."""

import json
import queue
import threading

import pytest

from protofleet.coordinator.devices.bans import Bans
from protofleet.coordinator.operators import (
    LAST_SECONDS,
    MOST_WAITING,
    BrokerOperators,
    OperatorLoop,
    packed_within,
)
from protofleet.coordinator.queue import queue_file
from protofleet.coordinator.queue.commands import Decision, QueueCommand, Sender
from protofleet.coordinator.queue.queue_file import QueueFile
from protofleet.coordinator.queue_requests import loggable, problem_of, queue_commands
from protofleet.coordinator.request_form import denial_of
from protofleet.coordinator.round.events import SaveResult
from protofleet.coordinator.spool import spool
from protofleet.protocol.security.operators import GRANTS
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.transport.base import Arrived, Done
from protofleet.protocol.wire.messages import CommandRequest
from tests.coordinator.test_service_settings import EXPERIMENT, service
from tests.protocol.link.test_operators import STOP, TOPICS, World

ANSWER = {"verdict": "done", "words": "", "runs": []}


class Coordinator(World):
    """A coordinator whose commands wait until they are let through."""

    def __init__(self, folder):
        super().__init__()
        self.bans, self.calls, self.gate = (
            Bans(folder, Disk(durable=False)),
            queue.SimpleQueue(),
            threading.Event(),
        )
        self.handled = []
        self.inbox = BrokerOperators(self.coordinator, self.handle, self.calls.put, self.bans)
        self.inbox.connected(1 << 20)

    def handle(self, user, request, sender):
        assert self.gate.wait(10)
        self.handled.append((user, request, sender))
        return ANSWER

    def say(self, link, command=STOP):
        link.send(command)
        self.inbox.arrived(*self.wire.sent.pop(), 0.0)

    def results(self, number):
        """Let the commands through, and return the topics of their results."""
        self.gate.set()
        for _ in range(number):
            self.calls.get(timeout=10)()
        return [topic for topic, _ in self.wire.sent]


def test_an_operator_has_a_limited_number_of_waiting_commands_and_does_not_block_other_operators(tmp_path):
    made = Coordinator(tmp_path)
    alice, bob = made.sender("alice"), made.sender("bob")
    for _ in range(20):
        made.say(alice)
    made.say(bob)
    topics = made.results(MOST_WAITING + 1)
    assert topics == [TOPICS.results_of("alice")] * MOST_WAITING + [TOPICS.results_of("bob")]
    made.say(alice)  # There is room again.
    assert len(made.results(1)) == MOST_WAITING + 2


def test_the_coordinator_answers_malformed_arguments_and_continues(tmp_path):
    made, calls = Coordinator(tmp_path), []
    alice = made.sender("alice")

    def execute(command, submission, refusal):
        calls.append((command.verb, refusal))
        return {"verdict": "refused" if refusal else "done", "words": refusal}

    made.handle = queue_commands(service(), execute, lambda call: call())
    made.inbox = BrokerOperators(made.coordinator, made.handle, made.calls.put, made.bans)
    made.inbox.connected(1 << 20)
    words = {
        b"[" * 60_000: "are not a JSON object",
        b"[]": "are not a JSON object",
        b"\xff": "are not a JSON object",
        b"9" * 9_000: "are not a JSON object",
        b'{"run": 5}': "a request has the strings",
        b'{"run": "../../etc"}': "is not the name of a run",
        b'{"run": "x", "id": "0", "verb": "submit"}': "",
        b'{"run": "%s"}' % (b"x" * 90_000): "(90,000 letters) is not the name of a run",
    }
    for args, expected in words.items():
        made.say(alice, CommandRequest(bytes(16), "stop", args))
        made.results(1)
        found = alice.arrived(*made.wire.sent.pop())
        assert found.verdict == ("refused" if expected else "done") and expected in found.words
    assert calls[-2][1] == "" and calls[-1][1].startswith(f"{'x' * 64!r} (90,000 letters) is not the name")


def test_commands_of_a_name_that_floods_are_dropped_unread_and_those_of_other_names_are_not(tmp_path):
    made = Coordinator(tmp_path)
    for _ in range(1_000):
        made.inbox.arrived(TOPICS.commands_of("alice"), b"", 0.0)
    assert made.inbox.unwanted(TOPICS.commands_of("alice"))
    made.bans.pause("", 0.0)  # Names that are not enrolled are paused; bob is enrolled.
    assert made.inbox.unwanted(TOPICS.commands_of("nobody"))
    assert not made.inbox.unwanted(TOPICS.commands_of("bob"))


def test_an_internal_error_in_the_work_for_one_operator_pauses_only_this_operator(tmp_path, monkeypatch):
    made = Coordinator(tmp_path)
    arrived = made.coordinator.arrived

    def broken(topic, frame, now):
        if topic == TOPICS.commands_of("alice"):
            raise RuntimeError("a bug of ours")
        return arrived(topic, frame, now)

    monkeypatch.setattr(made.coordinator, "arrived", broken)
    made.say(made.sender("alice"))
    made.say(made.sender("bob"))
    assert made.results(1) == [TOPICS.results_of("bob")]
    assert made.inbox.unwanted(TOPICS.commands_of("alice"))
    assert not made.inbox.unwanted(TOPICS.commands_of("bob"))


def command(verb="stop", run="red", grants=("view", "run"), **more):
    sender = Sender(frozenset(grants), 5, more.pop("newest", 1), "h")
    return QueueCommand(more.pop("id", bytes(16)), "alice", verb, run, sender=sender)


@pytest.mark.parametrize(
    ("verb", "grants", "needed"),
    [("runs", ("run",), "view"), ("show", (), "view"), ("log", ("admit",), "view"), ("submit", ("view",), "run"),
     ("stop", ("view", "lead"), "run"), ("anything", ("view",), "run"),
     ("label", ("view", "run"), "admit"), ("labels", ("admit",), "view")],
)  # fmt: skip
def test_a_denial_names_the_missing_grant(verb, grants, needed):
    denial = denial_of(command(verb, grants=grants))
    assert denial.startswith(
        f"alice has no grant {needed!r}, which {verb} needs; whoever holds the root gives it"
    )
    given = [grant for grant in GRANTS if grant in {*grants, needed}]
    assert f"approve root/requests/alice.request --grants {','.join(given)}`" in denial
    every = command(verb, grants=("view", "run", "admit"))
    assert denial_of(every) == "" == denial_of(QueueCommand(bytes(16), "local:ann", verb, ""))


def test_a_submission_without_the_grant_is_denied_before_its_experiment_is_read():
    request = {"id": "0" * 32, "verb": "submit", "run": "red", "reason": "", "experiment": 5}
    seen = []
    handle = queue_commands(service(), lambda *told: seen.append(told) or ANSWER, lambda call: call())
    handle("alice", request, Sender(frozenset({"view"}), 1, 1, ""))
    handle("alice", request, Sender(frozenset({"run"}), 1, 1, ""))
    handle("local:ann", {**request, "experiment": EXPERIMENT, "after": "", "priority": 0})
    assert [(one is None, words) for _, one, words in seen] == [
        (True, ""),
        (True, "a submission has the strings experiment and after, and the whole number priority"),
        (False, ""),
    ]


def test_a_stored_command_has_short_strings_and_does_not_displace_those_of_other_operators(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(queue_file, "MOST_OF_ONE", 5)
    made = QueueFile(tmp_path, "lab", lambda: 1_790_000_000, Disk(durable=False))
    long = loggable(command("x" * 900, "../" * 900))
    assert (long.run, len(long.verb)) == ("", 64) and loggable(command()) == command()
    assert "no command" in problem_of(command("x")) and problem_of(command("runs", "")) == ""
    made.save(QueueCommand(bytes(16), "bob", "stop", "red"), Decision("done", "first"))
    mine = [command(id=number.to_bytes(16), newest=number) for number in range(8)]
    for one in mine:
        made.save(one, Decision("denied", ""))
    assert made.heard() == {"alice": (5, 7, "h")}
    assert [one.operator for one in made.newest_of_all(10_000)] == ["bob"] + ["alice"] * 5
    assert made.result_of(mine[2]) is None and made.result_of(mine[3]).verdict == "denied"
    made.close()
    again = QueueFile(tmp_path, "lab", lambda: 1_790_000_000, Disk(durable=False))
    assert again.heard() == {"alice": (5, 7, "h")}
    again.close()


def test_a_result_that_is_too_large_for_a_packet_states_how_many_rows_are_left_out():
    runs = [{"run": f"run-{number}", "reason": "x" * 100} for number in range(100)]
    found = json.loads(packed_within({"runs": runs}, 1024))
    assert found["runs"] == runs[: len(found["runs"])] and len(found["runs"]) + found["left_out"] == 100
    found = json.loads(packed_within({"commands": runs, "run": "red"}, 1024))
    assert found["commands"][-1] == runs[-1] and found["run"] == "red"
    assert json.loads(packed_within({"runs": runs}, 1 << 20)) == {"runs": runs}
    assert packed_within({"run": "x" * 2000}, 1024) == b"{}"


class App:
    """An app of the event loop that has finished, or not."""

    def __init__(self, finished=False):
        self.finished, self.wake_at, self.taken = finished, 7.0, []

    def take(self, item, now):
        self.taken.append(item)

    def wake(self, now):
        raise AssertionError("an app that has finished is not woken")

    def end_turn(self, now):
        pass


def test_a_finished_process_continues_until_its_operators_have_their_results(tmp_path):
    made, app, item = Coordinator(tmp_path), App(), Done(lambda: None)
    loop = OperatorLoop(app, made.inbox)
    alice = made.sender("alice")
    alice.send(STOP)
    loop.take(Arrived(*made.wire.sent.pop()), 1.0)
    assert not loop.finished and loop.wake_at == 7.0
    app.finished = True
    loop.end_turn(2.0)
    assert not loop.finished and loop.wake_at == 2.0 + LAST_SECONDS
    alice.send(STOP)
    for one in (item, Arrived("dev/board/state", b""), Arrived(*made.wire.sent.pop())):
        loop.take(one, 2.0)
    assert app.taken == [item], "only functions for the thread of the event loop are called at the end"
    made.gate.set()
    made.calls.get(timeout=10)()
    assert loop.finished and [topic for topic, _ in made.wire.sent] == [TOPICS.results_of("alice")]


def test_a_finished_process_waits_for_a_result_only_for_a_limited_time(tmp_path):
    made, app = Coordinator(tmp_path), App(finished=True)
    loop = OperatorLoop(app, made.inbox)
    made.say(made.sender("alice"))
    for now, finished in ((1.0, False), (2.0, False), (1.0 + LAST_SECONDS, True)):
        loop.end_turn(now)
        loop.wake(now)
        assert loop.finished is finished
    made.gate.set()


def test_a_coordinator_without_commands_of_operators_has_no_thread_for_them(tmp_path):
    before = threading.active_count()
    made = Coordinator(tmp_path)
    assert threading.active_count() == before
    made.say(made.sender("alice"))
    assert threading.active_count() == before + 1
    assert len(made.results(1)) == 1


def test_a_run_stores_the_newest_command_of_each_operator_and_no_operator_displaces_another(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(spool, "MOST_OF_ONE", 5)
    made = spool.Spool(tmp_path, durable=False)
    made.start_run("red", "{}", 1)

    def save(operator, number, sender):
        key = number.to_bytes(16) + operator.encode()
        with made.index.transaction():
            made.save_result(SaveResult(key, 1, operator, "stop", "denied", "", sender))

    save("bob", 1, (3, 4, "b"))
    for number in range(8):
        save("alice", number, (5, number, "h"))
    made.close()
    again = spool.Spool(tmp_path, durable=False)
    assert again.heard_operators() == {"alice": (5, 7, "h"), "bob": (3, 4, "b")}
    assert [one.operator for one in again.newest_results(100)] == ["alice"] * 5 + ["bob"]
    assert again.newest_numbers("denied") == (9, 9)
    again.close()
