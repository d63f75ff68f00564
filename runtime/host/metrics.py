"""Show Prometheus the version, certificate and disk of a coordinator or a device."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from cryptography.x509 import load_pem_x509_certificate
from prometheus_client.core import GaugeMetricFamily

from protofleet.protocol.transport.address import BrokerAddress


class HostMetrics:
    """The metrics of a process's version, disk and certificate.

    The values are read at each scrape, because certificates are renewed and disks fill while a process runs.
    """

    def __init__(self, software: str, role: str, folder: Path, broker: BrokerAddress) -> None:
        self._labels = [software or "unknown", role]
        self._folder, self._tls = folder, broker.tls
        self._began = time.time()

    @staticmethod
    def describe() -> list[GaugeMetricFamily]:
        return [
            GaugeMetricFamily(
                "protofleet_build_info",
                "Always 1; the labels have the version and the role of this program",
                labels=["version", "role"],
            ),
            GaugeMetricFamily(
                "protofleet_start_timestamp_seconds", "Unix time at which this process started"
            ),
            GaugeMetricFamily("protofleet_disk_available_bytes", "Free space on the disk with the state"),
            GaugeMetricFamily(
                "protofleet_certificate_expiry_timestamp_seconds",
                "Unix time at which the program's own TLS certificate and enrolment record end",
            ),
        ]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        info, start, available, expiry = self.describe()
        info.add_metric(self._labels, 1)
        start.add_metric([], self._began)
        yield from (info, start)
        with contextlib.suppress(OSError):
            available.add_metric([], shutil.disk_usage(self._folder).free)
            yield available
        if self._tls is not None and self._tls.cert is not None:
            with contextlib.suppress(OSError, ValueError):
                certificate = load_pem_x509_certificate(Path(self._tls.cert).read_bytes())
                expiry.add_metric([], certificate.not_valid_after_utc.timestamp())
                yield expiry
