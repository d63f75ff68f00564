"""The panels of a dashboard, drawn from Prometheus's answers, for people without a Grafana.

The picture differs from Grafana's, but it has the same queries, legends, units and places on the grid, as one page
of SVG and text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

CELL_W, CELL_H = 62, 36
COLOURS = (
    "#7eb26d",
    "#eab839",
    "#6ed0e0",
    "#ef843c",
    "#e24d42",
    "#1f78c1",
    "#ba43a9",
    "#705da0",
    "#508642",
    "#cca300",
)
Series = Sequence[Mapping[str, Any]]
STYLE = """body{background:#111217;color:#ccccdc;font:12px sans-serif;margin:8px}
.panel{position:absolute;background:#181b1f;border:1px solid #2c3036;overflow:hidden;padding:6px;
box-sizing:border-box}
.title{font-weight:bold;margin-bottom:4px} .big{font-size:24px} .legend span{margin-right:10px} td{padding:1px 8px}"""


def page(dashboard: Mapping[str, Any], answer: Callable[[str], Series]) -> str:
    drawn = [panel_html(panel, answer) for panel in dashboard["panels"]]
    return (
        f"<!doctype html><meta charset=utf-8><style>{STYLE}</style><h3>{escape(dashboard['title'])}</h3>"
        + "".join(drawn)
    )


def panel_html(panel: Mapping[str, Any], answer: Callable[[str], Series]) -> str:
    place = panel["gridPos"]
    unit = panel["fieldConfig"]["defaults"]["unit"]
    found = [
        (
            called(target["legendFormat"], series["metric"]),
            [(float(t), float(v)) for t, v in series["values"]],
        )
        for target in panel["targets"]
        for series in answer(target["expr"])
    ]
    w, h = place["w"] * CELL_W - 6, place["h"] * CELL_H - 6
    inside = (
        picture(found, unit, w - 14, h - 60)
        if panel["type"] == "timeseries"
        else values(found, unit, panel["type"])
    )
    box = f"left:{place['x'] * CELL_W + 8}px;top:{place['y'] * CELL_H + 50}px;width:{w}px;height:{h}px"
    return f'<div class=panel style="{box}"><div class=title>{escape(panel["title"])}</div>{inside}</div>'


def called(legend: str, metric: Mapping[str, str]) -> str:
    if legend == "__auto":
        return ", ".join(f"{k}={v}" for k, v in metric.items() if k != "__name__") or metric.get(
            "__name__", "value"
        )
    return re.sub(r"\{\{(\w+)\}\}", lambda m: metric.get(m[1], ""), legend)


def picture(found: Sequence[tuple[str, list[tuple[float, float]]]], unit: str, w: int, h: int) -> str:
    points = [p for _, line in found for p in line if p[1] == p[1]]
    if not points:
        return "<b style='color:#e24d42'>No data</b>"
    t0, t1 = min(t for t, _ in points), max(t for t, _ in points)
    low, high = min(0.0, *(v for _, v in points)), max(v for _, v in points) or 1.0
    svg = []
    for i in range(5):
        y, value = h - i * h / 4, low + i * (high - low) / 4
        svg.append(
            f'<line x1=0 x2={w} y1={y} y2={y} stroke="#2c3036"/>'
            f'<text x=0 y={y - 2} fill="#888" font-size=9>{said(value, unit)}</text>'
        )
    legend = []
    for i, (name, line) in enumerate(found):
        colour = COLOURS[i % len(COLOURS)]
        at = " ".join(
            f"{(t - t0) / ((t1 - t0) or 1) * w:.1f},{h - (v - low) / ((high - low) or 1) * h:.1f}"
            for t, v in line
            if v == v
        )
        svg.append(f'<polyline points="{at}" fill=none stroke="{colour}" stroke-width=1.5 />')
        legend.append(f'<span><b style="color:{colour}">&#9644;</b> {escape(name)}</span>')
    drawn = f'<svg width={w} height={h} style="overflow:visible">{"".join(svg)}</svg>'
    return f"{drawn}<div class=legend>{''.join(legend)}</div>"


def values(found: Sequence[tuple[str, list[tuple[float, float]]]], unit: str, kind: str) -> str:
    if not found:
        return "<b style='color:#e24d42'>No data</b>"
    rows = [(name, line[-1][1]) for name, line in found if line]
    if kind == "stat":
        return " ".join(f"<span class=big>{said(v, unit)}</span> {escape(name)}" for name, v in rows)
    most = max(v for _, v in rows) or 1.0
    bar = "<td><div style='background:#7eb26d;height:10px;width:{:.0f}px'></div>"
    cells = "".join(
        f"<tr><td>{escape(n)}<td>{said(v, unit)}{bar.format(200 * v / most) if kind == 'bargauge' else ''}"
        for n, v in rows
    )
    return f"<table>{cells}</table>"


def said(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{value:.1%}"
    if unit in ("bytes", "Bps"):
        for word in ("B", "KiB", "MiB", "GiB"):
            if abs(value) < 1024 or word == "GiB":
                return f"{value:.1f} {word}" + ("/s" if unit == "Bps" else "")
            value /= 1024
    if unit == "s":
        return f"{value / 86400:.1f} d" if abs(value) > 2 * 86400 else f"{value:.1f} s"
    return f"{value:.4g}" + (" °C" if unit == "celsius" else "")
