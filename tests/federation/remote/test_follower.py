"""A shell that follows a run requests missing lines again, and prints each line once and in order."""

import json
import queue

import pytest

from protofleet.federation.remote import follower as following
from protofleet.federation.remote.connection import UNHEARD
from protofleet.federation.remote.follower import NewsReader, OtherCommands
from protofleet.protocol.link.operators import ReceivedNews
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.transport.base import Arrived, Connected, Denied, Disconnected
from protofleet.protocol.wire.messages import CommandOutcome, CommandRequest, News
from protofleet.runtime.command.errors import RunError

STATE = {
    "run": "red",
    "state": "running",
    "reason": "",
    "over": False,
    "epoch": 5,
    "oldest": 1,
    "seconds": 60,
}


class Line:
    """A connection whose broker and coordinator are the script of a test: each `follow` takes its next part."""

    nobody = "no coordinator answers"

    def __init__(self, *script):
        self.script, self.items, self.asked, self.sent = list(script), queue.SimpleQueue(), [], []

    def connect(self):
        self.items.put(Connected(1 << 20, 20))

    def send(self, command):
        self.sent.append(command)
        if command.verb != "follow":
            return
        args = json.loads(command.args)
        self.asked.append({key: args[key] for key in ("epoch", "after") if key in args})
        for part in self.script.pop(0) if self.script else ():
            self.items.put(result(command, **part) if isinstance(part, dict) else part)

    def read(self, topic, frame):
        return frame

    def put(self, item):
        self.items.put(item)

    def next(self, seconds):
        try:
            return self.items.get(timeout=max(0.0, min(seconds, 5.0)))
        except queue.Empty:
            return None


def result(command, verdict="done", words="", **state):
    data = json.dumps({**STATE, **state}).encode()
    return Arrived("", CommandOutcome(command.id, verdict, words, data))


def news(first, *lines, epoch=5, run="red", over=""):
    return Arrived("", ReceivedNews(run, epoch, News(first, lines, over)))


def said(*script):
    """Return the printed lines, the final state, and the places that the shell has requested."""
    lines, connection = [], Line(*script)
    one = NewsReader(connection, "red", lines.append, lambda state: state["state"], OtherCommands(connection))
    return lines, one.follow(), connection.asked


def test_the_follower_prints_the_state_and_then_each_line_of_its_run_once():
    lines, end, asked = said(
        [
            {"line": 2},
            news(3, "a", "b"),
            news(3, "a", "b", "c"),
            news(1, "x", run="blue"),
            news(6, over="finished"),
        ]
    )
    assert (lines, end, asked) == (["running", "a", "b", "c", "finished"], "finished", [{}])


def test_the_follower_requests_missing_lines_and_prints_all_lines_in_order():
    lines, end, asked = said(
        [{"line": 0}, news(1, "a"), news(3, "c")],
        [{"line": 3}, news(2, "b", "c"), news(4, "d", over="stopped")],
    )
    assert (lines, end) == (["running", "a", "b", "c", "d", "stopped"], "stopped")
    assert asked == [{}, {"epoch": 5, "after": 1}]


def test_the_follower_prints_the_number_of_lost_lines():
    lines, *_ = said(
        [{"line": 0}, news(1, "a"), news(9, "i")],
        [{"line": 9, "oldest": 8}, news(8, "h", "i"), news(12, "l", over="finished")],
    )
    lost = "lines are lost; the log of the coordinator has them"
    assert lines == ["running", "a", f"6 {lost}", "h", "i", f"2 {lost}", "l", "finished"]


def test_the_follower_reads_the_lines_of_a_new_epoch_from_the_first_line():
    lines, _, asked = said(
        [{"line": 7}, news(8, "a"), Disconnected("the broker is gone"), Connected(1 << 20, 20)],
        [{"epoch": 6, "line": 2}, news(1, "b", "c", epoch=6), news(3, epoch=6, over="finished")],
    )
    assert lines == ["running", "a", "the broker is gone; waiting for it", "running", "b", "c", "finished"]
    assert asked == [{}, {"epoch": 5, "after": 8}]


def test_the_lines_of_a_finished_run_are_printed_before_its_end():
    lines, end, _ = said(
        [{"line": 0}, news(1, "a"), news(1, "a", epoch=6)],
        [{"epoch": 6, "line": 1, "over": True, "state": "failed"}, news(1, "b", epoch=6, over="failed")],
    )
    assert (lines, end) == (["running", "a", "b", "failed"], "failed")
    assert said([{"line": 4, "over": True, "state": "finished"}])[:2] == (["finished"], "finished")


@pytest.mark.parametrize("verdict", ["denied", "refused"])
def test_a_refusal_ends_the_follower_with_the_reason(verdict):
    assert said([{"verdict": verdict, "words": "no"}])[:2] == (["no"], "")


def test_the_follower_waits_only_for_a_coordinator_that_has_answered_before(monkeypatch):
    with pytest.raises(RunError, match="no coordinator answers"):
        said([Denied("", UNHEARD)])
    with pytest.raises(BrokerError, match="not allowed"):
        said([Denied("", "not allowed")])
    monkeypatch.setattr(following, "REPEAT_SECONDS", 0.05)
    lines, end, _ = said(
        [{"line": 0}, news(3)], [Denied("", UNHEARD)], [], [{"line": 0}, news(1, over="stopped")]
    )
    assert (
        lines == ["running", "no coordinator answers; waiting for it", "running", "stopped"]
        and end == "stopped"
    )


def test_a_command_of_another_user_is_not_sent_with_our_keys():
    found = OtherCommands(Line()).carry_out(
        "local:somebody-else", {"verb": "stop", "run": "red", "reason": ""}
    )
    assert found == {"verdict": "nobody", "words": "local:somebody-else may not use the keys of another user"}


def test_a_command_of_another_shell_is_repeated_with_its_id_until_its_deadline():
    line, replies = Line(), []
    others, stop = OtherCommands(line), CommandRequest(bytes(16), "stop", b"{}")
    others.waiting[stop.id] = following.OtherCommand(stop, replies.append, deadline=7.0)
    for now in (0.0, 1.0, following.REPEAT_SECONDS, 7.0):
        others.send_due(now)
    assert line.sent == [stop, stop] and replies[0]["verdict"] == "nobody" and not others.waiting


def test_the_follower_ends_if_a_coordinator_of_one_run_does_not_answer_any_more(monkeypatch):
    for pause in ("REPEAT_SECONDS", "RENEW_SECONDS"):
        monkeypatch.setattr(following, pause, 0.01)
    gone = [[Denied("", UNHEARD)]] * following.MOST_UNHEARD
    lines, end, asked = said([{"line": 0, "only_run": True}, *gone[0]], *gone)
    assert end == "" and len(asked) == following.MOST_UNHEARD
    assert lines[:2] == ["running", "no coordinator answers; waiting for it"] and len(lines) == 3
    assert "conducts only one run, and ends with it; the folder of the run shows how" in lines[2]
    # A coordinator of many runs comes back.
    back = [{"line": 0}, news(1, over="finished")]
    assert said([{"line": 0}, *gone[0]], *gone, back)[1] == "finished"


def test_a_stop_command_gets_its_result_before_the_follower_ends():
    stop, replies = CommandRequest(bytes(16), "stop", b"{}"), []
    stopped = Arrived("", CommandOutcome(stop.id, "done", "the run is stopped", b"{}"))
    line = Line([{"line": 0}, news(1, over="stopped"), stopped])
    others = OtherCommands(line)
    others.waiting[stop.id] = following.OtherCommand(stop, replies.append, deadline=float("inf"))
    assert NewsReader(line, "red", [].append, lambda state: state["state"], others).follow() == "stopped"
    assert replies == [{"verdict": "done", "words": "the run is stopped"}]


def test_the_follower_prints_the_reason_of_a_state_when_the_reason_changes(monkeypatch):
    monkeypatch.setattr(following, "RENEW_SECONDS", 0.01)
    states = [
        [{"line": 0, "reason": reason}] for reason in ("none is here", "none is here", "one is here", "")
    ]
    line = Line(*states, [{"line": 0}, news(1, over="finished")])
    lines, words = [], lambda state: f"{state['state']}: {state['reason']}"
    NewsReader(line, "red", lines.append, words, OtherCommands(line)).follow()
    assert lines == ["running: none is here", "running: one is here", "finished"]


@pytest.mark.parametrize(("verb", "is_unknown"), [("stop", True), ("show", False)])
def test_only_a_sent_command_that_changes_something_has_an_unknown_result(verb, is_unknown):
    line, replies = Line(), []
    others, command = OtherCommands(line), CommandRequest(bytes(16), verb, b"{}")
    for times, expected in ((0, "nothing is queued"), (2, "not known whether" if is_unknown else "")):
        others.waiting[command.id] = following.OtherCommand(command, replies.append, 9.0, times=times)
        others.unheard()
        assert expected in replies[-1]["words"]
    assert ("not known" in replies[-1]["words"]) is is_unknown
