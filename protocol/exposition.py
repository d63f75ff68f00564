"""What a Link's meter holds, for Prometheus: read when it is scraped, so that nothing is counted twice."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily

from protocol.meter import Meter
from protocol.reasons import Reason
from protocol.vitals import Check


class MetricsError(RuntimeError):
    """Metrics cannot be served. The message says why, and the way out."""


class MeterCollector:
    """Bytes by method, direction and kind; messages by direction, kind and result."""

    def __init__(self, meter: Meter, method: str) -> None:
        self._meter, self._method = meter, method

    @staticmethod
    def describe() -> list[CounterMetricFamily]:
        each = ["direction", "kind", "method"]
        return [
            CounterMetricFamily(
                "protofleet_message_bytes",
                "Tensor bytes, each once; kind is weights, prototypes, anchors, classifier, amplifier, features, "
                "labels or counts",
                labels=each,
            ),
            CounterMetricFamily(
                "protofleet_message_wire_bytes",
                "Every byte of every PUBLISH packet, repeats included; headers, tables, signatures and topics are "
                "of the kind control",
                labels=each,
            ),
            CounterMetricFamily(
                "protofleet_messages",
                "Messages and blocks: sent, or what became of a received one: accepted, duplicate, or the reason "
                "for which it was rejected",
                labels=["direction", "kind", "result"],
            ),
            CounterMetricFamily(
                "protofleet_rejected",
                "What was received and not used: frames, and hellos and answers whose frame was good; every reason "
                "of docs/protocol.md, section 7, from the start",
                labels=["reason"],
            ),
        ]

    def collect(self) -> Iterator[CounterMetricFamily]:
        payload, wire, messages, rejected = self.describe()
        for family, counter in ((payload, self._meter.payload), (wire, self._meter.wire)):
            for (direction, kind), size in still(counter).items():
                family.add_metric([direction, kind, self._method], size)
            yield family
        for key, number in still(self._meter.messages).items():
            messages.add_metric(list(key), number)
        yield messages
        for reason in Reason:  # those that have not happened too, so that an alert has a series to watch
            rejected.add_metric([reason.value], self._meter.rejected[reason])
        yield rejected


def still(counter: Counter[Any]) -> dict[Any, int]:
    """A copy taken while another thread may be adding a key."""
    while True:
        try:
            return dict(counter)
        except RuntimeError:  # it grew in the middle; it does so a few times in its life
            continue


class _Quiet(WSGIRequestHandler):
    def log_message(self, *words: Any) -> None:
        """A scrape every few seconds is no news."""


Application = Callable[..., Iterable[bytes]]  # WSGI


def application(registry: CollectorRegistry, checks: Mapping[str, Check]) -> Application:
    """/metrics, and /health: each check with what is wrong, as JSON; 503 where anything is."""
    metrics: Application = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != "/health":
            return metrics(environ, start_response)
        found = {name: check() for name, check in checks.items()}
        status = "503 Service Unavailable" if any(found.values()) else "200 OK"
        start_response(status, [("Content-Type", "application/json")])
        return [json.dumps(found).encode()]

    return answer


@contextlib.contextmanager
def exposed(
    registry: CollectorRegistry, port: int, checks: Mapping[str, Check] | None = None
) -> Iterator[None]:
    """Serve a registry and the health checks while the `with` lasts; port 0 serves nothing."""
    if not port:
        yield
        return
    try:
        server = make_server("", port, application(registry, checks or {}), handler_class=_Quiet)
    except OSError as error:
        raise MetricsError(
            f"metrics_port is {port}, which cannot be used ({error.strerror}); take another, or 0 for none"
        ) from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
