"""Tests that the server of a live page serves only this machine, and that no reader delays another or the run."""

import http.client
import json
import re
import socket
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest

from protofleet.runtime.live import event_server
from protofleet.runtime.live.document import Document
from protofleet.runtime.live.event_ring import EVENTS, EventRing
from protofleet.runtime.live.event_server import COMMENT_SECONDS, STREAMS, WAITING, serving_page
from protofleet.runtime.metrics_server import CONNECTIONS, MOST_HEAD, bound

PATIENCE = 20.0
HTML = "<!doctype html><style>p { color: red; }</style><p>hi</p><script>let a = 1;</script>"


class State:
    def __init__(self, words=""):
        self.words = words

    def table(self):
        return {"words": self.words}


@contextmanager
def served(tmp_path):
    """Serve a page, and yield its port and its ring."""
    (tmp_path / "page.html").write_text(HTML)
    ring, listening = EventRing(State()), bound("127.0.0.1", 0)
    with serving_page(listening, Document.read(tmp_path / "page.html"), ring):
        yield listening.getsockname()[1], ring


def answer(port, path="/", method="GET", host=None):
    """Return the status, the headers and the body of a response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.putrequest(method, path, skip_host=True)
    if host != "":
        connection.putheader("Host", host or f"127.0.0.1:{port}")
    connection.endheaders()
    got = connection.getresponse()
    found = got.status, dict(got.getheaders()), got.read()
    connection.close()
    return found


class Stream:
    """A reader of the stream that reads only when it is asked to."""

    def __init__(self, port, last=None, buffer=None):
        self.socket = socket.socket()
        if buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(("127.0.0.1", port))
        more = "" if last is None else f"Last-Event-ID: {last}\r\n"
        self.socket.sendall(f"GET /events HTTP/1.1\r\nHost: localhost:{port}\r\n{more}\r\n".encode())
        self.file = self.socket.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        self.headers = {}
        while line := self.file.readline().decode().strip():
            name, _, value = line.partition(": ")
            self.headers[name] = value

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()
        self.socket.close()

    def next(self):
        """Return the number, the kind and the data of the next event; a comment is ("", "comment", None)."""
        found = {}
        while line := self.file.readline().decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            found[name] = value
        if not found:
            raise EOFError
        return (
            (int(found["id"]), found["event"], json.loads(found["data"]))
            if "id" in found
            else ("", "comment", None)
        )


def test_the_headers_of_the_page_allow_only_its_own_script(tmp_path):
    with served(tmp_path) as (port, _):
        status, headers, body = answer(port)
    assert (status, body.decode()) == (200, HTML)
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy.pop("default-src") == policy.pop("base-uri") == policy.pop("form-action") == "'none'"
    assert policy.pop("frame-ancestors") == "'none'" and policy.pop("connect-src") == "'self'"
    assert policy.keys() == {"script-src", "style-src"}
    assert all(re.fullmatch(r"'sha256-[\w+/]{43}='", value) for value in policy.values())
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_the_snapshot_has_the_number_of_its_newest_event_and_the_time_of_the_machine(tmp_path):
    with served(tmp_path) as (port, ring):
        ring.publish("log", {}, State("old"))
        assert json.loads(answer(port, "/now")[2])["words"] == "old"
        ring.publish("log", {}, State("new"))
        _, headers, body = answer(port, "/now")
        found = json.loads(body)
    at = pytest.approx(time.time(), abs=PATIENCE)
    assert found == {"n": ring.newest, "time": at, "operator": "", "words": "new"}
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_only_loopback_names_with_the_port_are_accepted_as_host(tmp_path):
    """Otherwise a page of another site could read this page, after its name points to 127.0.0.1."""
    with served(tmp_path) as (port, _):
        known = [f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", f"LOCALHOST:{port}"]
        wrong = ["evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", ""]
        for path in ("/", "/now", "/events"):
            assert [answer(port, path, host=host)[0] for host in wrong] == [421] * len(wrong)
        assert [answer(port, host=host)[0] for host in known] == [200] * len(known)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_a_method_other_than_get_is_refused(tmp_path, method):
    with served(tmp_path) as (port, _):
        status, headers, _ = answer(port, "/now", method)
    assert status == 405 and headers["Allow"] == "GET"


def test_other_paths_and_requests_that_are_not_http_are_refused(tmp_path):
    with served(tmp_path) as (port, _):
        assert answer(port, "/../etc/passwd")[0] == 404
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as here:
            here.sendall(b"\x16\x03\x01 \xff\r\n\r\n")
            assert here.recv(100).startswith(b"HTTP/1.1 400 ")
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as here:
            here.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * (2 * MOST_HEAD))
            with pytest.raises(ConnectionError):
                assert here.recv(1) == b""
                raise ConnectionResetError  # Or the connection was closed in good order.


def test_a_new_stream_begins_with_a_gap_and_then_sends_each_event(tmp_path):
    with served(tmp_path) as (port, ring), Stream(port) as stream:
        before = ring.newest
        assert stream.next() == (before, "gap", {})
        ring.publish("log", {"text": "one"}, State())
        ring.publish("run", {"text": "two"}, State())
        assert stream.next() == (before + 1, "log", {"text": "one"})
        assert stream.next() == (before + 2, "run", {"text": "two"})


def test_a_stream_that_reconnects_gets_the_events_that_it_missed(tmp_path):
    with served(tmp_path) as (port, ring):
        for i in range(EVENTS + 5):
            ring.publish("log", {"i": i}, State())
        with Stream(port, last=ring.newest - EVENTS) as stream:
            assert [stream.next()[2]["i"] for _ in range(EVENTS)] == [*range(5, EVENTS + 5)]


@pytest.mark.parametrize("last", [0, "1", "-7", "nonsense", "9" * 30, "²"])
def test_a_stream_with_an_unknown_event_number_gets_a_gap(tmp_path, last):
    with served(tmp_path) as (port, ring):
        ring.publish("log", {}, State())
        with Stream(port, last=str(last).encode().decode("latin-1")) as stream:
            assert stream.next() == (ring.newest, "gap", {})


def test_a_stream_with_an_event_number_older_than_the_ring_gets_a_gap(tmp_path):
    with served(tmp_path) as (port, ring):
        first = ring.newest
        for i in range(EVENTS + 1):
            ring.publish("log", {"i": i}, State())
        with Stream(port, last=first) as stream:
            assert stream.next() == (ring.newest, "gap", {})


def test_sixteen_streams_are_served_and_another_one_after_one_of_them_has_ended(tmp_path):
    with served(tmp_path) as (port, _), ExitStack() as streams:
        opened = [streams.enter_context(Stream(port)) for _ in range(STREAMS)]
        assert all(stream.next()[1] == "gap" for stream in opened)
        with Stream(port) as refused:
            assert refused.status == 503 and refused.headers["Retry-After"]
        assert answer(port, "/now")[0] == 200
        opened[0].__exit__()
        # The server sees the end of the connection at once, and not only at its next comment.
        deadline = time.monotonic() + COMMENT_SECONDS / 2
        while True:
            with Stream(port) as another:
                if another.status == 200:
                    break
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_reader_that_does_not_read_gets_a_gap_and_delays_no_other_reader(tmp_path):
    large = "x" * 5000
    with served(tmp_path) as (port, ring), Stream(port, buffer=4096) as slow, Stream(port) as quick:
        assert slow.next()[1] == quick.next()[1] == "gap"
        seen = []

        def read():
            while not seen or seen[-1][2].get("i") != "last":
                seen.append(quick.next())

        reader = threading.Thread(target=read)
        reader.start()
        published = 0
        while published < 4 * WAITING:
            began = time.monotonic()
            ring.publish("log", {"i": published, "text": large}, State())
            published += 1
            assert time.monotonic() - began < 1.0
            while len(seen) < published - WAITING // 2 and reader.is_alive():
                time.sleep(0.01)  # The quick reader must not fall behind, because it would get a gap too.
        ring.publish("log", {"i": "last"}, State())
        reader.join(PATIENCE)
        assert [event[2]["i"] for event in seen] == [*range(published), "last"]
        found = []
        while not found or found[-1][0] != ring.newest:
            found.append(slow.next())
        kinds = [kind for _, kind, _ in found]
        assert "gap" in kinds and kinds.index("gap") < 2 * WAITING, (
            "the waiting events are not all kept for it"
        )
        numbers = [number for number, _, _ in found]
        assert numbers == sorted(numbers)


def test_a_reader_that_never_reads_is_disconnected(tmp_path, monkeypatch):
    monkeypatch.setattr(event_server, "SLOW_SECONDS", 0.3)
    with served(tmp_path) as (port, ring), Stream(port, buffer=4096) as deaf:
        assert deaf.next()[1] == "gap"
        deadline = time.monotonic() + PATIENCE
        while ring.is_watched:
            ring.publish("log", {"text": "x" * 50_000}, State())
            assert time.monotonic() < deadline, "the stream stays open"
            time.sleep(0.01)


def test_a_quiet_stream_sends_comments(tmp_path, monkeypatch):
    monkeypatch.setattr(event_server, "COMMENT_SECONDS", 0.05)
    with served(tmp_path) as (port, _), Stream(port) as stream:
        assert [stream.next()[1] for _ in range(3)] == ["gap", "comment", "comment"]


def test_silent_connections_are_limited_and_do_not_end_a_stream(tmp_path):
    with served(tmp_path) as (port, ring), Stream(port) as stream, ExitStack() as held:
        assert stream.next()[1] == "gap"
        for _ in range(3 * CONNECTIONS):
            held.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
        ring.publish("log", {"text": "still"}, State())
        assert stream.next()[2] == {"text": "still"}


def test_the_last_events_arrive_before_the_stream_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(event_server, "PAUSE_SECONDS", 1.0)
    monkeypatch.setattr(event_server, "CLOSE_SECONDS", PATIENCE)
    with served(tmp_path) as (port, ring):
        stream = Stream(port)
        assert stream.next()[1] == "gap"
        time.sleep(0.2)  # Then the stream is in its pause of one second, in which the server ends.
        ring.publish("run", {"state": "ended"}, State())
    with stream:
        assert stream.next()[2] == {"state": "ended"}
        with pytest.raises(EOFError):
            stream.next()
