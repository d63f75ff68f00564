"""A coordinator sends the new log lines of a run to the operators who follow it. Slow operators do not delay it."""

import logging
import threading

import pytest

from protofleet.coordinator import news
from protofleet.coordinator.news import LEASE_SECONDS, MOST_FOLLOWED, MOST_KEPT, PAUSE_SECONDS, RunNews
from protofleet.protocol.wire.messages import MOST_NEWS, News
from protofleet.runtime.logs import lines_of_run

EPOCH = 1_790_000_000


class Sent:
    """The news of a coordinator, and the messages that were sent."""

    def __init__(self, only_run=""):
        self.told, self.over, self.woken = [], {}, 0
        self.news = RunNews(EPOCH, self.tell, lambda run: self.over.get(run, ""), self.wake, only_run)

    def tell(self, operator, run, message):
        self.told.append((operator, run, message))

    def wake(self):
        self.woken += 1

    def log(self, *texts, run="red"):
        for text in texts:
            self.news.logged(0.0, "info", text, run)

    def turn(self, now):
        """Return the messages that one turn of the event loop sends."""
        before = len(self.told)
        self.news.end_turn(now)
        return self.told[before:]


def test_an_operator_gets_each_line_of_its_run_once_and_no_line_of_another_run():
    made = Sent()
    made.log("before")
    found = made.news.follow("alice", "red", None, 0, 10.0)
    assert found == {"epoch": EPOCH, "line": 1, "oldest": 1, "seconds": LEASE_SECONDS}
    made.log("other", "other", "other", run="blue")
    made.log("of the process", run="")
    assert made.turn(10.0) == []
    made.log("one", "two")
    assert made.turn(10.0) == [("alice", "red", News(2, ("one", "two")))]
    made.log("three")
    assert made.turn(10.0) == [] and made.news.wake_at == 10.0 + PAUSE_SECONDS
    assert made.turn(made.news.wake_at) == [("alice", "red", News(4, ("three",)))]
    assert made.turn(20.0) == [] and made.news.wake_at == float("inf")


def test_an_operator_gets_missed_lines_again_as_long_as_they_are_kept():
    made = Sent()
    made.log(*(f"line {number}" for number in range(1, 6)))
    made.news.follow("alice", "red", 2, EPOCH, 0.0)
    assert made.turn(0.0) == [("alice", "red", News(3, ("line 3", "line 4", "line 5")))]
    made.news.follow("alice", "red", 2, EPOCH - 9, 1.0)  # The numbers of another coordinator do not count.
    assert made.turn(1.0)[0][2].first == 1
    made.news.follow("alice", "red", 1 << 60, EPOCH, 2.0)
    made.log("line 6")
    assert made.turn(2.0)[0][2] == News(6, ("line 6",))
    made.log(*["x"] * MOST_KEPT)
    assert made.news.follow("alice", "red", 2, EPOCH, 3.0)["oldest"] == 7


def test_a_lease_ends_unless_it_is_renewed():
    made = Sent()
    made.news.follow("alice", "red", None, 0, 0.0)
    made.news.follow("bob", "red", None, 0, 0.0)
    made.news.follow("alice", "red", 0, EPOCH, LEASE_SECONDS / 2)
    made.log("late")
    assert [who for who, _, _ in made.turn(LEASE_SECONDS)] == ["alice"]
    made.log("later")
    assert made.turn(2 * LEASE_SECONDS) == []


def test_a_flood_of_lines_is_sent_in_messages_of_limited_size_with_pauses():
    made = Sent()
    made.news.follow("alice", "red", None, 0, 0.0)
    made.log(*(str(number) for number in range(1, 3 * MOST_KEPT + 1)))
    now, numbers = 0.0, []
    while made.news.wake_at < float("inf"):
        now = max(now, made.news.wake_at)
        for _, _, message in made.turn(now):
            assert len(message.lines) <= MOST_NEWS
            numbers += range(message.first, message.first + len(message.lines))
    assert numbers == list(range(2 * MOST_KEPT + 1, 3 * MOST_KEPT + 1))
    assert now == pytest.approx((MOST_KEPT // MOST_NEWS) * PAUSE_SECONDS)


def test_an_operator_follows_a_limited_number_of_runs_and_does_not_affect_other_operators():
    made = Sent()
    made.news.follow("bob", "run-0", None, 0, 0.0)
    for number in range(MOST_FOLLOWED + 1):
        made.news.follow("alice", f"run-{number}", None, 0, 0.0)
        made.news.follow("alice", f"run-{number}", None, 0, 0.0)  # A renewal takes no further place.
    for number in range(MOST_FOLLOWED + 1):
        made.log("line", run=f"run-{number}")
    told = [(who, run) for who, run, _ in made.turn(0.0)]
    assert ("bob", "run-0") in told and ("alice", "run-0") not in told and len(told) == 1 + MOST_FOLLOWED


def test_the_last_news_has_the_final_state_and_follows_all_lines():
    made = Sent()
    made.news.follow("alice", "red", None, 0, 0.0)
    made.log(*["x"] * (MOST_NEWS + 1))
    made.over["red"] = "finished"
    assert made.turn(0.0)[0][2].over == ""
    assert made.turn(1.0)[0][2] == News(MOST_NEWS + 1, ("x",), "finished")
    made.log("after the end")
    assert made.turn(2.0) == []
    made.news.follow("alice", "red", MOST_NEWS + 2, EPOCH, 3.0)
    assert made.turn(3.0)[0][2] == News(MOST_NEWS + 3, (), "finished")


def test_all_waiting_lines_are_sent_without_pauses_at_the_end_of_the_process():
    made = Sent("red")
    made.news.follow("alice", "red", None, 0, 0.0)
    made.log(*["x"] * (2 * MOST_NEWS), run="")
    made.over["red"] = "stopped"
    made.news.end(0.0)
    assert [(len(message.lines), message.over) for _, _, message in made.told] == [
        (MOST_NEWS, ""), (MOST_NEWS, "stopped"),
    ]  # fmt: skip


def test_a_line_of_another_thread_wakes_the_event_loop_once_and_only_for_followers():
    made = Sent()
    made.log("no operator follows")
    assert made.woken == 0
    made.news.follow("alice", "red", None, 0, 0.0)
    threads = [threading.Thread(target=made.log, args=("one", "two")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made.woken == 1
    assert len(made.turn(0.0)[0][2].lines) == 8
    made.log("after the turn")
    assert made.woken == 2


def test_the_lines_are_those_of_the_log_and_name_their_run():
    made, log = Sent(), logging.getLogger("protofleet.coordinator")
    with made.news.taking_lines():
        made.news.follow("alice", "red", None, 0, 0.0)
        with lines_of_run("red"):
            log.warning("board-%d left\x1b[2J", 7)
        log.warning("a line of the process")
    log.warning("after the end")
    assert made.turn(0.0) == [("alice", "red", News(1, ("board-7 left\\x1b[2J",)))]


def test_a_coordinator_of_many_runs_keeps_the_numbers_of_the_newest_runs_only(monkeypatch):
    monkeypatch.setattr(news, "MOST_RUNS", 3)
    made = Sent()
    for run in ("a", "b", "a", "c", "d"):
        made.log("x", run=run)
    assert [made.news.follow("alice", run, None, 0, 0.0)["line"] for run in "abcd"] == [2, 0, 1, 1]


def test_the_final_state_is_sent_at_the_end_of_the_process_also_without_a_waiting_line():
    made = Sent("red")
    made.news.follow("alice", "red", None, 0, 0.0)
    made.log("the last line", run="")
    assert made.turn(0.0)[0][2].over == ""
    made.over["red"] = "stopped"
    assert made.turn(PAUSE_SECONDS / 2) == []
    made.news.end(PAUSE_SECONDS / 2)
    assert made.told[-1] == ("alice", "red", News(2, (), "stopped"))
    made.news.end(PAUSE_SECONDS)
    assert len(made.told) == 2, "the final state is sent once"
