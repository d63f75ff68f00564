"""The page of a process shows several runs with one ring of events, and a bounded part of its queue."""

import json

import pytest

from protofleet.coordinator.page.page_state import PageState
from protofleet.coordinator.page.process_page import MOST_ENDED, ProcessPage
from protofleet.coordinator.page.queue_table import MOST_OVER, MOST_WAITING, QueueTable
from protofleet.coordinator.queue.states import QueuedRun
from protofleet.runtime.live.event_ring import GAP


def run_named(name, **more):
    return PageState({"run": name, "state": "running", **more}, (), {}, {}, {})


def row_of(name, number, state="queued", **more):
    return QueuedRun(name, number, state, "", 1, 20, more.pop("priority", 0), "", "", "local:ann", 0, **more)


def told(page, since):
    found = [event.encoded.decode().split("\n") for event in page.ring.since(since)]
    return [
        (kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for _, kind, data, *_ in found
    ]


def now(page):
    return json.loads(json.dumps(page.ring.state[1].table(), allow_nan=False))


def names(page):
    return [run["run"] for run in now(page)["runs"]]


def test_each_event_names_its_run_and_changes_no_other_run():
    page = ProcessPage(("pause", "stop"))
    assert now(page) == {"verbs": ["pause", "stop"], "runs": [], "queue": None, "log": []}
    for name in ("red", "blue"):
        page.begin_run(run_named(name))
    number = page.ring.newest
    page.publish("run", {"state": "paused"}, run_named("blue", state="paused"))
    page.publish("device", {"rows": []}, run_named("red"))
    page.logged(1.0, "info", "hello", "red")
    assert [(kind, data["run"]) for kind, data in told(page, number)] == [
        ("run", "blue"), ("device", "red"), ("log", "red"),
    ]  # fmt: skip
    assert [run["state"] for run in now(page)["runs"]] == ["running", "paused"]


def test_a_new_run_makes_open_pages_read_the_state_again_and_replaces_the_oldest_ended_run():
    page = ProcessPage()
    for i in range(2 * MOST_ENDED):
        number = page.ring.newest
        page.begin_run(run_named(f"run-{i}"))
        assert told(page, number) == [(GAP, {})]
        page.end_run(f"run-{i}")
        assert len(names(page)) <= MOST_ENDED + 1
    last = 2 * MOST_ENDED - 1
    page.begin_run(run_named(f"run-{last}"))  # The same run continues, so it is active again.
    for i in range(MOST_ENDED + 1):
        page.begin_run(run_named(f"late-{i}"))
        page.end_run(f"late-{i}")
    assert f"run-{last}" in names(page)


def test_a_queue_of_a_thousand_runs_shows_the_active_and_next_and_newest_ended_runs():
    over = {f"over-{i}": row_of(f"over-{i}", i, "finished", ended=i, closed=1) for i in range(1000)}
    waiting = {f"wait-{i}": row_of(f"wait-{i}", 2000 + i) for i in range(1000)}
    active = {"red": row_of("red", 9000, "running", started=5, priority=-9)}
    table = QueueTable.of({**over, **waiting, **active}, 1)
    shown = [row["run"] for row in table.rows]
    assert shown[:2] == ["red", "wait-0"] and shown[-MOST_OVER] == "over-999"
    assert len(shown) == 1 + MOST_WAITING + MOST_OVER
    assert (table.waiting, table.over) == (1000 - MOST_WAITING, 1000 - MOST_OVER)
    assert len(json.dumps(table.table())) < 20_000
    assert table.rows[2]["reason"] == "waits for red, which is running; 1 run is before it in the queue"


@pytest.mark.parametrize("reason", ["lunch \x1b[2J\u202e", "x" * 5000])
def test_a_change_of_the_queue_is_an_event_with_the_changed_rows_in_printable_text(reason):
    page, runs = ProcessPage(), {f"run-{i}": row_of(f"run-{i}", i) for i in range(3)}
    page.show_queue(QueueTable.of(runs, 1))
    number = page.ring.newest
    page.show_queue(QueueTable.of(runs, 1))
    assert page.ring.newest == number, "nothing has changed"
    paused = QueuedRun("run-1", 1, "paused", reason, 2, 20, 0, "", "", "local:ann", 0)
    page.show_queue(QueueTable.of({**runs, "run-1": paused}, 1))
    ((kind, data),) = told(page, number)
    assert (kind, [row["run"] for row in data["rows"]]) == ("queue", ["run-1"])
    assert data["order"] == ["run-0", "run-1", "run-2"]
    assert data["rows"][0]["reason"].isprintable() and len(data["rows"][0]["reason"]) <= 400
    assert now(page)["queue"]["rows"][1] == data["rows"][0]
