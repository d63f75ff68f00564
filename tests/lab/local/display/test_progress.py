"""The display of a run fits its terminal for any number of devices and domains and for any names."""

import io
import json
import math
import re
import time

import pytest
from rich.console import Console

from protofleet.lab.local.display.progress import ProgressDisplay

DEVICES = [f"{'jetson-orin-nano-of-the-second-hall' if i % 7 == 3 else 'board'}-{i:03}" for i in range(100)]
TRANSFER = {
    "event": "transfer", "device": "board-077", "bytes": 400_000, "size": 1_000_000, "bytes_per_second": 31_250,
    "seconds_left": 19.2,
}  # fmt: skip


def measured(number, domains):
    return {
        "round": number, "seconds": 2.0, "accuracy": {"global": dict.fromkeys(domains, 0.5)},
        "payload": {"up": {"weights": 1000}, "down": {}}, "wire": {"up": {"weights": 1100}, "down": {}},
    }  # fmt: skip


def asked(number, devices):
    return {"event": "asked", "round": number, "phase": "train", "cohort": list(devices)}


def answered(device, up):
    return {"event": "answered", "device": device, "payload_up": up, "wire_up": up + 100}


def screen(columns, lines, events, earlier=()):
    """Return the lines of the display as a terminal of this size gets them."""
    written = io.StringIO()
    console = Console(file=written, width=columns, height=lines, force_terminal=True, color_system=None)
    progress = ProgressDisplay(40, console)
    progress.fold(earlier)
    for event in events:
        progress.handle_line(json.dumps(event))
    console.print(progress.render())
    return written.getvalue().splitlines()


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (80, 12), (40, 24), (20, 10), (200, 60)])
@pytest.mark.parametrize("devices", [3, 100])
@pytest.mark.parametrize("domains", [2, 30])
def test_no_line_of_the_display_is_wrapped_or_scrolls_out_of_the_terminal(columns, lines, devices, domains):
    names = [f"a-domain-whose-name-is-long-{i}" for i in range(domains)]
    events = [asked(2, DEVICES[:devices]), answered("board-000", 10**8), TRANSFER]
    found = screen(columns, lines, [*events, {"event": "round", **measured(1, names)}])
    assert len(found) < lines and max(map(len, found)) < columns, found
    assert "round 2 of 40"[: columns - 2] in found[0]


def test_devices_without_an_answer_are_shown_first_and_devices_without_a_line_are_counted():
    events = [asked(1, DEVICES), *(answered(name, 10) for name in DEVICES[:50]), TRANSFER]
    found = screen(80, 24, events)
    assert "50 of 100 have answered" in found[0]
    assert found[2].startswith(
        "· board-077  (400.0 kB of 1.0 MB are here"
    ) and "· jetson-orin-nano-of-the…" in "".join(found)
    shown = len(re.findall("[·✓] ", "\n".join(found)))
    assert f"... and {100 - shown} more" in found and "✓" in "\n".join(found) and shown > 50


def test_domains_without_a_line_are_counted_and_the_mean_of_all_is_shown():
    found = screen(
        80, 24, [asked(1, DEVICES), {"event": "round", **measured(1, [f"d{i:02}" for i in range(30)])}]
    )
    shown = [one for one in found if re.match(r"d\d\d ", one)]
    assert f"... and {30 - len(shown)} more; the mean of all is 50.0%" in found and len(shown) > 5


def test_the_display_continues_from_the_earlier_rounds_after_a_resume():
    found = screen(80, 24, [asked(3, "a"), answered("a", 500)], [measured(1, "m"), measured(2, "m")])
    assert found[0].strip() == "round 3 of 40, train: 1 of 1 have answered"
    assert "tensors up 2.5 kB, down 0 B; on the wire 2.8 kB" in found
    assert any("about 76 s left" in one for one in found)


def test_the_display_has_one_line_for_each_round_if_there_is_no_terminal():
    written = io.StringIO()
    progress = ProgressDisplay(2, Console(file=written, width=80))
    for name in DEVICES:
        progress.handle_line(json.dumps({"event": "joined", "device": name, "roster": 100}))
    for number in (1, 2):
        for event in (asked(number, DEVICES), *(answered(name, 10) for name in DEVICES)):
            progress.handle_line(json.dumps(event))
        progress.handle_line(json.dumps({"event": "round", **measured(number, "m")}))
    lines = written.getvalue().splitlines()
    assert lines[0] == "round 1 of 2, train: 100 devices asked, 100 present"
    assert [one.partition(" took")[0] for one in lines[1:]] == ["round 1 of 2, train", "round 2 of 2, train"]


def test_a_pause_is_shown_and_the_time_left_includes_later_pauses():
    written = io.StringIO()
    progress = ProgressDisplay(4, Console(file=written, width=100), pause_seconds=900.0)
    progress.handle_line(json.dumps(asked(1, "ab")))
    progress.handle_line(json.dumps({"event": "round", **measured(1, "ab")}))
    assert "about 2706 s left" in written.getvalue()
    progress.handle_line(json.dumps({"event": "held_back", "round": 2, "until": time.time() + 900.0}))
    assert re.search(r"round 2 of 4 begins at \d\d:\d\d or later\n", written.getvalue())
    progress.handle_line(json.dumps({"event": "held_back", "round": 2, "until": time.time() + 6.0}))
    assert written.getvalue().count("begins at") == 1, "a short pause gets no line"
    progress.handle_line(json.dumps(asked(2, "ab")))
    progress.handle_line(json.dumps({"event": "round", **measured(2, "ab")}))
    assert "round 2 of 4, train took 2.0 s" in written.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_a_wait_for_the_next_month_is_shown_after_the_round_without_a_time_left(terminal):
    written = io.StringIO()
    progress = ProgressDisplay(4, Console(file=written, width=100, force_terminal=terminal))
    progress.handle_line(json.dumps(asked(1, "ab")))
    wait = {
        "event": "budget_wait",
        "round": 2,
        "until": time.time() + 900.0,
        "reason": "round 2 waits until then",
    }
    progress.handle_line(json.dumps(wait))
    assert "waits" not in written.getvalue()
    progress.handle_line(json.dumps({"event": "round", **measured(1, "ab")}))
    assert written.getvalue().endswith("round 2 waits until then\n") and " left" not in written.getvalue()
    assert terminal or "round 1 of 4, train took 2.0 s" in written.getvalue()
    screen = Console(file=io.StringIO(), width=100)
    screen.print(progress.render())
    shown = screen.file.getvalue()
    assert "waiting for the next month, at " in shown and " left" not in shown and "answered" not in shown
    progress.handle_line(json.dumps({**wait, "until": 0.0, "reason": ""}))
    assert written.getvalue().count("waits until") == 1
    progress.handle_line(json.dumps(asked(2, "ab")))
    progress.handle_line(json.dumps({"event": "round", **measured(2, "ab")}))
    assert terminal or "about 4 s left" in written.getvalue()


def test_no_time_left_is_shown_if_rounds_begin_only_at_some_hours():
    written = io.StringIO()
    progress = ProgressDisplay(4, Console(file=written, width=100), pause_seconds=math.inf)
    progress.handle_line(json.dumps({"event": "round", **measured(1, "ab")}))
    assert "took 2.0 s" in written.getvalue() and "left" not in written.getvalue()


def test_the_mean_of_a_sampled_cohort_is_shown_with_its_number_of_devices():
    written = io.StringIO()
    progress = ProgressDisplay(4, Console(file=written, width=120))
    for asked_devices, words in ((2, "accuracy 50.0% (by 2 of 3 devices)"), (3, "accuracy 50.0%, tensors")):
        who = {"global": {"devices": asked_devices, "asked": asked_devices, "present": 3}}
        progress.handle_line(json.dumps({"event": "round", **measured(1, "ab"), "measured": who}))
        assert words in written.getvalue().splitlines()[-1]
