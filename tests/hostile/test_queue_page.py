"""A browser follows the runs of a queue through drops and cuts, and its buttons act on the run that it shows.

The tests with Chromium read the page of a real coordinator behind a real Mosquitto.
"""

import contextlib
import json

import pytest

from protofleet.cli.main import main
from protofleet.cli.queue_socket import ask_queue
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.command.errors import RunError
from tests.chaos.proxy import Proxy
from tests.hostile.federation import SIZE, Federation
from tests.hostile.pages import CONTRAST, MARKUP, OPERABLE, port_of
from tests.hostile.test_run_queue import EXPERIMENT
from tests.support.browser import AXE, NEEDS_AXE, NEEDS_CHROMIUM, WIDTHS
from tests.support.chromium import Chromium

LONG = EXPERIMENT.replace("rounds = 2", "rounds = 1000").replace("[policy]", "[policy]\npause_seconds = 0.5")
STATE, RESULT = (
    "document.querySelector('#state').textContent",
    "document.querySelector('#result').textContent",
)


def row(name):
    return f"(document.querySelector('#runs tr[data-key={name}]')?.innerText ?? '')"


def cell(name, column):
    return f"document.querySelector('#runs tr[data-key={name}]').cells[{column}].textContent"


# Keeps the body of each command that the page sends.
RECORDED = """
window.recorded = [];
window.unrecorded = window.fetch;
window.fetch = (path, more) => {
  if (path === "command") window.recorded.push(JSON.parse(more.body));
  return window.unrecorded(path, more);
};
1"""


class Queue:
    """A coordinator with a queue, and an operator at a shell of its machine."""

    def __init__(self, f):
        self.f, self.runs = f, f.folder / "runs"
        f.service()
        f.wait_until(self.answers, "the service")

    def answers(self):
        with contextlib.suppress(RunError, SettingsError):
            return self.ask("runs")

    def ask(self, verb, run="", **more):
        return ask_queue(self.runs, {"verb": verb, "run": run, **more})

    def submit(self, name, *options, text=LONG):
        file = self.f.folder / f"{name}.toml"
        file.write_text(text)
        assert main(["submit", str(file), "--name", name, "--service", str(self.runs), *options]) == 0

    def state(self, name):
        return self.ask("show", name)["state"]


@pytest.fixture
def queue(tmp_path):
    with Federation(tmp_path, "one", "two") as f:
        yield Queue(f)


def test_the_page_address_names_the_run_and_the_folder_of_the_queue_has_a_page_too(queue, capsys):
    queue.submit("red")
    capsys.readouterr()
    for words, run in (
        ([str(queue.runs / "red")], "&run=red"), ([str(queue.runs)], ""), (["--service", str(queue.runs)], ""),
    ):  # fmt: skip
        assert main(["page", *words]) == 0
        address, _, code = capsys.readouterr().out.strip().partition("/#c=")
        assert address.startswith("http://127.0.0.1:") and code[32:] == run
    assert main(["page", str(queue.runs / "none")]) == 1
    assert "the queue has no run none; `protofleet runs` lists the runs" in capsys.readouterr().out
    assert main(["page", "--service", str(queue.runs / "none")]) == 2
    assert "no coordinator has a queue of runs" in capsys.readouterr().err


@pytest.mark.slow  # Two real devices train two runs, and a browser follows both.
@NEEDS_CHROMIUM
def test_a_browser_follows_two_active_runs_and_its_buttons_act_on_the_run_that_it_shows(queue, tmp_path):
    f, url = queue.f, queue.ask("page")["url"]
    port = port_of(url)
    with (
        contextlib.closing(Proxy("127.0.0.2", ("127.0.0.1", port), port)) as line,
        Chromium(tmp_path, "--host-resolver-rules=MAP localhost 127.0.0.2") as page,
    ):
        page.open(url.replace("127.0.0.1", "localhost"))
        page.wait_until("document.querySelector('#words').textContent.startsWith('The queue is empty')")
        for i, name in enumerate(("red", "blue")):
            queue.submit(name, text=LONG.replace("seed = 1", f"seed = {i}"))
        queue.submit("green", "--after", "red")
        page.wait_until(
            f"{row('red')}.includes('waiting for devices') && {row('blue')}.includes('waiting for')"
        )
        page.wait_until(f"{row('green')}.includes('waits for the end of red')")
        assert page.value("document.querySelector('#name').textContent") == "red"

        one = f.device("one", stays=True)
        f.device("two", stays=True)
        for name in ("red", "blue"):  # Both rows are updated, although the page shows the details of one run.
            page.wait_until(f"parseInt({cell(name, 2)}) >= 3")
        page.value("document.querySelector('#runs tr[data-key=blue] a').click()")
        page.wait_until("document.querySelector('#name').textContent + location.hash === 'blue#run=blue'")
        page.wait_until("document.querySelectorAll('#bytes-table tbody tr').length >= 2")

        # After a cut, the page gets each missed event of both runs, without a second /now.
        page.value("performance.clearResourceTimings()")
        line.reset()
        page.wait_until("document.querySelector('#link').className === 'lost'")
        before = {name: queue.ask("show", name)["round"] for name in ("red", "blue")}
        f.wait_until(
            lambda: all(queue.ask("show", name)["round"] > at for name, at in before.items()), "two rounds"
        )
        line.resume()
        for name, at in before.items():
            page.wait_until(f"parseInt({cell(name, 2)}) > {at}")
        read = page.value("performance.getEntriesByType('resource').map(one => one.name.split('/').pop())")
        assert "now" not in read

        revision = queue.ask("show", "blue")["revision"]
        page.value(RECORDED)
        page.value(
            f"document.querySelector('#reason').value = {json.dumps(MARKUP)}; document.querySelector('#hold').click()"
        )
        page.wait_until(f"{STATE} === 'paused' && {RESULT}.startsWith('pause blue: ')")
        assert queue.state("blue") == "paused" and queue.state("red") == "running"
        assert page.value("window.recorded.map(body => body.rev)") == [revision]
        assert "<img src=x" in page.value(row("blue")) and page.value("document.images.length") == 0
        one.kill()
        page.wait_until("document.querySelector('#devices tr[data-key=one]').textContent.includes('left')")

        # A run that waits has buttons, too.
        page.value(
            "document.querySelector('#rounds').value = '1234'; document.querySelector('#extend').click()"
        )
        page.wait_until(f"{cell('blue', 2)}.endsWith(' of 1234') && {RESULT}.includes('1234 rounds now')")

        # A run that waits has buttons, too.
        page.value("document.querySelector('#runs tr[data-key=green] a').click()")
        page.wait_until("document.querySelector('#name').textContent === 'green'")
        page.value("document.querySelector('#stop').click()")
        page.value("document.querySelector('#really').click()")
        page.wait_until(f"{STATE} === 'stopped'")
        assert queue.state("green") == "stopped" and queue.state("blue") == "paused"
        for name in ("red", "blue"):
            queue.ask("stop", name)
        page.wait_until(f"[{cell('red', 1)}, {cell('blue', 1)}].every(state => state === 'stopped')")
        assert page.value("document.querySelector('#name').textContent") == "green", (
            "the user has selected this run"
        )
        assert [error for error in page.errors if "ERR_" not in error] == []


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_the_table_names_the_devices_that_cannot_take_part_in_a_run_and_the_reason(queue, tmp_path):
    queue.submit("wide", text=LONG.replace(f"size = {SIZE}", f"size = {SIZE + 8}"))
    queue.submit("red")
    with Chromium(tmp_path) as page:
        page.open(queue.ask("page", "red")["url"])
        page.wait_until(f"{row('wide')}.includes('waiting for devices')")
        for name in ("one", "two"):
            queue.f.device(name, stays=True)
        page.wait_until(f"parseInt({cell('red', 2)}) >= 2")
        page.wait_until(f"{cell('wide', 3)}.includes('one, two cannot take part: cannot_follow')")
        assert "cannot take part" not in page.value(cell("red", 3))
        queue.ask("stop", "wide")
        page.wait_until(f"{cell('wide', 1)} === 'stopped'")
        assert "cannot take part" not in page.value(cell("wide", 3))
    over = 'protofleet_run_over{{how="{}",run="wide"}}'
    queue.f.wait_until(lambda: queue.f.metrics().get(over.format("stopped")) == 1, "the metric of its end")
    assert queue.f.metrics()[over.format("finished")] == 0


@pytest.mark.slow  # A browser draws each page four times.
@NEEDS_CHROMIUM
@NEEDS_AXE
def test_axe_finds_no_violation_on_the_page_of_a_queue_and_it_fits_a_phone_and_a_desktop(queue, tmp_path):
    for name in ("red", "blue", "green"):
        queue.submit(name)
    queue.ask("pause", "green", reason=MARKUP)
    with Chromium(tmp_path) as page:
        page.open(queue.ask("page", "green")["url"])
        page.wait_until(f"{STATE} === 'paused'")
        page.value(f"{AXE.read_text()}; 1")
        for name in ("green", "red"):
            page.value(f"location.hash = '#run={name}'")
            page.wait_until(f"document.querySelector('#name').textContent === '{name}'")
            nodes = page.accessible()
            assert [node for node in nodes if node["role"] in OPERABLE and not node["name"].strip()] == []
            for width in WIDTHS:
                for dark in (False, True):
                    page.look_like(width, dark)
                    page.wait_until(f"innerWidth === {width}")
                    assert page.value("document.documentElement.scrollWidth <= innerWidth"), (name, width)
                    contrast, words = page.value(CONTRAST)
                    assert contrast >= 4.5, (name, dark, words)
                    found = page.value("axe.run().then(found => found.violations.map(one => one.id))")
                    assert found == [], (name, width, dark)
        assert page.value("document.images.length") == 0 and "run by a device" not in page.value(
            "document.title"
        )
