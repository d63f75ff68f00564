"""Tests that the metrics server limits the number and time of connections, and answers them independently."""

import errno
import http.client
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

from protofleet.runtime import metrics_server
from protofleet.runtime.metrics_page import Endpoint, MetricsError, Scrapes, exposed, pages
from protofleet.runtime.metrics_server import MOST_HEAD, Response, bound, serving

PATIENCE = 20.0


@contextmanager
def served(**checks):
    """Serve pages and yield the port."""
    registry = CollectorRegistry()
    Gauge("one", "A figure", registry=registry).set(1)
    listening = bound("127.0.0.1", 0)
    with serving(listening, pages(registry, checks)):
        yield listening.getsockname()[1]


def said(port, request):
    """Send a request and return all bytes until the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as here:
        here.sendall(request)
        return b"".join(iter(lambda: here.recv(1 << 16), b""))


def first_line(port, request):
    return said(port, request).split(b"\r\n")[0].decode()


def other_end_is_open(here):
    """Return whether a process, and not only the kernel, still has the other end of the connection.

    Counting the open files of this process would not tell it, because other files open and close meanwhile.
    """
    wanted = [here.getpeername()[1], here.getsockname()[1]]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if [int(end.partition(":")[2], 16) for end in fields[1:3]] == wanted:
            return int(fields[9]) > 0  # The inode.
    return False


def test_a_request_that_is_not_for_a_page_gets_an_error_status():
    with served() as port:
        assert first_line(port, b"GET /metrics HTTP/1.1\r\n\r\n") == "HTTP/1.1 200 OK"
        assert first_line(port, b"GET /metrics HTTP/1.0\r\n\r\n") == "HTTP/1.1 200 OK"
        assert first_line(port, b"GET /else HTTP/1.1\r\n\r\n") == "HTTP/1.1 404 Not Found"
        assert first_line(port, b"POST /metrics HTTP/1.1\r\n\r\n") == "HTTP/1.1 405 Method Not Allowed"
        assert first_line(port, b"\x16\x03\x01 \xff\r\n\r\n") == "HTTP/1.1 400 Bad Request"


def test_a_response_has_the_format_and_encoding_that_prometheus_requests():
    with served() as port:
        ask = urllib.request.Request(
            f"http://127.0.0.1:{port}/metrics?name[]=one",
            headers={"Accept": "application/openmetrics-text", "Accept-Encoding": "gzip"},
        )
        with urllib.request.urlopen(ask, timeout=PATIENCE) as told:
            assert told.headers["Content-Type"].startswith("application/openmetrics-text")
            assert told.headers["Content-Encoding"] == "gzip"
            assert told.headers["Content-Length"] and told.headers["Connection"] == "close"


def test_a_request_with_an_endless_header_gets_no_response():
    with served() as port:
        try:
            told = said(port, b"GET /metrics HTTP/1.1\r\nX: " + b"x" * (2 * MOST_HEAD))
        except ConnectionError:
            told = b""
        assert told == b""


def test_a_client_that_sends_its_request_too_slowly_is_disconnected(monkeypatch):
    monkeypatch.setattr(metrics_server, "SECONDS", 0.2)
    with served() as port, socket.create_connection(("127.0.0.1", port), PATIENCE) as slow:
        slow.sendall(b"GET /metrics HT")
        with pytest.raises(ConnectionResetError):
            assert slow.recv(1) == b""
            raise ConnectionResetError  # Or the connection was closed in good order.


def test_a_client_that_does_not_read_its_response_is_disconnected(monkeypatch):
    """Otherwise each such client would keep its response in memory for ever."""
    monkeypatch.setattr(
        metrics_server, "SECONDS", 3.0
    )  # A busy machine needs some of these seconds to begin its answer.
    listening, body = bound("127.0.0.1", 0), bytes(32 << 20)
    large = {"/large": lambda request: Response("200 OK", body=body)}
    with serving(listening, large), socket.create_connection(listening.getsockname(), PATIENCE) as deaf:
        deaf.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        assert deaf.recv(1) == b"H"
        deadline = time.monotonic() + PATIENCE
        while other_end_is_open(deaf):
            assert time.monotonic() < deadline, "the server's end stays open"
            time.sleep(0.01)


def test_a_health_check_that_hangs_does_not_delay_a_scrape():
    asked, go_on = threading.Event(), threading.Event()

    def check():
        asked.set()
        go_on.wait(PATIENCE)
        return ""

    with served(disk=check) as port:
        probe = threading.Thread(target=said, args=(port, b"GET /health HTTP/1.1\r\n\r\n"))
        probe.start()
        assert asked.wait(PATIENCE)
        assert first_line(port, b"GET /metrics HTTP/1.1\r\n\r\n") == "HTTP/1.1 200 OK"
        go_on.set()
        probe.join(PATIENCE)


def test_a_page_that_raises_gives_status_500_and_the_next_request_is_answered(caplog):
    def broken():
        raise RuntimeError("the sensor is gone")

    with served(disk=broken) as port:
        assert first_line(port, b"GET /health HTTP/1.1\r\n\r\n") == "HTTP/1.1 500 Internal Server Error"
        assert "the sensor is gone" in caplog.text
        assert first_line(port, b"GET /metrics HTTP/1.1\r\n\r\n") == "HTTP/1.1 200 OK"


def test_a_metrics_address_that_the_machine_lacks_is_logged_and_not_fatal(caplog):
    """A board may start before its network has assigned the address."""
    with exposed(CollectorRegistry(), Endpoint("203.0.113.9", 1234)):
        assert "metrics_host is 203.0.113.9, but this machine does not have this address now" in caplog.text


def test_an_invalid_metrics_address_is_refused(tmp_path):
    with pytest.raises(
        MetricsError, match=r"metrics_host nowhere\.invalid with metrics_port 9100 cannot be used"
    ):
        exposed(CollectorRegistry(), Endpoint("nowhere.invalid", 9100)).__enter__()
    for host in ("", "http://a", "a b"):
        with pytest.raises(ValueError, match="metrics_host is"):
            Endpoint(host, 9100)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:9/health"),
        ("::", "http://[::1]:9/health"),
        ("10.0.0.1", "http://10.0.0.1:9/health"),
        ("fd00::7", "http://[fd00::7]:9/health"),
    ],
)
def test_the_url_of_an_endpoint_is_reachable_from_the_machine_itself(host, url):
    assert Endpoint(host, 9).url("/health") == url


def test_the_host_of_all_ipv6_addresses_also_serves_ipv4():
    try:
        listening = bound("::", 0)
    except OSError as error:
        assert error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
        pytest.skip("this machine has no IPv6")
    port = listening.getsockname()[1]
    with serving(listening, pages(CollectorRegistry(), {})):
        here = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        here.request("GET", "/health")
        assert here.getresponse().status == 200


@contextmanager
def scraped():
    """Serve a metrics page and yield its port and the record of its scrapes."""
    scrapes, listening = Scrapes(), bound("127.0.0.1", 0)
    with serving(listening, pages(CollectorRegistry(), {}), scrapes.answered):
        yield listening.getsockname()[1], scrapes


def seconds_waited(scrapes, stopped=None, most=PATIENCE):
    began = time.monotonic()
    scrapes.wait_for_last(stopped or (lambda: False), most)
    return time.monotonic() - began


SCRAPE = b"GET /metrics HTTP/1.1\r\nX-Prometheus-Scrape-Timeout-Seconds: 4\r\n\r\n"


def test_a_process_without_a_scraper_does_not_wait_for_a_last_scrape():
    with scraped() as (port, scrapes):
        assert seconds_waited(scrapes) < 0.05
        assert first_line(port, b"GET /metrics HTTP/1.1\r\n\r\n") == "HTTP/1.1 200 OK"
        assert seconds_waited(scrapes) < 0.05


def test_a_scraped_process_waits_for_the_next_scrape_up_to_a_limit():
    with scraped() as (port, scrapes):
        first_line(port, SCRAPE)
        later = threading.Timer(0.3, first_line, (port, SCRAPE))
        later.start()
        assert 0.25 < seconds_waited(scrapes) < PATIENCE
        later.join()
        assert 1.4 < seconds_waited(scrapes, most=1.5) < PATIENCE / 2, "nobody comes any more"


def test_a_signal_ends_the_wait_for_a_scrape():
    with scraped() as (port, scrapes):
        first_line(port, SCRAPE)
        assert seconds_waited(scrapes, lambda: True) < 1.0
