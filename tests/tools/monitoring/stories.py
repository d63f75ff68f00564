"""Stretch samples of real processes, taken within seconds, over the minutes that alerts wait for.

A stage has the samples of some seconds. When it is stretched, a counter continues at the same speed,
a time that has changed keeps its distance from now, and all other series repeat their values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from tests.tools.monitoring.prometheus import Prometheus
from tests.tools.monitoring.rule_tests import run_promtool

SECONDS = 1.6  # length of a stage
EVERYTHING = '{job=~".+", __name__!~"scrape_.*|ALERTS.*|.*_created|protofleet:.*"}'
Samples: TypeAlias = Sequence[tuple[float, float]]  # time and value
Stage: TypeAlias = Mapping[str, Samples]  # series, as Prometheus writes it -> samples
Story: TypeAlias = Sequence[tuple[Stage, int]]  # each stage and its number of minutes


def stage(prometheus: Prometheus, seconds: float = SECONDS) -> Stage:
    """Return the stage that begins now."""
    prometheus.wait_for_scrapes(seconds)
    return samples(prometheus, f"{EVERYTHING}[{seconds * 1000:.0f}ms]")


def samples(prometheus: Prometheus, query: str) -> Stage:
    found = prometheus.now(query)
    return {written(one["metric"]): [(at, float(value)) for at, value in one["values"]] for one in found}


def ended(told: Stage) -> Stage:
    """Return the samples of the last scrape, which has one time for all series of a process."""
    newest = max(seen[-1][0] for seen in told.values())
    return {name: seen[-1:] for name, seen in told.items() if seen[-1][0] == newest}


def changed(told: Stage, metric: str, value: float) -> Stage:
    """Return the stage with this value in all series of the metric, of which there must be some."""
    ours = {name: [(at, value) for at, _ in seen] for name, seen in told.items() if metric_of(name) == metric}
    assert ours, metric
    return {**told, **ours}


def written(metric: Mapping[str, str]) -> str:
    labels = ", ".join(f'{k}="{v}"' for k, v in sorted(metric.items()) if k != "__name__")
    return f"{metric['__name__']}{{{labels}}}"


def metric_of(series: str) -> str:
    return series.partition("{")[0]


def drawn(name: str, story: Story) -> list[str]:
    """Return the values of one series, one a minute, as promtool writes them."""
    values: list[str] = []
    shown, raw = float("nan"), float("nan")  # The last value here, and its sample.
    for told, minutes in story:
        now, seen = 60.0 * len(values), told.get(name)
        if not seen:
            gone = values and values[-1] not in ("stale", "_")
            values += ["stale" if gone else "_"] + ["_"] * (minutes - 1)
            continue
        (began, first), (until, last) = seen[0], seen[-1]
        if re.search("_(total|count|sum|bucket)$", metric_of(name)):
            slope = (last - first) / (until - began) if until > began else 0.0
            begins = (
                shown + first - raw if first >= raw else first
            )  # Otherwise the counter was reset, or it is new.
            made = [begins + slope * 60 * i for i in range(minutes)]
        elif not metric_of(name).endswith("_timestamp_seconds"):
            made = [seen[i % len(seen)][1] for i in range(minutes)]
        elif first == last:
            made = [shown if last == raw else now - (began - first)] * minutes
        else:
            made = [now + 60 * i - (until - last) for i in range(minutes)]
        shown, raw = made[-1], last
        values += [f"{value:.6f}" for value in made]
    return values


def who_fires(
    folder: Path, story: Story, lines: Mapping[str, Callable[[int], float]] | None = None
) -> set[str]:
    """Return the names of all alerts that the shipped rules raise at any time of the story."""
    return {name for name, _ in which_fire(folder, story, lines)}


def which_fire(
    folder: Path, story: Story, lines: Mapping[str, Callable[[int], float]] | None = None
) -> set[tuple[str, str]]:
    """Return all alerts that the shipped rules raise at any time of the story, each with its run, or with "".

    `lines` gives a metric values that replace those of the story: a function from the minute to the value.
    """
    names = sorted({name for told, _ in story for name in told})
    minutes = sum(long for _, long in story)
    series = {name: " ".join(drawn(name, story)) for name in names}
    for metric, line in (lines or {}).items():
        ours = [name for name in names if metric_of(name) == metric]
        assert ours, metric
        series |= {name: " ".join(str(line(minute)) for minute in range(minutes)) for name in ours}
    return alerts_of(folder, series, minutes)


def alerts_of(folder: Path, series: Mapping[str, str], minutes: int) -> set[tuple[str, str]]:
    """Return the names of all alerts that are raised, each with its label `run`, or with "" if it has none."""
    query = f'group by (alertname, run) (max_over_time(ALERTS{{alertstate="firing"}}[{minutes}m]))'
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": f"{minutes}m", "exp_samples": []}],
    }
    done = run_promtool(folder, [test])
    assert "got:" in done.stdout + done.stderr, done.stdout + done.stderr
    found = (done.stdout + done.stderr).partition("got:")[2].replace("\\", "")
    return set(re.findall(r'alertname="(\w+)"(?:, run="([\w-]+)")?', found))
