"""Tests that a page accepts commands only from a browser that has logged in with a code of this machine."""

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from protofleet.runtime.live import event_server
from protofleet.runtime.live.access import PageAccess
from protofleet.runtime.live.document import Document
from protofleet.runtime.live.event_ring import EventRing
from protofleet.runtime.live.event_server import COMMANDS, serving_page
from protofleet.runtime.live.json_body import MOST_BODY
from protofleet.runtime.live.logins import (
    CODE_SECONDS,
    MOST_CODES,
    MOST_SESSIONS,
    SESSION_SECONDS,
    Logins,
)
from protofleet.runtime.metrics_server import CONNECTIONS, bound
from tests.support.certificates import Authority

PATIENCE = 20.0
COMMAND = {"id": "0" * 32, "verb": "pause", "reason": "lunch"}


class State:
    def table(self):
        return {"words": ""}


class Site:
    """A served page; it notes the commands, and its clock is set by the test."""

    def __init__(self, port, logins, clock, context=None):
        self.port, self.logins, self.clock, self.context = port, logins, clock, context
        self.commands = []
        self.host = f"127.0.0.1:{port}"
        self.origin = f"{'https' if context else 'http'}://{self.host}"

    def operate(self, operator, command):
        self.commands.append((operator, command))
        return {"verdict": "done", "words": "the run pauses"}

    def ask(self, method, path, said=None, **headers):
        """Return the status, the headers and the body of a response; a header of None is left out."""
        made = (
            http.client.HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE, context=self.context)
            if self.context
            else http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        )
        given = {"Host": self.host}
        if method == "POST":
            given |= {"Origin": self.origin, "Content-Type": "application/json"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        body = said if said is None or isinstance(said, bytes) else json.dumps(said).encode()
        with contextlib.closing(made):
            made.request(
                method, path, body, {name: value for name, value in given.items() if value is not None}
            )
            got = made.getresponse()
            return got.status, got.headers, got.read().decode()

    def log_in(self, operator="local:ann"):
        """Log in as a browser does, and return the headers of its later requests."""
        status, headers, body = self.ask("POST", "/login", {"code": self.logins.new_code(operator)})
        assert status == 200, body
        return {"Cookie": headers["Set-Cookie"].partition(";")[0], "X_Protofleet": json.loads(body)["key"]}


@contextlib.contextmanager
def site(tmp_path, context=None, **rules):
    (tmp_path / "page.html").write_text("<!doctype html><p>hi</p>")
    listening, clock = bound("127.0.0.1", 0), [1000.0]
    port, logins = listening.getsockname()[1], Logins(lambda: clock[0])
    made, ring = Site(port, logins, clock, context), EventRing(State())
    access = PageAccess(port, logins=logins, **rules)
    document = Document.read(tmp_path / "page.html")
    with serving_page(listening, document, ring, access, lambda *given: made.operate(*given)):
        yield made


def test_a_logged_in_browser_sends_commands_as_the_user_that_got_the_code(tmp_path):
    with site(tmp_path) as page:
        status, headers, body = page.ask("POST", "/login", {"code": page.logins.new_code("local:ann")})
        assert status == 200 and json.loads(body)["operator"] == "local:ann"
        cookie, *flags = headers["Set-Cookie"].split("; ")
        assert {"HttpOnly", "SameSite=Strict", f"Max-Age={SESSION_SECONDS}"} <= {
            *flags
        } and "Secure" not in flags
        mine = {"Cookie": f"other=1; {cookie}", "X_Protofleet": json.loads(body)["key"]}
        assert json.loads(page.ask("GET", "/now", **mine)[2])["operator"] == "local:ann"
        status, _, body = page.ask("POST", "/command", COMMAND, **mine)
        assert (status, json.loads(body)["words"]) == (200, "the run pauses")
        assert page.commands == [("local:ann", COMMAND)]


def test_a_code_works_once_and_for_five_minutes_and_a_session_for_eight_hours(tmp_path):
    with site(tmp_path) as page:
        once = page.logins.new_code("local:ann")
        assert [page.ask("POST", "/login", {"code": once})[0] for _ in range(2)] == [200, 403]
        late = page.logins.new_code("local:ann")
        page.clock[0] += CODE_SECONDS
        for code in (once, late, "", "guess", 7, None):
            status, headers, body = page.ask("POST", "/login", {"code": code})
            assert status == 403 and "Set-Cookie" not in headers and "older than 5 minutes" in body
        mine = page.log_in()
        page.clock[0] += SESSION_SECONDS - 1
        assert page.ask("POST", "/command", COMMAND, **mine)[0] == 200
        page.clock[0] += 1
        status, _, body = page.ask("POST", "/command", COMMAND, **mine)
        assert status == 401 and "protofleet page RUN" in body
        assert len(page.commands) == 1


def test_a_command_with_a_cookie_but_without_the_page_key_is_refused(tmp_path):
    """A browser sends the cookie to each port of the host, so another server of the machine may have seen it."""
    with site(tmp_path) as page:
        mine, other = page.log_in(), page.log_in("local:bob")
        for key in (None, "", "1", other["X_Protofleet"], "\u00e9"):
            assert page.ask("POST", "/command", COMMAND, **{**mine, "X_Protofleet": key})[0] == 401
        assert page.ask("POST", "/command", COMMAND, **{**mine, "Cookie": None})[0] == 401
        assert page.commands == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": None}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 421),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": None}, 415),
    ],
)
def test_a_request_of_another_site_is_refused_although_the_browser_adds_the_cookie(tmp_path, headers, status):
    with site(tmp_path) as page:
        mine, code = page.log_in(), page.logins.new_code("local:ann")
        assert page.ask("POST", "/command", COMMAND, **{**mine, **headers})[0] == status
        assert page.ask("POST", "/login", {"code": code}, **headers)[0] == status
        assert page.commands == []
        assert page.ask("POST", "/login", {"code": code})[0] == 200, "a refused request does not use the code"


@pytest.mark.parametrize(
    ("body", "more", "status"),
    [
        (b"x" * (MOST_BODY + 1), {}, 413),
        (b"[]", {}, 400),
        (b"{", {}, 400),
        (b"[" * MOST_BODY, {}, 400),
        (b"\xff\xfe", {}, 400),
        (b"{}", {"Content_Length": "-2"}, 411),
        (b"{}", {"Content_Length": "9" * 30}, 413),
        (b"2\r\n{}\r\n0\r\n\r\n", {"Transfer_Encoding": "chunked", "Content_Length": "2"}, 411),
    ],
)
def test_a_body_that_is_not_a_small_json_object_is_refused(tmp_path, body, more, status):
    with site(tmp_path) as page:
        assert page.ask("POST", "/command", body, **page.log_in(), **more)[0] == status
        assert page.commands == []


def test_a_body_that_never_ends_is_dropped_and_delays_no_other_request(tmp_path, monkeypatch):
    monkeypatch.setattr(event_server, "REQUEST_SECONDS", 0.5)
    with site(tmp_path) as page, socket.create_connection(("127.0.0.1", page.port), PATIENCE) as slow:
        head = f"POST /login HTTP/1.1\r\nHost: {page.host}\r\nOrigin: {page.origin}\r\nContent-Type: application/json"
        slow.sendall(f"{head}\r\nContent-Length: 100\r\n\r\n{{".encode())
        assert page.ask("GET", "/")[0] == 200
        with contextlib.suppress(ConnectionError):
            assert slow.recv(100) == b""


def test_waiting_commands_are_limited_and_do_not_delay_the_page(tmp_path):
    with site(tmp_path) as page, ThreadPoolExecutor(COMMANDS) as browsers:
        gate, begun, mine = threading.Event(), threading.Semaphore(0), page.log_in()

        def waiting(operator, command):
            begun.release()
            assert gate.wait(PATIENCE)
            return {"verdict": "done", "words": ""}

        page.operate = waiting
        found = [browsers.submit(page.ask, "POST", "/command", COMMAND, **mine) for _ in range(COMMANDS)]
        assert all(begun.acquire(timeout=PATIENCE) for _ in range(COMMANDS))
        assert page.ask("POST", "/command", COMMAND, **mine)[0] == 503
        assert page.ask("GET", "/now")[0] == 200
        gate.set()
        assert [one.result(PATIENCE)[0] for one in found] == [200] * COMMANDS


def test_the_numbers_of_codes_and_sessions_are_limited():
    logins = Logins()
    codes = [logins.new_code("local:ann") for _ in range(MOST_CODES + 1)]
    assert logins.exchange(codes[0]) is None and logins.exchange(codes[1]) is not None
    sessions = [logins.exchange(logins.new_code("local:ann")) for _ in range(MOST_SESSIONS + 1)]
    assert logins.session(sessions[0].cookie) is None and logins.session(sessions[-1].cookie) is not None


@contextlib.contextmanager
def secure_site(tmp_path):
    """Serve a page as outside the loopback: with a certificate, and with a login before any data of the run."""
    authority = Authority(tmp_path / "ca")
    pair = authority.issue("page", "127.0.0.1")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pair.cert, pair.key)
    client = ssl.create_default_context(cafile=authority.ca)
    with site(tmp_path, client, names=("127.0.0.1",), tls=server, login_to_view=True) as page:
        yield page


def test_a_page_outside_the_loopback_shows_only_the_document_without_a_login(tmp_path):
    with secure_site(tmp_path) as page:
        assert page.ask("GET", "/")[0] == 200
        assert [page.ask("GET", path)[0] for path in ("/now", "/events")] == [401, 401]
        status, headers, _ = page.ask("POST", "/login", {"code": page.logins.new_code("local:ann")})
        assert status == 200 and "; Secure" in headers["Set-Cookie"]
        mine = page.log_in()
        assert page.ask("GET", "/now", **mine)[0] == 200
        assert page.ask("POST", "/command", COMMAND, **mine)[0] == 200
        assert page.ask("POST", "/command", COMMAND, **mine, Origin=f"http://{page.host}")[0] == 403
        assert page.ask("GET", "/", Host="localhost")[0] == 421, "the certificate does not have this name"


def test_a_stream_outside_the_loopback_ends_with_its_session(tmp_path, monkeypatch):
    monkeypatch.setattr(event_server, "COMMENT_SECONDS", 0.05)
    with secure_site(tmp_path) as page:
        cookie = page.log_in()["Cookie"]
        with socket.create_connection(("127.0.0.1", page.port), PATIENCE) as plain:
            stream = page.context.wrap_socket(plain, server_hostname="127.0.0.1")
            stream.sendall(f"GET /events HTTP/1.1\r\nHost: {page.host}\r\nCookie: {cookie}\r\n\r\n".encode())
            assert stream.recv(1000).startswith(b"HTTP/1.1 200 ")
            page.clock[0] += SESSION_SECONDS
            deadline = time.monotonic() + PATIENCE
            while stream.recv(1000):
                assert time.monotonic() < deadline, "the stream stays open"


def test_connections_that_never_finish_tls_are_limited(tmp_path):
    with secure_site(tmp_path) as page, contextlib.ExitStack() as held:
        silent = [
            held.enter_context(socket.create_connection(("127.0.0.1", page.port), PATIENCE))
            for _ in range(CONNECTIONS + 8)
        ]
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            assert silent[0].recv(1) == b"", "the oldest connection is closed when too many are open"
        assert time.monotonic() - began < event_server.REQUEST_SECONDS / 2
        assert page.ask("GET", "/")[0] == 200
