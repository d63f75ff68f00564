"""`python -m benchmarks.scale`: writes docs/scale.md and its pictures from the figures in benchmarks/results.

Only the newest figures of each measure are used. A point without figures is left out. A value that is
computed from several points uses only the points that exist.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness import history
from benchmarks.harness.history import Entry
from benchmarks.harness.trees import ROOT
from protofleet.edge_client.conversation.hello_timer import LEAST_OF_QUIET, QUIET_SECONDS
from protofleet.lab.report.drawing.canvas import WIDE
from protofleet.lab.report.drawing.charts import ChartLine, line_picture
from protofleet.lab.report.drawing.palette import COLOURS
from protofleet.protocol.link.meter import human_bytes

PAGE = ROOT / "docs" / "scale.md"
IMAGES = ROOT / "docs" / "images"
# The style of a web page does not apply to a picture in a separate file, so each picture contains its own style, with
# a white background.
STYLE = (
    "<style>svg{background:#fff;--series-0:#0060a8;--series-1:#d55e00;--series-2:#00886a;--series-3:#be5c97}"
    "text{font:12px system-ui,sans-serif;fill:#16202a}.grid{stroke:#dde3e8}.axis{stroke:#4f5b67}"
    ".end{text-anchor:end}.middle{text-anchor:middle}</style>"
)
SECTION = re.compile(
    r"^(<!-- generated (?P<name>\w+) -->\n).*?^(<!-- end of generated -->)$", re.MULTILINE | re.DOTALL
)
FLEET = 100_000
ANSWER_BYTES = 20_480


@dataclass(frozen=True)
class Point:
    x: float
    value: float  # The median of the measured values.
    entry: Entry

    @property
    def row(self) -> str:
        e = self.entry
        load = f"{e.load[0]:.0f} to {e.load[1]:.0f}"
        machine = f"{e.machine['cores']} cores, {e.machine['system']}, Python {e.machine['python']}"
        times = len(next(iter(e.this.values())))
        command = f"`python -m benchmarks {e.measure} --times {times} --keep`"
        return f"| {e.date} | {e.commit[:8]} | {machine} | {load} | {times} | {command} |"


@dataclass(frozen=True)
class Curve:
    name: str  # The name of the picture's file.
    title: str
    x_label: str
    unit: str
    figures: tuple[str, ...]
    measures: Mapping[float, str]

    def points(self, entries: Sequence[Entry], figure: str) -> list[Point]:
        found = []
        for x, measure in sorted(self.measures.items()):
            entry = next((e for e in reversed(entries) if e.measure == measure and figure in e.this), None)
            if entry:
                found.append(Point(x, statistics.median(entry.this[figure]), entry))
        return found


def robots(prefix: str, *counts: int) -> dict[float, str]:
    return {count: f"{prefix}-{count}" for count in counts}


ANSWERS = robots("answers", 10, 100, 300, 1000)
CROWDS = robots("crowd", 10, 1000, 10_000)
HOSTED = robots("hosted", 10, 100, 1000)
MODELS = {size: f"model-{size:g}-MB" for size in (0.02, 1.0, 10.0, 45.0, 180.0)}
CPU = Curve(
    "answer-cpu", "CPU of a coordinator for an answer of 20 kB, all threads", "robots, all of them asked", "ms",
    ("coordinator's CPU an answer",), ANSWERS,
)  # fmt: skip
SECONDS = Curve(
    "answer-seconds", "From the ask to the last answer of 20 kB", "robots, all of them asked", "s",
    ("from the ask to the last answer",), ANSWERS,
)  # fmt: skip
OVERHEAD = Curve(
    "answer-bytes", "Bytes on the wire and on the coordinator's disk, over those of arrays",
    "robots, all of them asked", "", ("wire / payload", "written / payload"), ANSWERS,
)  # fmt: skip
BROADCAST = Curve(
    "broadcast-bytes", "A model of 212 kB to all, and another back: bytes on the wire over those of arrays", "robots",
    "", ("down: wire / payload", "wire / payload"), robots("broadcast", 100, 1000),
)  # fmt: skip
CROWD = Curve(
    "crowd-memory", "Peak of a coordinator", "connected robots; 10 are asked (of 10,000 robots: 1,000)", "MB",
    ("coordinator's peak",), CROWDS,
)  # fmt: skip
HOSTED_MEMORY = Curve(
    "hosted-memory", "Memory (PSS) of devices in shared processes, with coordinator and broker", "devices", "MB",
    ("memory of all",), HOSTED,
)  # fmt: skip
HOSTED_CPU = Curve(
    "hosted-cpu", "CPU of one device's round of 53,002 parameters, 600 samples: all in",
    "devices in shared processes", "ms", ("CPU a device's round",), HOSTED,
)  # fmt: skip
MODEL_MEMORY = Curve(
    "model-memory", "Peaks in a round of two devices", "megabytes of the model", "MB",
    ("coordinator's peak", "device's peak"), MODELS,
)  # fmt: skip
MODEL_SECONDS = Curve(
    "model-seconds", "A round of two devices, one step of training", "megabytes of the model", "s",
    ("seconds a round",), MODELS,
)  # fmt: skip
CURVES = (CPU, SECONDS, OVERHEAD, BROADCAST, CROWD, HOSTED_MEMORY, HOSTED_CPU, MODEL_MEMORY, MODEL_SECONDS)


def main() -> None:
    entries = history.read()
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_figures(page, entries), encoding="utf-8")
    for curve in taken(entries):
        (IMAGES / f"scale-{curve.name}.svg").write_text(picture(curve, entries) + "\n", encoding="utf-8")


def taken(entries: Sequence[Entry]) -> list[Curve]:
    """Return the curves that have at least one point."""
    return [curve for curve in CURVES if curve.points(entries, curve.figures[0])]


def with_figures(page: str, entries: Sequence[Entry]) -> str:
    sections = {"curves": curves, "ends": ends, "fleet": fleet}
    return SECTION.sub(lambda match: f"{match[1]}\n{sections[match['name']](entries)}\n\n{match[3]}", page)


def number(value: float, unit: str = "") -> str:
    digits = 0 if value >= 100 or value == 0 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}".rstrip()


def picture(curve: Curve, entries: Sequence[Entry]) -> str:
    several = len(curve.figures) > 1
    points = {name: [(p.x, p.value) for p in curve.points(entries, name)] for name in curve.figures}
    lines = [
        ChartLine(name if several else "", points[name], colour, marked=True)
        for name, colour in zip(curve.figures, COLOURS, strict=False)
    ]
    drawn = line_picture(
        lines, number, curve.x_label, curve.title, x_format=lambda x: f"{x:,g}", log_x=True
    ).svg(WIDE)
    head, rest = drawn.split(">", 1)
    return f"{head}>{STYLE}{rest}"


def curves(entries: Sequence[Entry]) -> str:
    return "\n\n".join(one_curve(curve, entries) for curve in taken(entries))


def one_curve(curve: Curve, entries: Sequence[Entry]) -> str:
    series = [curve.points(entries, figure) for figure in curve.figures]
    unit = f" ({curve.unit})" if curve.unit else ""
    lines = [
        f"### {curve.title}{unit}", "", f"![{curve.title}](images/scale-{curve.name}.svg)", "",
        f"| {curve.x_label} | {' | '.join(curve.figures)} | date | commit | machine | load | times | command |",
        f"|{'---|' * (len(series) + 7)}",
    ]  # fmt: skip
    for together in zip(*series, strict=True):
        values = " | ".join(number(point.value) for point in together)
        lines.append(f"| {together[0].x:,g} | {values} {together[0].row}")
    return "\n".join(lines)


@dataclass(frozen=True)
class Costs:
    """The cost of one more update, robot or device, computed from the measured points."""

    answer_ms: float
    wire: float  # Bytes on the wire divided by bytes of arrays.
    written: float
    coordinator_base_mb: float
    connected_kb: float
    hosted_base_mb: float
    hosted_mb: float
    hosted_ms: float
    model_coordinator: float  # Megabytes of the coordinator's peak memory for each megabyte of the model.
    model_device: float


def costs(entries: Sequence[Entry]) -> Costs:
    coordinator, connected = straight(CROWD.points(entries, "coordinator's peak"))
    base, hosted = straight(HOSTED_MEMORY.points(entries, "memory of all"))
    return Costs(
        answer_ms=last(CPU, entries), wire=last(OVERHEAD, entries),
        written=last(OVERHEAD, entries, "written / payload"), coordinator_base_mb=coordinator,
        connected_kb=1000 * connected, hosted_base_mb=base, hosted_mb=hosted, hosted_ms=last(HOSTED_CPU, entries),
        model_coordinator=straight(MODEL_MEMORY.points(entries, "coordinator's peak"))[1],
        model_device=straight(MODEL_MEMORY.points(entries, "device's peak"))[1],
    )  # fmt: skip


def straight(points: Sequence[Point]) -> tuple[float, float]:
    """Return the value at x = 0 and the slope of the line through the first and the last point."""
    first, last = points[0], points[-1]
    slope = (last.value - first.value) / (last.x - first.x)
    return first.value - slope * first.x, slope


def last(curve: Curve, entries: Sequence[Entry], figure: str = "") -> float:
    """Return the value at the largest x that was measured."""
    return curve.points(entries, figure or curve.figures[0])[-1].value


def ends(entries: Sequence[Entry]) -> str:
    c = costs(entries)
    uplink = 60e6 / 8 / (c.wire * ANSWER_BYTES)
    return table(
        ("resource", "unit cost", "where it ends"),
        ("a coordinator's CPU (one event loop)", f"{number(c.answer_ms, 'ms')} for each answer of 20 kB",
         f"{1000 / c.answer_ms:,.0f} answers per second and core"),
        ("a coordinator's memory",
         f"{number(c.coordinator_base_mb, 'MB')}, and {number(c.connected_kb, 'kB')} for each connected robot",
         f"{1e6 / c.connected_kb:,.0f} robots per gigabyte"),
        ("a coordinator's memory for a large model",
         f"at its peak, {number(c.model_coordinator)} times the model", ""),
        ("a coordinator's disk", f"{number(c.written)} times the payload",
         f"{human_bytes(c.written * ANSWER_BYTES)} for an answer of 20 kB"),
        ("the wire", f"{number(c.wire)} times the payload",
         f"{uplink:,.0f} answers of 20 kB per second at 60 Mbit/s"),
        ("memory of hosted devices", f"{number(c.hosted_mb, 'MB')} for each device",
         f"{1000 / c.hosted_mb:,.0f} devices per gigabyte"),
        ("CPU of hosted devices, coordinator and broker", f"{number(c.hosted_ms, 'ms')} for one round of a device",
         f"{1000 / c.hosted_ms:,.0f} such rounds per second and core"),
        ("a device's memory for a large model", f"at its peak, {number(c.model_device)} times the model", ""),
    )  # fmt: skip


def fleet(entries: Sequence[Entry]) -> str:
    c = costs(entries)
    payload, quiet = FLEET * ANSWER_BYTES, QUIET_SECONDS * (LEAST_OF_QUIET + 1) / 2
    coordinator = 1e6 * c.coordinator_base_mb + 1e3 * c.connected_kb * FLEET
    hosted = 1e6 * (c.hosted_base_mb + c.hosted_mb * FLEET)
    return table(
        (f"for {FLEET:,} devices", ""),
        ("the coordinator's memory, all connected", human_bytes(coordinator)),
        (
            "the coordinator's CPU in a round if all answer",
            f"{FLEET * c.answer_ms / 1000:,.0f} s of one core",
        ),
        ("the coordinator's CPU in a round if 1,000 are asked", f"{c.answer_ms:,.1f} s"),
        ("answers of 20 kB from all devices, on the wire", human_bytes(c.wire * payload)),
        ("the coordinator's writes for these answers", human_bytes(c.written * payload)),
        ("connections and open files of the broker", f"{FLEET:,}"),
        (
            f"hellos of devices that are not asked (each device sends one in {quiet:.0f} s)",
            f"{FLEET / quiet:,.0f} per second",
        ),
        ("simulation in shared processes: memory", human_bytes(hosted)),
        (
            "simulation: CPU of a round, with coordinator and broker",
            f"{FLEET * c.hosted_ms / 3.6e6:,.2f} core hours",
        ),
    )


def table(head: Sequence[str], *rows: Sequence[str]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


if __name__ == "__main__":
    main()
