"""Make the panels of a Grafana dashboard as plain dicts, and arrange them.

This module knows nothing about our metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

Panel = dict[str, Any]
Query = tuple[str, str]  # A PromQL expression, and the legend for its series.

SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS: Final = 24  # The number of columns in Grafana's grid.
SCHEMA: Final = 39  # The version of the dashboard schema in Grafana 11.


def time_series(
    title: str,
    unit: str,
    *queries: Query,
    description: str = "",
    stacked: bool = False,
    width: int = 8,
    floor: float | None = None,
) -> Panel:
    """Return a panel of values over time. If `stacked` is true, the values are drawn as parts of stacked bars."""
    custom = {
        "drawStyle": "bars" if stacked else "line",
        "fillOpacity": 60 if stacked else 8,
        "lineWidth": 1 if stacked else 2,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
    }
    defaults = _field(unit, custom=custom) | ({} if floor is None else {"min": floor})
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return _panel("timeseries", title, description, width, 8, queries, defaults, options)


def stat(
    title: str,
    unit: str,
    *queries: Query,
    description: str = "",
    warn: float | None = None,
    width: int = 4,
    bad_below: bool = False,
) -> Panel:
    """Return a panel of the present value. The value is red if it is above `warn`.

    If `bad_below` is true, the value is red if it is below `warn`.
    """
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if warn is not None:
        first, then = ("red", "green") if bad_below else ("green", "red")
        steps = [{"color": first, "value": None}, {"color": then, "value": warn}]
    defaults = _field(unit) | {"thresholds": {"mode": "absolute", "steps": steps}}
    options = {
        "colorMode": "value", "graphMode": "area", "justifyMode": "auto", "orientation": "auto", "textMode": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "values": False},
    }  # fmt: skip
    return _panel("stat", title, description, width, 4, queries, defaults, options)


def bar_gauge(title: str, unit: str, *queries: Query, description: str = "") -> Panel:
    """Return a panel with the present values of all series, with one bar for each series."""
    defaults = _field(unit) | {"min": 0}
    options = {
        "displayMode": "basic", "orientation": "horizontal", "showUnfilled": True,
        "reduceOptions": {"calcs": ["lastNotNull"], "values": False},
    }  # fmt: skip
    return _panel("bargauge", title, description, 8, 8, queries, defaults, options)


def table(
    title: str,
    unit: str,
    query: str,
    description: str = "",
    width: int = 12,
    hide: Iterable[str] = (),
    largest_first: bool = True,
) -> Panel:
    """Return a panel with a table: a row for each series, and a column for each label."""
    options = {
        "showHeader": True,
        "cellHeight": "sm",
        "sortBy": [{"displayName": "Value", "desc": largest_first}],
    }
    panel = _panel(
        "table", title, description, width, 8, [(query, "")], _field(unit, custom={"align": "auto"}), options
    )
    panel["targets"][0] |= {"instant": True, "range": False, "format": "table"}
    hidden = dict.fromkeys(["Time", "__name__", *hide], True)
    panel["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
    return panel


def dashboard(
    uid: str, title: str, description: str, variables: list[dict[str, Any]], panels: list[Panel]
) -> dict[str, Any]:
    return {
        "uid": uid, "title": title, "description": description, "tags": ["protofleet"], "schemaVersion": SCHEMA,
        "editable": False, "graphTooltip": 1, "refresh": "10s", "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "links": [
            {
                "type": "dashboards", "title": "protofleet", "tags": ["protofleet"], "icon": "external link",
                "asDropdown": False, "includeVars": True, "keepTime": True, "targetBlank": False, "tooltip": "",
                "url": "",
            }
        ],
        "templating": {"list": [data_source(), *variables]},
        "panels": list(lay_out(panels)),
    }  # fmt: skip


def data_source() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "hide": 0,
    }


def variable(name: str, label: str, query: str) -> dict[str, Any]:
    """Return a variable of the dashboard. With it, a user chooses one or more values of a label."""
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE, "query": query,
        "refresh": 2, "sort": 1, "multi": True, "includeAll": True, "allValue": ".*", "hide": 0,
        "current": {"selected": True, "text": "All", "value": "$__all"},
    }  # fmt: skip


def lay_out(panels: Iterable[Panel]) -> Iterator[Panel]:
    """Place the panels from left to right. If a panel does not fit into a row, it begins the next row."""
    x = y = tallest = 0
    for i, panel in enumerate(panels, 1):
        place = panel["gridPos"]
        if x + place["w"] > COLUMNS:
            x, y, tallest = 0, y + tallest, 0
        yield panel | {"id": i, "gridPos": place | {"x": x, "y": y}}
        x, tallest = x + place["w"], max(tallest, place["h"])


def _field(unit: str, custom: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"unit": unit, "color": {"mode": "palette-classic"}} | ({"custom": custom} if custom else {})


def _panel(
    kind: str, title: str, description: str, w: int, h: int, queries: Iterable[Query], defaults: dict[str, Any],
    options: dict[str, Any],
) -> Panel:  # fmt: skip
    targets = [
        {
            "refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expr, "legendFormat": called or "__auto",
            "editorMode": "code", "range": True, "instant": False,
        }
        for i, (expr, called) in enumerate(queries)
    ]  # fmt: skip
    return {
        "type": kind, "title": title, "description": description, "datasource": SOURCE,
        "gridPos": {"x": 0, "y": 0, "w": w, "h": h}, "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options,
    }  # fmt: skip
