"""Write docs/metrics.md from the metrics in the code: python -m tools.pages.metrics."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from protofleet.coordinator.observe.budget import BudgetSeries
from protofleet.coordinator.observe.metrics import (
    MAX_DEVICES,
    BoundedLabels,
    DamageCounts,
    Errors,
    OlderCopyCounts,
    WillCounts,
)
from protofleet.coordinator.observe.process_metrics import DepartureCounts, process_counters
from protofleet.coordinator.observe.record import MOST_DEVICES
from protofleet.coordinator.observe.series import (
    ROWS,
    SERIES_BY_DEVICE,
    Attendance,
    Devices,
    DiskSpace,
    LastRound,
    Learned,
    ProcessSeries,
    QueueSeries,
    RunProgress,
    Traffic,
)
from protofleet.edge_client.gpu.admission import Usage
from protofleet.edge_client.gpu.metrics import UsageCollector
from protofleet.edge_client.host.sensors import Sensors
from protofleet.edge_client.metrics import DeviceSeries
from protofleet.edge_client.serving.metrics import ModelCollector
from protofleet.edge_client.serving.serving import ModelServing
from protofleet.edge_client.serving.versions import ModelVersions
from protofleet.protocol.link.meter import Meter
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.wire.kinds import MOST_KINDS
from protofleet.runtime.host.metrics import HostMetrics
from protofleet.runtime.metrics_page import BrokerCertificate, ConnectionErrors, MeterCollector
from protofleet.runtime.privacy_series import PrivacySeries

PAGE: Final = Path(__file__).parents[2] / "docs" / "metrics.md"
INTRO: Final = f"""\
# Metrics

A coordinator or a device with a `metrics_port` serves these metrics under `/metrics` at its `metrics_host`.
All times are Unix times. The labels have these limits:

- Only four gauges and three counters have the name of a device as a label.
- The labels for names and domains have at most {MAX_DEVICES:,} values each; further values are counted as `other`.
  For bytes by device, the limit is {MOST_DEVICES} names.
- Each of the two metrics of bytes by device has at most {SERIES_BY_DEVICE:,} series:
  {ROWS} rows ({MOST_DEVICES} names, `other`, `all devices`) x {MOST_KINDS + 1} kinds x 2 directions. The kinds are
  `control` and at most {MOST_KINDS} kinds that the method declares. The counter also has one `_created` series
  for each of its series, like every counter.
- The method defines the views. A device has one domain for a whole run.
- In a [queue](run-queue.md#metrics), the series of a run and of its messages have the label `run` too.

Counters of the whole run, or of all ended rounds, continue after a restart of the coordinator.
All other counters begin at 0 when a process starts.

`/metrics` has the same texts as `HELP`. `python -m tools.pages.metrics` writes this page.
"""
HEAD: Final = "| metric | type | labels | meaning |\n|---|---|---|---|\n"


class Rows(CollectorRegistry):
    """The rows of the page: one for each registered metric, in the order of registration.

    The metrics need not have values.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[str] = []

    def register(self, collector: Any) -> None:
        super().register(collector)
        for family in collector.describe():
            # The client library keeps the names of labels in a private attribute of the metric or of the family.
            named = collector if isinstance(collector, MetricWrapperBase) else family
            self.rows.append(row(family.name, family.type, named._labelnames, family.documentation))


def row(name: str, kind: str, labels: tuple[str, ...], description: str) -> str:
    shown = name + ("_total" if kind == "counter" else "")
    return f"| `{shown}` | {kind} | {', '.join(labels)} | {meaning(description)} |".replace("|  |", "| |")


def meaning(description: str) -> str:
    """Return the description as a cell of a table. In the cell, docs/x.md is a link to that page."""
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", description.replace("|", r"\|"))


def register_common(r: CollectorRegistry) -> None:
    r.register(MeterCollector(Meter(), ""))
    r.register(ConnectionErrors(lambda: 0))
    r.register(BrokerCertificate(lambda: None))
    r.register(PrivacySeries(lambda: None))
    r.register(HostMetrics("", "", Path(), BrokerAddress()))


def register_coordinator(r: CollectorRegistry) -> None:
    for series in (RunProgress, Attendance, LastRound, Traffic, Learned, Devices, DiskSpace):
        series(r)
    r.register(DamageCounts(Counter()))
    r.register(WillCounts(Counter(), BoundedLabels(MAX_DEVICES)))
    r.register(OlderCopyCounts(Counter(), BoundedLabels(MAX_DEVICES)))
    r.register(Errors(None))
    r.register(BudgetSeries(lambda: None))


def register_process(r: CollectorRegistry) -> None:
    ProcessSeries(r)
    QueueSeries(r)
    r.register(DepartureCounts(None))
    for counter in process_counters(None):
        r.register(counter)


def register_device(r: CollectorRegistry) -> None:
    DeviceSeries(r)
    r.register(Sensors())
    r.register(UsageCollector(Usage()))
    r.register(ModelCollector(ModelServing(ModelVersions(Path()), str, None), int))


SECTIONS: Final[dict[str, Callable[[CollectorRegistry], None]]] = {
    "Coordinator and device": register_common,
    "Coordinator": register_process,
    "Run": register_coordinator,
    "Device": register_device,
}


def sections() -> Iterator[str]:
    for title, registered in SECTIONS.items():
        registered(registry := Rows())
        yield f"## {title}\n\n{HEAD}" + "".join(f"{line}\n" for line in registry.rows)


def generate() -> str:
    return "\n".join((INTRO, *sections()))


if __name__ == "__main__":
    PAGE.write_text(generate())
