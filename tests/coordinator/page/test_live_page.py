"""The page of a run shows the journal, in rows with which a browser can replace earlier rows."""

import json
import logging
import math

import pytest

from protofleet.coordinator.observe.line_handler import LineHandler
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.record import RoundRecord
from protofleet.coordinator.page.live_page import HEARD_SECONDS, NOT_HERE, LivePage
from protofleet.coordinator.page.page_state import (
    LONGEST_NAME,
    LONGEST_WORDS,
    MOST_DEVICES,
    MOST_DOMAINS,
    MOST_LINES,
    MOST_ROUNDS,
    device_row,
    round_row,
    short,
)
from protofleet.coordinator.page.process_page import ProcessPage
from protofleet.coordinator.round.events import Paused
from protofleet.protocol.settings.budget import BudgetSettings
from protofleet.runtime.logs import lines_of_run
from tests.support.small_federation import simulation


@pytest.fixture
def world(tmp_path):
    """Return a simulated federation whose journal updates a page, and the page."""
    made = simulation(tmp_path / "world", "fedavg")
    page = LivePage(made.service.run.view, ProcessPage(), clock=lambda: made.service.context.wall())
    keep_journal(made.service.run, [page])
    return made, page


def now(page):
    return json.loads(json.dumps(page.process.ring.state[1].table(), allow_nan=False))


def told(page, since):
    """Return the kinds and the data of the events after this number."""
    found = [event.encoded.decode().split("\n") for event in page.process.ring.since(since)]
    return [
        (kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for _, kind, data, *_ in found
    ]


def states(page):
    return {row["name"]: row["state"] for row in now(page)["runs"][0]["devices"]}


def test_before_the_first_device_the_page_shows_that_the_run_waits_for_devices(world):
    _, page = world
    (run,) = now(page)["runs"]
    assert run["state"] == "waiting" and run["words"].startswith("waiting for devices: 0 of ")
    assert states(page) == dict.fromkeys(["device-0", "device-1", "device-2"], NOT_HERE)
    assert run["rounds"] == [] and run["planned"] == 3


def test_the_page_shows_a_run_as_waiting_then_running_then_ended(world):
    made, page = world
    seen, before = [], page.process.ring.newest
    made.run()
    for kind, data in told(page, before):
        if kind == "run" and (not seen or seen[-1] != data["state"]):
            seen.append(data["state"])
    assert seen[0] in ("waiting", "running") and seen[-2:] == ["running", "ended"]
    page.end()
    (run,) = now(page)["runs"]
    assert run["words"] == "all 3 rounds are done" and run["closed"]
    assert [row["round"] for row in run["rounds"]] == [1, 2, 3, 4]
    assert [row["kind"] for row in run["rounds"]] == ["training"] * 3 + ["evaluation"]
    assert states(page) == dict.fromkeys(["device-0", "device-1", "device-2"], "finished")
    assert run["rounds"][-1]["accuracy"].keys() == {"domain-0", "domain-1", "domain-2"}
    assert run["rounds"][0]["up"]["weights"] > 0 and run["rounds"][1]["down"]["weights"] > 0


def test_a_pause_by_an_operator_is_shown_until_the_run_continues(world):
    made, page = world
    run = made.service.run
    made.run(until=lambda: len(run.machine.answered) == 2)
    run.happen(Paused("paused by local:ann"))
    assert now(page)["runs"][0]["state"] == "pausing"
    made.run(until=lambda: run.view.is_gathering)
    (shown,) = now(page)["runs"]
    assert (shown["state"], shown["words"]) == ("paused", "paused by local:ann")
    run.happen(Paused(""))
    made.run()
    assert now(page)["runs"][0]["state"] == "ended"


def test_during_a_phase_the_page_counts_the_answers(world):
    made, page = world
    made.run(until=lambda: len(made.service.run.machine.answered) == 2)
    (run,) = now(page)["runs"]
    assert (run["state"], run["phase"], run["answered"], run["asked"], run["present"]) == (
        "running",
        "train",
        2,
        3,
        3,
    )
    assert sorted(states(page).values()) == ["answered", "answered", "working"]
    assert {row["domain"] for row in now(page)["runs"][0]["devices"]} == {"domain-0", "domain-1", "domain-2"}


def test_events_after_a_snapshot_lead_to_the_later_snapshot(world):
    """A page that applies each event to the snapshot that it has read must show what /now would show."""
    made, page = world
    made.run(until=lambda: made.service.run.machine.round == 2)
    shown, number = now(page), page.process.ring.newest
    made.run()
    devices = {row["name"]: row for row in shown["runs"][0]["devices"]}
    run, rounds = shown["runs"][0], {row["round"]: row for row in shown["runs"][0]["rounds"]}
    for kind, data in told(page, number):
        match kind:
            case "run":
                run = data
            case "round":
                rounds[data["round"]] = {key: data[key] for key in data if key != "run"}
            case "device":
                for row in data["rows"]:
                    devices[row["name"]] = {**devices.get(row["name"], {}), **row}
    later = now(page)
    assert {**run, "rounds": [*rounds.values()], "devices": [*devices.values()]} == later["runs"][0]


def test_a_device_that_leaves_is_shown_with_its_reason(world):
    made, page = world
    made.run(until=lambda: made.service.run.machine.round == 2)
    page.entry("left", {"device": "device-1", "roster": 2, "unsteady": 0, "reason": "connection lost"})
    row = next(row for row in now(page)["runs"][0]["devices"] if row["name"] == "device-1")
    assert (row["state"], row["reason"]) == ("left", "connection lost")
    assert now(page)["runs"][0]["present"] == 2


@pytest.mark.parametrize(
    ("what", "more", "state"),
    [
        ("dropped", {"verdict": "late", "reason": "after the deadline"}, "answer late"),
        ("aside", {"reason": "far too large"}, "answer put aside"),
        ("went_back", {"reason": "it made the round fail"}, "answer put aside"),
        ("transfer", {"bytes": 5_000, "size": 20_000}, "sending"),
        ("returned", {}, "answered"),
    ],
)
def test_the_row_of_a_device_shows_the_state_of_its_update(world, what, more, state):
    _, page = world
    page.entry(what, {"device": "device-1", "round": 1, "phase": "train", **more})
    row = next(row for row in now(page)["runs"][0]["devices"] if row["name"] == "device-1")
    words = "5.0 kB of 20.0 kB are here" if what == "transfer" else more.get("reason", "")
    assert (row["state"], row["reason"]) == (state, words)


def test_a_refused_device_is_shown_with_its_reason_and_the_same_reason_is_no_new_event(world):
    _, page = world
    page.refused("device-2", "it has 4 classes, but the run has 3")
    number = page.process.ring.newest
    page.refused("device-2", "it has 4 classes, but the run has 3")
    assert page.process.ring.newest == number and states(page)["device-2"] == "refused"
    page.refused("device-2", "another reason")
    assert page.process.ring.newest == number + 1


def test_the_run_names_the_devices_that_cannot_take_part_until_they_can(world):
    made, page = world
    misfits = made.service.run.participants.misfits
    assert now(page)["runs"][0]["misfits"] == ""
    misfits.note("device-2", 1, "it has 4 classes\x1b[2J")
    page.refused("device-2", "it has 4 classes\x1b[2J")
    words = now(page)["runs"][0]["misfits"]
    assert words.startswith("device-2 cannot take part: it has 4 classes") and words.isprintable()
    misfits.fits("device-2")
    page.entry("joined", {"device": "device-2", "roster": 1})
    assert now(page)["runs"][0]["misfits"] == ""


@pytest.mark.parametrize(("early", "words"), [("diverged", "the run cannot continue: loss is inf")])
def test_a_run_that_diverged_is_shown_as_ended_with_its_reason(world, early, words):
    _, page = world
    page.entry(early, {"round": 1, "reason": "loss is inf"})
    (run,) = now(page)["runs"]
    assert (run["state"], run["words"]) == ("ended", words)


def test_times_of_messages_are_sent_together_and_only_to_a_page_that_is_open(tmp_path):
    made, clock = simulation(tmp_path / "world", "fedavg"), [1000.0]
    page = LivePage(made.service.run.view, ProcessPage(), clock=lambda: clock[0])
    number = page.process.ring.newest
    for i in range(100):
        clock[0] = 1000.0 + i * HEARD_SECONDS / 100
        page.heard_from(f"device-{i % 2}")
    page.heard_from("a-stranger")
    assert page.process.ring.newest == number
    clock[0] = 1000.0 + HEARD_SECONDS
    page.heard_from("device-2")
    assert page.process.ring.newest == number, "no page is open"
    assert [row["heard"] for row in now(page)["runs"][0]["devices"]] == pytest.approx(
        [1004.9, 1004.95, 1005.0]
    )
    page.process.ring.call_when_added(lambda: None)
    clock[0] += HEARD_SECONDS
    page.heard_from("device-1")
    assert told(page, number) == [
        ("device", {"run": made.service.run.name, "rows": [{"name": "device-1", "heard": 1010.0}]})
    ]


def test_the_row_of_a_device_has_the_figures_of_its_last_round_and_its_bytes_of_the_budget(tmp_path):
    budget = BudgetSettings(bytes_per_device=1_000_000_000)
    made = simulation(tmp_path / "runs" / "run", "fedavg", budget=budget)
    budget_of = made.service.run.budget.of_device
    page = LivePage(made.service.run.view, ProcessPage(), budget_of=budget_of)
    keep_journal(made.service.run, [page])
    made.run(until=lambda: made.service.run.machine.round == 2)
    number, spent = page.process.ring.newest, made.service.run.budget.spent
    energy = {"device-1": {"train": 2.0, "send": 0.5}}
    page.round_ended(RoundRecord(9, 0, "training", energy=energy, temperature={"device-1": 61.54}))
    page.round_ended(RoundRecord(10, 0, "training"))
    page.refused("device-1", "another reason")
    rows = {row["name"]: row for row in now(page)["runs"][0]["devices"]}
    assert {name: row["data"] for name, row in rows.items()} == {
        name: {"run": [spent.total(name), 1_000_000_000]} for name in rows
    }
    assert (rows["device-1"]["joules"], rows["device-1"]["celsius"]) == (2.5, 61.5)
    assert not {"joules", "celsius"} & set(rows["device-2"])
    told_of = [row for kind, data in told(page, number) if kind == "device" for row in data["rows"]]
    assert {"name": "device-1", "joules": 2.5, "celsius": 61.5, "data": rows["device-1"]["data"]} in told_of


def test_log_lines_are_on_the_page_with_the_text_of_the_log(world):
    _, page = world
    log, handler = logging.getLogger("protofleet.test-of-the-page"), LineHandler(page.process.logged)
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        log.info("%d of %d devices", 2, 3)
        with lines_of_run("red"):
            log.warning("a line\nwith \x1b[2J and \u202e")
        log.debug("not this one")
    finally:
        log.removeHandler(handler)
    found = now(page)["log"]
    assert [(row["level"], row["text"], row["run"]) for row in found] == [
        ("info", "2 of 3 devices", ""), ("warning", r"a line\nwith \x1b[2J and \u202e", "red"),
    ]  # fmt: skip


def test_each_list_and_each_text_on_the_page_has_a_limit(world):
    _, page = world
    for i in range(MOST_LINES + 7):
        page.process.logged(0.0, "info", "x" * 2 * LONGEST_WORDS)
    names = [f"board-{i}" for i in range(MOST_DEVICES + 7)]
    page.entry(
        "asked", {"round": 1, "phase": "train", "cohort": names, "domains": dict.fromkeys(names, "d" * 999)}
    )
    for i in range(MOST_ROUNDS + 7):
        page.round_ended(RoundRecord(i + 1, 0, "training"))
    found = now(page)
    assert len(found["log"]) == MOST_LINES and len(found["runs"][0]["devices"]) == MOST_DEVICES
    assert (
        len(found["runs"][0]["rounds"]) == MOST_ROUNDS
        and found["runs"][0]["rounds"][-1]["round"] == MOST_ROUNDS + 7
    )
    assert max(len(row["text"]) for row in found["log"]) <= LONGEST_WORDS
    assert max(len(row["domain"]) for row in found["runs"][0]["devices"]) <= LONGEST_NAME


def test_a_round_row_has_only_finite_numbers_and_a_limited_number_of_domains():
    accuracy = {f"domain-{i:03}": 0.5 for i in range(2 * MOST_DOMAINS)} | {"a": math.nan, "b": math.inf}
    found = round_row(RoundRecord(1, 0, "training", accuracy={"global": accuracy}), "global")
    assert 0 < len(found["accuracy"]) <= MOST_DOMAINS and set(found["accuracy"].values()) == {0.5}


@pytest.mark.parametrize("length", [0, 1, LONGEST_WORDS, LONGEST_WORDS + 1])
@pytest.mark.parametrize("letter", ["x", "\n", "\u202e", "ü"])
def test_a_text_of_a_device_is_cut_and_printable(length, letter):
    found = short(letter * length)
    assert len(found) <= LONGEST_WORDS and found.isprintable()
    assert device_row("a", letter * length, "left", letter * length)["reason"] == found


def test_a_restarted_coordinator_shows_the_earlier_rounds(world):
    made, page = world
    made.run()
    rounds = [RoundRecord(row["round"], 0, row["kind"]) for row in now(page)["runs"][0]["rounds"]]
    again = LivePage(made.service.run.view, ProcessPage(), rounds)
    assert [row["round"] for row in now(again)["runs"][0]["rounds"]] == [1, 2, 3, 4]
