"""Show the counts of a Link's meter to Prometheus.

The counts are read from the meter at each scrape. No second copy of them is kept.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from protofleet.protocol.settings.bounds import OptionalPort
from protofleet.protocol.user_error import UserError
from protofleet.protocol.wire.reasons import Reason
from protofleet.runtime.health import Check
from protofleet.runtime.metrics_server import HttpRequest, Page, Response, bound, serving

LOOPBACK: Final = "127.0.0.1"  # Host for metrics if the settings do not name a host.
METRICS: Final = "/metrics"
SCRAPER: Final = "x-prometheus-scrape-timeout-seconds"  # A header that only scrapers such as Prometheus send.
LAST_SCRAPE_SECONDS: Final = 75.0  # More than a minute, which is the default scrape interval of Prometheus.
HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}|[0-9a-fA-F:.]{2,45}(%[A-Za-z0-9_.-]+)?")


class MetricsError(UserError, RuntimeError):
    """The error for metrics that cannot be served; the message has the reason and advice."""


class MeterReader(Protocol):
    """The interface for reading the counts of a Link's meter."""

    @property
    def payload(self) -> Mapping[tuple[str, str], int]: ...

    @property
    def wire(self) -> Mapping[tuple[str, str], int]: ...

    @property
    def messages(self) -> Mapping[tuple[str, str, str], int]: ...

    @property
    def rejected(self) -> Mapping[Reason, int]: ...


Bytes: TypeAlias = Mapping[tuple[str, str], int]  # (direction, kind) -> bytes
MethodBytes: TypeAlias = Mapping[tuple[str, str, str], int]  # (method, direction, kind) -> bytes


class MethodTotals:
    """The counted bytes, divided by the method that was in use when they were sent or received.

    A device learns its method from the plan, and a later run may have another method.
    """

    def __init__(self, counted: Bytes, method: str) -> None:
        self._counted = counted
        # The present method; all bytes at the time when this method began; the bytes of earlier methods. All three
        # are in one tuple, because another thread may read them while they change.
        self._state: tuple[str, Bytes, MethodBytes] = (method, {}, {})

    def begin(self, method: str) -> None:
        """Count bytes for this method from now on; only the thread that counts may call this method."""
        if method != self._state[0]:
            self._state = (method, snapshot_of(self._counted), self.now())

    def now(self) -> MethodBytes:
        """Return (method, direction, kind) -> bytes."""
        method, before, earlier = self._state
        found = Counter(earlier)
        for (direction, kind), size in snapshot_of(self._counted).items():
            if since := size - before.get((direction, kind), 0):
                found[method, direction, kind] += since
        return found


class MeterCollector:
    """The metrics of a meter: bytes by method, direction and kind; messages by direction, kind and result."""

    def __init__(self, meter: MeterReader, method: str = "") -> None:
        self._meter = meter
        self._payload, self._wire = MethodTotals(meter.payload, method), MethodTotals(meter.wire, method)

    def begin(self, method: str) -> None:
        """Count bytes for this method from now on."""
        for totals in (self._payload, self._wire):
            totals.begin(method)

    @staticmethod
    def describe() -> list[CounterMetricFamily]:
        each = ["direction", "kind", "method"]
        return [
            CounterMetricFamily(
                "protofleet_message_bytes",
                "Bytes of arrays, without repeated packets. `kind` is one of at most 16 kinds of arrays "
                "that the method declares, such as weights. `method` is empty before a device has a plan",
                labels=each,
            ),
            CounterMetricFamily(
                "protofleet_message_wire_bytes",
                "All bytes of all PUBLISH packets, including repeated ones. `kind` is control for all bytes "
                "other than declared arrays: headers, tables, signatures, topics, confusion matrices",
                labels=each,
            ),
            CounterMetricFamily(
                "protofleet_messages",
                "Messages and blocks. `result` is sent, accepted, duplicate, for_others (on a shared "
                "topic), or the reason why a received message was rejected",
                labels=["direction", "kind", "result"],
            ),
            CounterMetricFamily(
                "protofleet_rejected",
                "Received frames, hellos and answers that were refused; from the start there is a series for each "
                "reason of docs/protocol.md, section 7",
                labels=["reason"],
            ),
        ]

    def collect(self) -> Iterator[CounterMetricFamily]:
        payload, wire, messages, rejected = self.describe()
        for family, totals in ((payload, self._payload), (wire, self._wire)):
            for (method, direction, kind), size in totals.now().items():
                family.add_metric([direction, kind, method], size)
            yield family
        for key, number in snapshot_of(self._meter.messages).items():
            messages.add_metric(list(key), number)
        yield messages
        # Reasons with the count 0 are included too, so that an alert has a time series to watch.
        for reason in Reason:
            rejected.add_metric([reason.value], self._meter.rejected[reason])
        yield rejected


class BrokerCertificate:
    """The metric of the broker's certificate.

    A client of the broker reports the metric, because Prometheus does not scrape the broker itself.
    """

    def __init__(self, ends: Callable[[], float | None]) -> None:
        self._ends = ends

    @staticmethod
    def describe() -> list[GaugeMetricFamily]:
        words = "Unix time at which the broker's certificate ends, as of the last connect"
        return [GaugeMetricFamily("protofleet_broker_certificate_expiry_timestamp_seconds", words)]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        (family,) = self.describe()
        if (ends := self._ends()) is not None:
            family.add_metric([], ends)
        yield family


class ConnectionErrors:
    """The metric that counts errors in handling messages, if the process continues after the error."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count

    @staticmethod
    def describe() -> list[CounterMetricFamily]:
        words = (
            "Errors in handling messages of the broker, and connections that such errors ended; the log has "
            "one traceback an hour for each place"
        )
        return [CounterMetricFamily("protofleet_connection_errors", words)]

    def collect(self) -> Iterator[CounterMetricFamily]:
        (family,) = self.describe()
        family.add_metric([], self._count())
        yield family


def snapshot_of(counter: Mapping[Any, int]) -> dict[Any, int]:
    """Return a copy of a counter, even if another thread adds a key during the copy."""
    while True:
        try:
            return dict(counter)
        except RuntimeError:  # The counter got a new key during the copy, which is rare.
            continue


def pages(registry: CollectorRegistry, checks: Mapping[str, Check]) -> dict[str, Page]:
    """Return the pages /metrics and /health.

    /health shows the problem of each check as JSON, and has the status 503 if there is a problem.
    """
    written = make_wsgi_app(registry)

    def metrics(request: HttpRequest) -> Response:
        told: list[Any] = []
        body = b"".join(written(request.environ(), lambda *words: told.extend(words)))
        return Response(told[0], tuple(told[1]), body)

    def health(request: HttpRequest) -> Response:
        found = {name: check() for name, check in checks.items()}
        status = "503 Service Unavailable" if any(found.values()) else "200 OK"
        return Response(status, (("Content-Type", "application/json"),), json.dumps(found).encode())

    return {METRICS: metrics, "/health": health}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address at which a party shows its metrics and its health.

    The address comes from the party's settings `metrics_host` and `metrics_port`.
    """

    host: str
    port: OptionalPort  # 0 if the party shows no metrics.

    def __post_init__(self) -> None:
        if not HOST.fullmatch(self.host):
            raise ValueError(
                f"metrics_host is {self.host!r}, it must be an address of this machine, or 0.0.0.0 for every address"
            )

    def url(self, path: str) -> str:
        """Return the URL of the endpoint for a program on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}{path}"


class Scrapes:
    """The time when Prometheus, or a program that sends the same header, last read the metrics.

    Requests of a person or a script are ignored.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._last = clock, float("-inf")

    def answered(self, request: HttpRequest, began: float) -> None:
        if request.path == METRICS and SCRAPER in request.headers:
            self._last = began

    def wait_for_last(self, stopped: Callable[[], bool], seconds: float = LAST_SCRAPE_SECONDS) -> None:
        """Wait at the end of a process until Prometheus has read its last metrics.

        Return at once if no scraper has read the metrics in the last `seconds`.
        """
        ended = self._clock()
        while ended - seconds < self._last < ended and self._clock() < ended + seconds:
            if stopped():
                return
            time.sleep(0.05)


def metrics_listener(at: Endpoint) -> socket.socket | None:
    """Return a listening socket at the address of the metrics; None if the party shows no metrics."""
    if not at.port:
        return None
    try:
        return bound(at.host, at.port)
    except OSError as error:
        raise MetricsError(
            f"metrics_host {at.host} with metrics_port {at.port} cannot be used ({error.strerror}); "
            "set metrics_port to another port, or to 0 for no metrics"
        ) from None


@contextlib.contextmanager
def exposed(
    registry: CollectorRegistry,
    at: Endpoint,
    checks: Mapping[str, Check] | None = None,
    scrapes: Scrapes | None = None,
) -> Iterator[None]:
    """Serve a registry and the health checks while the `with` lasts."""
    if (listening := metrics_listener(at)) is None:
        yield
        return
    with serving(listening, pages(registry, checks or {}), (scrapes or Scrapes()).answered):
        yield
