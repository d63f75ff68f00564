"""Texts of devices are only texts on the live page, and a browser follows real runs, drops, cuts and restarts.

The tests with Chromium read the page of a real coordinator behind a real Mosquitto.
"""

import contextlib
import json
import urllib.error
import urllib.request

import pytest

from protofleet.cli.main import main
from protofleet.cli.operate import ask
from protofleet.coordinator.page.live_page import NOT_HERE
from protofleet.coordinator.round.policy import Policy
from protofleet.federation.brokers.ports import free_port
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.command.errors import RunError
from tests.chaos.proxy import Proxy
from tests.hostile.device import Answer
from tests.hostile.federation import Federation
from tests.hostile.pages import CONTRAST, MARKUP, OPERABLE, SOON, now, page_of
from tests.support.browser import AXE, NEEDS_AXE, NEEDS_CHROMIUM, WIDTHS
from tests.support.certificates import Authority
from tests.support.chromium import Chromium

DOMAIN = "<img src=x onerror='document.title=\"run by a device\"'>"  # A domain has at most 64 characters.
TURNED = "left\u202eright\x1b[2J\nnew line"
WAITS = Policy(quorum=1, gather=2, patience_seconds=600)


def measuring(task):
    """Answer honestly, and report an accuracy of one half."""
    metrics = {"accuracy.test.global": 0.5, "samples.test": 10}
    return Answer(metrics=metrics) if task.phase == "evaluate" else Answer(task.body, metrics=metrics)


def row_of(port, device):
    return next((row for row in now(port)["runs"][0]["devices"] if row["name"] == device), {"state": ""})


def said_by_four(port):
    """Return the log lines about the bye of the fourth device, which returns at once."""
    return [row["text"] for row in now(port)["log"] if row["text"].startswith("four leaves: ")]


def lies(f, port):
    """Start devices that send markup and control characters in each of their texts."""
    f.raw("one", measuring, hello={"domain": DOMAIN})
    f.raw("two", measuring)
    f.wait_until(lambda: row_of(port, "one")["state"] in ("working", "answered"), "a round with both devices")
    f.raw("three", measuring, classes=4)
    f.wait_until(lambda: row_of(port, "three")["state"] == "refused", "the refusal of the third device")
    liar = f.raw("four", measuring)
    f.wait_until(lambda: row_of(port, "four")["state"] not in ("", NOT_HERE), "the fourth device")
    liar.say("bye", {"reason": f"{MARKUP} {TURNED}"})
    f.wait_until(lambda: said_by_four(port), "the bye of the fourth device")


def test_texts_of_devices_on_the_page_are_printable_data(tmp_path):
    port = free_port()
    with Federation(tmp_path, "one", "two", "three", "four", rounds=1000, policy=WAITS, page_port=port) as f:
        f.coordinator()
        lies(f, port)
        domain = row_of(port, "one")["domain"]
        assert domain == DOMAIN
        assert "4 classes" in row_of(port, "three")["reason"]
        (line,) = said_by_four(port)
        assert MARKUP in line and r"\u202e" in line and line.isprintable()
        assert MARKUP[:40] not in page_of(port, "/"), "the document has no text of a device"
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(
                urllib.request.Request(
                    f"http://127.0.0.1:{port}/now", headers={"Host": f"evil.example:{port}"}
                ),
                timeout=SOON,
            )


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_a_browser_shows_markup_of_devices_as_text_and_runs_no_script_of_it(tmp_path):
    port = free_port()
    with Federation(tmp_path, "one", "two", "three", "four", rounds=1000, policy=WAITS, page_port=port) as f:
        f.coordinator()
        lies(f, port)
        with Chromium(tmp_path) as browser:
            browser.open(f"http://127.0.0.1:{port}/")
            browser.wait_until("document.querySelectorAll('#accuracy-key li').length > 0")
            browser.wait_until(
                "[...document.querySelectorAll('#devices td')].some(td => td.textContent.includes('<img'))"
            )
            assert browser.value("document.images.length") == 0
            assert "run by a device" not in browser.value("document.title")
            assert browser.value("document.querySelectorAll('script').length") == 2
            shown = browser.value("document.querySelector('#devices').innerText")
            assert DOMAIN in shown and "refused" in shown
            shown = browser.value("document.querySelector('#log').innerText")
            assert f"four leaves: {MARKUP}" in shown and r"\u202e" in shown
            assert browser.errors == []


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_a_browser_follows_a_run_through_a_drop_a_cut_and_a_restart(tmp_path):
    port = free_port()
    policy = Policy(quorum=1, gather=2, patience_seconds=600, grace_seconds=1.0, pause_seconds=1.0)
    with contextlib.ExitStack() as ends:
        f = ends.enter_context(Federation(tmp_path, "one", "two", rounds=1000, policy=policy, page_port=port))
        # The browser connects to a line that can be cut, at the port of the page.
        line = ends.enter_context(contextlib.closing(Proxy("127.0.0.2", ("127.0.0.1", port), port)))
        page = ends.enter_context(Chromium(tmp_path, "--host-resolver-rules=MAP localhost 127.0.0.2"))
        coordinator = f.coordinator()
        f.wait_until(lambda: now(port)["runs"][0]["state"] == "waiting", "the coordinator")
        page.open(f"http://localhost:{port}/")
        page.wait_until(
            "document.querySelector('#words').textContent.startsWith('waiting for devices: 0 of 2')"
        )
        f.raw("one", measuring)
        two = f.raw("two", measuring)
        page.wait_until("document.querySelectorAll('#bytes-table tbody tr').length >= 2")
        page.wait_until("document.querySelector('#accuracy-table').textContent.includes('50.0 %')")
        assert page.value("document.querySelector('#log').textContent.includes('round 1 of 1000: ')")

        page.value("document.querySelector('details summary').focus()")
        two.die()
        page.wait_until("document.querySelector('tr[data-key=two]').textContent.includes('left')")
        page.wait_until("document.querySelector('tr[data-key=two]').textContent.includes('connection')")

        # A connection that is cut comes back with Last-Event-ID, and gets the missed events without a second /now.
        page.value("performance.clearResourceTimings()")
        line.reset()
        page.wait_until("document.querySelector('#link').className === 'lost'")
        missed = len(now(port)["runs"][0]["rounds"])
        f.wait_until(
            lambda: len(now(port)["runs"][0]["rounds"]) > missed, "a round while the page is cut off"
        )
        line.resume()
        page.wait_until("document.querySelector('#link').textContent === 'live'")
        page.wait_until(f"document.querySelectorAll('#bytes-table tbody tr').length > {missed}")
        read = page.value("performance.getEntriesByType('resource').map(one => one.name.split('/').pop())")
        assert "now" not in read

        # A later coordinator has other event numbers, so the page reads the whole state again.
        coordinator.kill()
        page.wait_until("document.querySelector('#link').className === 'lost'")
        f.coordinator()
        page.wait_until("document.querySelector('#link').textContent === 'live'")
        f.wait_until(
            lambda: len(now(port)["runs"][0]["rounds"]) > missed + 1, "a round of the later coordinator"
        )
        page.wait_until(f"document.querySelectorAll('#bytes-table tbody tr').length > {missed + 1}")
        assert page.value("document.activeElement.tagName") == "SUMMARY", (
            "rows are patched, so the focus has stayed"
        )
        assert [error for error in page.errors if "ERR_" not in error] == []


def post(port, path, said, **headers):
    """Send a request as the page's script does; return the status, the cookie and the body."""
    origin = f"http://127.0.0.1:{port}"
    given = {"Origin": origin, "Content-Type": "application/json", **headers}
    request = urllib.request.Request(f"{origin}{path}", json.dumps(said).encode(), given)
    try:
        with urllib.request.urlopen(request, timeout=SOON) as told:
            return told.status, (told.headers["Set-Cookie"] or "").partition(";")[0], json.load(told)
    except urllib.error.HTTPError as error:
        return error.code, "", error.read().decode()


def test_a_code_logs_in_once_and_a_command_with_the_same_id_has_one_effect(tmp_path, capsys):
    port = free_port()
    with Federation(tmp_path, "one", page_port=port) as f:
        f.coordinator()
        f.wait_until(lambda: page_answers(f), "the coordinator")
        capsys.readouterr()
        assert main(["page", str(f.run)]) == 0
        address, _, code = capsys.readouterr().out.strip().partition("#c=")
        assert address == f"http://127.0.0.1:{port}/"
        _, cookie, login = post(port, "/login", {"code": code})
        assert post(port, "/login", {"code": code})[0] == 403
        mine = {"Cookie": cookie, "X-Protofleet": login["key"]}
        once = {"id": "5" * 32, "verb": "pause", "reason": "lunch"}
        first, again = (post(port, "/command", once, **mine) for _ in range(2))
        other = post(port, "/command", {**once, "id": "6" * 32}, **mine)
        assert (
            first == again and first[2]["words"] == "the run pauses" and "paused already" in other[2]["words"]
        )
        commands = ask(f.run, {"verb": "show", "reason": ""})["commands"]
        assert [(one["operator"], one["verb"]) for one in commands] == [(login["operator"], "pause")] * 2
        assert post(port, "/command", {**once, "id": "short"}, **mine)[2]["verdict"] == "refused"
        other = {**once, "verb": "stop", "run": "red", "id": "8" * 32}
        assert (
            post(port, "/command", other, **mine)[2]["words"]
            == f"this coordinator conducts only {f.run.name}"
        )
        assert (
            post(port, "/command", {**once, "verb": "page", "id": "7" * 32}, **mine)[2]["verdict"]
            == "refused"
        )


def page_answers(f):
    with contextlib.suppress(RunError, SettingsError):
        return ask(f.run, {"verb": "page", "reason": ""})["verdict"] == "done"
    return False


def logged_in(f, browser):
    """Open the address that `protofleet page` prints, and wait for the buttons."""
    browser.open(ask(f.run, {"verb": "page", "reason": ""})["url"])
    browser.wait_until("!document.querySelector('#operate').hidden")


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_a_logged_in_browser_pauses_resumes_and_stops_a_run_by_keyboard(tmp_path):
    port, policy = free_port(), Policy(quorum=1, gather=1, patience_seconds=600, pause_seconds=0.5)
    with (
        Federation(tmp_path, "one", rounds=1000, policy=policy, page_port=port) as f,
        Chromium(tmp_path) as page,
    ):
        coordinator = f.coordinator()
        f.raw("one", measuring)
        f.wait_until(lambda: now(port)["runs"][0]["rounds"], "a round")
        page.open(f"http://127.0.0.1:{port}/")
        page.wait_until("document.querySelector('#hint').textContent.includes('protofleet page RUN')")
        assert page.value("document.querySelector('#operate').hidden")
        logged_in(f, page)
        assert page.value("location.hash") == "", "the address has no code any more"
        assert page.value("document.cookie") == "", "no script can read the cookie"
        hold, result = (
            "document.querySelector('#hold').textContent",
            "document.querySelector('#result').textContent",
        )

        page.value(
            "document.querySelector('#reason').value = 'lunch <b>'; document.querySelector('#hold').focus()"
        )
        page.press("Enter", 13)
        page.wait_until(f"{result}.includes('the run pauses')")
        page.wait_until("document.querySelector('#words').textContent.endsWith(': lunch <b>')")
        page.wait_until("document.querySelector('#state').textContent === 'paused'")
        assert page.value(hold) == "Resume" and page.value("document.activeElement.id") == "hold"
        rounds = len(f.rounds())
        page.press("Enter", 13)
        page.wait_until(f"{result}.includes('the run goes on')")
        f.wait_until(lambda: len(f.rounds()) > rounds, "a round after the pause")

        page.value("document.querySelector('#stop').focus()")
        page.press("Enter", 13)
        page.wait_until("document.querySelector('#confirm').open")
        assert page.value("document.activeElement.id") == "keep", "Enter alone does not stop the run"
        assert page.value("document.querySelector('#really').textContent") == f"Stop {f.run.name}"
        page.press("Escape", 27)
        page.wait_until("!document.querySelector('#confirm').open && document.activeElement.id === 'stop'")
        page.press("Enter", 13)
        page.wait_until("document.querySelector('#confirm').open")
        page.press("Tab", 9)
        page.press("Enter", 13)
        page.wait_until("document.querySelector('#state').textContent === 'ended'")
        assert page.value("document.querySelector('#operate').hidden && document.activeElement.id === 'top'")
        assert f.wait_for_end(coordinator) == 0
        found = [error for error in page.errors if "ERR_" not in error]
        assert found == []


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_off_the_loopback_a_browser_shows_no_data_of_the_run_before_its_login(tmp_path):
    port, pair = free_port(), Authority(tmp_path / "ca").issue("page", "127.0.0.1")
    files = {"page_host": "0.0.0.0", "page_cert": pair.cert, "page_key": pair.key}
    with (
        Federation(tmp_path, "one", page_port=port, **files) as f,
        Chromium(tmp_path, "--ignore-certificate-errors") as page,
    ):
        f.coordinator()
        f.wait_until(lambda: page_answers(f), "the coordinator")
        page.open(f"https://127.0.0.1:{port}/")
        page.wait_until("document.querySelector('#link').textContent.startsWith('This page needs a login')")
        assert page.value("document.querySelector('#name').textContent") == "protofleet"
        logged_in(f, page)
        page.wait_until("document.querySelector('#link').textContent === 'live'")
        page.wait_until("document.querySelector('#words').textContent.startsWith('waiting for devices')")


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_each_control_has_a_name_for_screen_readers_and_each_text_has_contrast(tmp_path):
    port, policy = free_port(), Policy(quorum=1, gather=1, patience_seconds=600, pause_seconds=0.5)
    with (
        Federation(tmp_path, "one", rounds=1000, policy=policy, page_port=port) as f,
        Chromium(tmp_path) as page,
    ):
        f.coordinator()
        f.raw("one", measuring)
        f.wait_until(lambda: now(port)["runs"][0]["rounds"], "a round")
        logged_in(f, page)
        page.value("document.querySelectorAll('details').forEach(one => one.open = true)")
        for shown in ("page", "confirmation"):
            if shown == "confirmation":
                page.value("document.querySelector('#stop').click()")
            found = page.accessible()
            assert [node for node in found if node["role"] in OPERABLE and not node["name"].strip()] == []
            roles = [node["role"] for node in found]
            if shown == "page":
                assert roles.count("banner") == roles.count("main") == 1
                levels = [node["level"] for node in found if node["role"] == "heading"]
                assert levels == [1, *[2] * (len(levels) - 1)]
            else:
                assert {node["name"] for node in found if node["role"] == "button"} == {
                    "Cancel",
                    f"Stop {f.run.name}",
                }
                assert any(
                    node["role"] == "dialog" and node["name"] == f"Stop {f.run.name}?" for node in found
                )
            for dark in (False, True):
                page.look_like(WIDTHS[0], dark)
                contrast, words = page.value(CONTRAST)
                assert contrast >= 4.5, (shown, dark, words)


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_the_page_fits_a_phone_and_a_desktop_in_light_and_in_dark_mode(tmp_path):
    port = free_port()
    with Federation(tmp_path, "one", "two", "three", "four", rounds=1000, policy=WAITS, page_port=port) as f:
        f.coordinator()
        lies(f, port)
        with Chromium(tmp_path) as browser:
            browser.open(f"http://127.0.0.1:{port}/")
            browser.wait_until("document.querySelectorAll('#bytes-table tbody tr').length > 1")
            browser.value("document.querySelectorAll('details').forEach(one => one.open = true)")
            for width in WIDTHS:
                papers = set()
                for dark in (False, True):
                    browser.look_like(width, dark)
                    browser.wait_until(f"innerWidth === {width}")
                    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
                    papers.add(browser.value("getComputedStyle(document.body).backgroundColor"))
                shown = "[...document.querySelectorAll('section:not([hidden])')]"
                columns = f"new Set({shown}.map(one => one.offsetLeft)).size"
                assert browser.value(columns) == (1 if width == 400 else 2)
                assert len(papers) == 2
            assert browser.value("[...document.querySelectorAll('.scroll')].every(one => one.tabIndex === 0)")


@pytest.mark.slow
@NEEDS_CHROMIUM
@NEEDS_AXE
def test_axe_finds_no_violation_on_the_page(tmp_path):
    port = free_port()
    with Federation(tmp_path, "one", "two", "three", "four", rounds=1000, policy=WAITS, page_port=port) as f:
        f.coordinator()
        lies(f, port)
        with Chromium(tmp_path) as browser:
            browser.open(f"http://127.0.0.1:{port}/")
            browser.wait_until("document.querySelectorAll('#bytes-table tbody tr').length > 1")
            browser.value("document.querySelectorAll('details').forEach(one => one.open = true)")
            browser.value(f"{AXE.read_text()}; 1")
            for width in WIDTHS:
                for dark in (False, True):
                    browser.look_like(width, dark)
                    found = browser.value("axe.run().then(found => found.violations.map(one => one.id))")
                    assert found == [], (width, dark)
