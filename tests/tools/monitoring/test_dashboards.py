"""The dashboards fit Grafana's own types and query only metrics that the code exports."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.tools.pages.test_metrics_document import DOCUMENTED
from tools.monitoring.__main__ import FOLDER, generate
from tools.monitoring.dashboards import DASHBOARDS

COMPOSE = Path(__file__).parents[3] / "deploy" / "compose"
RECORDED = re.findall(r"record: (\S+)", (COMPOSE / "prometheus" / "rules" / "recording.yml").read_text())
SUFFIXES = ("_bucket", "_sum", "_count")


def texts():
    for name, page in DASHBOARDS.items():
        for panel in page()["panels"]:
            for target in panel["targets"]:
                yield f"{name}: {panel['title']}", target["expr"]
    for path in sorted((COMPOSE / "prometheus" / "rules").glob("*.yml")):
        yield path.name, path.read_text()


def missing(ours, theirs, where=""):
    """Return the places in `ours` that are missing or different in `theirs`; `theirs` may have more keys."""
    if isinstance(ours, dict):
        if not isinstance(theirs, dict):
            return [where]
        return [m for key, value in ours.items() for m in missing(value, theirs.get(key), f"{where}.{key}")]
    if isinstance(ours, list):
        if not isinstance(theirs, list) or len(ours) != len(theirs):
            return [where]
        return [m for i, (a, b) in enumerate(zip(ours, theirs)) for m in missing(a, b, f"{where}[{i}]")]
    return (
        []
        if ours == theirs or (ours is None and theirs is None)
        else [f"{where}: {ours!r} became {theirs!r}"]
    )


@pytest.fixture
def as_grafana_reads():
    """Return a function that reads a dashboard into Grafana's own types and writes it as JSON again."""
    if sys.version_info < (3, 11):
        pytest.skip(
            "grafana-foundation-sdk is for Python 3.11 and later, where the dashboards are held to it"
        )
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    return lambda page: json.loads(JSONEncoder().encode(Dashboard.from_json(page)))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_types_of_grafana_accept_every_key_of_a_dashboard(name, as_grafana_reads):
    ours = json.loads(generate()[f"{name}.json"])
    assert missing(ours, as_grafana_reads(ours)) == []


def test_a_key_that_grafana_does_not_know_is_found(as_grafana_reads):
    page = DASHBOARDS["fleet"]()
    page["panels"][4]["fieldConfig"]["defaults"]["custom"]["drawstyle"] = "line"
    page["refrsh"] = "10s"
    found = missing(page, as_grafana_reads(page))
    assert [m.split(":")[0] for m in found] == [".panels[4].fieldConfig.defaults.custom.drawstyle", ".refrsh"]


def test_the_dashboard_files_equal_the_generated_files():
    """If this fails, write the files again with `python -m tools.monitoring`."""
    assert {path.name: path.read_text() for path in FOLDER.glob("*.json")} == generate()


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_do_not_overlap_and_are_within_the_grid(name):
    taken = set()
    for panel in DASHBOARDS[name]()["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & taken and all(x < 24 for x, _ in cells), panel["title"]
        taken |= cells


def test_every_query_and_rule_uses_existing_metrics():
    known = {
        *DOCUMENTED,
        *RECORDED,
        *(name + s for name, (kind, _) in DOCUMENTED.items() if kind == "histogram" for s in SUFFIXES),
    }
    for where, text in texts():
        for name in re.findall(r"\bprotofleet[_:][\w:]+", text):
            assert name in known or name.rstrip(":") == "protofleet-", (
                f"{where} uses {name}, which no process exports"
            )


def test_every_query_uses_existing_labels():
    for where, text in texts():
        for name, inside in re.findall(r"\b(protofleet_\w+)\{([^}]*)\}", text):
            kind_and_labels = DOCUMENTED.get(name) or DOCUMENTED.get(re.sub("_(bucket|sum|count)$", "", name))
            assert kind_and_labels, name
            asked = set(re.findall(r"(\w+)\s*[=!]", inside))
            assert asked <= {*kind_and_labels[1], "job", "device", "instance", "run"}, (
                f"{where}: {name}{{{inside}}}"
            )


def test_each_panel_about_runs_shows_only_the_selected_runs():
    """A coordinator of one run has no label `run`: with all runs chosen, its series are shown too."""
    for name in ("federation", "bytes"):
        page = DASHBOARDS[name]()
        (run,) = (one for one in page["templating"]["list"] if one["name"] == "run")
        assert run["multi"] and run["includeAll"] and re.fullmatch(run["allValue"], "")
        for panel in page["panels"]:
            for target in panel["targets"]:
                for metric, inside in re.findall(r"\b(protofleet[_:][\w:]+)(\{[^}]*\})?", target["expr"]):
                    of_devices = 'job="devices"' in inside or metric == "protofleet:repeated_bytes:ratio"
                    assert 'run=~"$run"' in inside or of_devices, f"{panel['title']}: {metric}"
