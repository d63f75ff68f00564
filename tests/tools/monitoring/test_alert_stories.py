"""Each event in a federation of real processes raises exactly the right alerts in a real Prometheus.

The samples are stretched over the hours that alerts wait for. Then the query of each panel runs on these samples.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from protofleet.coordinator.round.policy import Policy
from protofleet.edge_client.conversation.hello_timer import QUIET_SECONDS
from protofleet.edge_client.trainer.slots import Slots
from protofleet.federation.brokers.ports import free_port
from protofleet.federation.enrol import lifecycle
from tests.hostile.federation import Federation
from tests.tools.monitoring.prometheus import INTERVAL, PROGRAM, Prometheus
from tests.tools.monitoring.rule_tests import PROMTOOL
from tests.tools.monitoring.stories import Stage, changed, ended, metric_of, samples, stage, who_fires
from tools.monitoring.dashboards import DASHBOARDS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (PROMTOOL and PROGRAM), reason="no Prometheus here; make container-tools installs it"
    ),
]
ROUNDS, SECONDS_A_ROUND = 80, 0.25
DEVICES, DAY = ("d1", "d2", "d3"), 86_400.0
OWN_END, BROKERS_END = (
    f"protofleet_{whose}certificate_expiry_timestamp_seconds" for whose in ("", "broker_")
)


class Pace:
    """A control of the pace of rounds: rounds run only inside `going`, and not faster than the story needs.

    The devices share one slot to work in, and the control holds this slot at other times.
    """

    def __init__(self, folder: Path, rounds: Callable[[], int]) -> None:
        folder.mkdir()
        self._slot, self._rounds = (folder / "0.slot").open("w"), rounds
        fcntl.flock(self._slot, fcntl.LOCK_EX)
        self._going, self._over, self._seconds = threading.Event(), threading.Event(), 0.0
        self._thread = threading.Thread(target=self._keep)
        self._thread.start()

    @contextlib.contextmanager
    def going(self, seconds: float = SECONDS_A_ROUND) -> Iterator[None]:
        self._seconds = seconds
        self._going.set()
        yield
        self._going.clear()

    def end(self) -> None:
        self._over.set()
        self._going.set()
        self._thread.join()

    def _keep(self) -> None:
        while self._going.wait() and not self._over.is_set():
            before, began = self._rounds(), time.monotonic()
            fcntl.flock(self._slot, fcntl.LOCK_UN)
            while self._rounds() == before and self._going.is_set() and not self._over.wait(0.01):
                pass
            fcntl.flock(self._slot, fcntl.LOCK_EX)
            self._over.wait(max(0.0, began + self._seconds - time.monotonic()))
        fcntl.flock(self._slot, fcntl.LOCK_UN)


@dataclass
class Lived:
    """A federation after its end, with the stages that Prometheus has seen and can still be asked about."""

    prometheus: Prometheus
    run: Path
    stages: dict[str, Stage] = field(default_factory=dict)
    over: float = 0.0  # The time at which its first run was over.
    ended: float = 0.0

    def note(self, name: str) -> None:
        self.stages[name] = stage(self.prometheus)


@pytest.fixture(scope="module")
def lived(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stories")
    ports = {name: free_port() for name in ("coordinator", *DEVICES)}
    rules = Policy(quorum=2, gather=3, straggler_seconds=3.0)
    with contextlib.ExitStack() as ends:
        f = ends.enter_context(
            Federation(
                folder / "f",
                *DEVICES,
                rounds=ROUNDS,
                policy=rules,
                codec="off",
                metrics_port=ports["coordinator"],
            )
        )
        targets = {name: ports[name] for name in DEVICES}
        seen = ends.enter_context(Prometheus(folder / "prometheus", ports["coordinator"], targets))
        pace, never = (Pace(folder / name, lambda: len(f.rounds())) for name in ("slots", "no-slots"))
        ends.callback(pace.end)
        ends.callback(never.end)
        found = Lived(seen, f.run)
        live_through(f, found, pace, ports)
        yield found


def live_through(f, found, pace, ports):
    """Take the federation through all stages, one after the other, and note each one."""
    seen, slots = found.prometheus, Slots(str(f.folder.parent / "slots"), 1)
    devices = {n: f.device(n, metrics_port=ports[n], slots=slots, stays=True) for n in DEVICES}
    seen.wait_for("sum(protofleet_device_connected) == 3")  # No coordinator receives their hellos.
    coordinator = f.coordinator()
    seen.wait_for("protofleet_devices_present == 3 and protofleet_round == 1")
    found.note("the first round stands")

    def goes_on(name, rounds=1):
        with pace.going():
            seen.wait_for(
                f"protofleet_round > {len(f.rounds()) + rounds} and protofleet_coordinator_connected == 1"
            )
            seen.wait_until(lambda: shows_progress(found, name), f"a stage with progress, {name}")

    goes_on("running", rounds=5)
    coordinator.kill()
    seen.wait_for('up{job="coordinator"} == 0')
    found.note("without a coordinator")
    coordinator.start()
    seen.wait_for("protofleet_coordinator_connected == 1 and protofleet_devices_present == 3")
    seen.wait_for("sum(protofleet_device_outbox_answers) == 0")  # Answers without a receipt are sent again.
    found.note("stands after a restart")
    goes_on("running after a restart")
    devices["d1"].kill()
    seen.wait_for('up{device="d1"} == 0')
    devices["d1"].start()
    seen.wait_for('up{device="d1"} == 1 and protofleet_device_connected{device="d1"} == 1')
    goes_on("with a device that has come back")
    f.broker.kill()
    seen.wait_for("protofleet_coordinator_connected == 0 and on () (sum(protofleet_device_connected) == 0)")
    found.note("without a broker")
    f.broker.restart()
    seen.wait_for("protofleet_coordinator_connected == 1 and on () (sum(protofleet_device_connected) == 3)")
    goes_on("with the broker again")
    with pace.going(0.0):
        assert f.wait_for_end(coordinator, 90) == 0
    seen.wait_for('up{job="coordinator"} == 0')
    found.over = time.time()
    found.stages["its last words"] = last_words(found, up(ports["coordinator"]))
    found.note("over")
    f.coordinator(name="next", rounds=10_000)
    with pace.going():
        seen.wait_for('protofleet_round{job="coordinator"} > 2 and protofleet_devices_present == 3')
        seen.wait_until(lambda: shows_progress(found, "the next run"), "a stage with progress, the next run")
    seen.wait_for("changes(protofleet_round[1500ms]) == 0")  # All devices have a task, and no device works.
    devices["d3"].kill()
    lifecycle.revoke(f.fleet.authority(), "d3", "sold")
    # The new owner starts it without an answer, because a refused answer would raise another alert.
    f.device("d3", metrics_port=ports["d3"], slots=Slots(str(f.folder.parent / "no-slots"), 1), stays=True)
    with pace.going():
        seen.wait_for('protofleet_rejected_total{job="coordinator", reason="unknown_sender"} > 0')
        seen.wait_for(
            'protofleet_devices_present == 2 and on () protofleet_device_connected{device="d3"} == 1'
        )
        seen.wait_until(
            lambda: shows_progress(found, "with a revoked device", DEVICES[:2]),
            "a stage with progress, with a revoked device",
        )
    found.ended = time.time()


def shows_progress(found, name, devices=DEVICES):
    """Note the stage and tell whether its samples show a federation that works.

    A stage is repeated for up to an hour. On a busy machine a round can take longer than a stage: the stage then
    shows a round without progress and silent devices. An answer is on its way only for a part of each round,
    so an empty outbox must be seen in between.
    """
    found.note(name)

    def values(metric, **labels):
        ours = [f'{label}="{value}"' for label, value in labels.items()]
        return [
            [value for _, value in seen]
            for series, seen in found.stages[name].items()
            if metric_of(series) == metric and all(one in series for one in ours)
        ]

    outboxes = values("protofleet_device_outbox_answers")
    moving = values("protofleet_round_since_timestamp_seconds")
    for device in devices:
        moving += values("protofleet_device_last_seen_timestamp_seconds", device=device)
    assert len(moving) == 1 + len(devices), moving
    return all(min(seen) == 0.0 for seen in outboxes) and all(seen[0] < seen[-1] for seen in moving)


def last_words(found, up):
    """Return the last samples that were scraped from the coordinator, with the devices' samples from before."""
    others = {
        name: seen for name, seen in found.stages["with the broker again"].items() if 'job="devices"' in name
    }
    query = '{job="coordinator", __name__=~"protofleet_.*", __name__!~".*_created"}[20s]'
    return others | ended(samples(found.prometheus, query)) | {up: [(found.over, 1.0)]}


def up(port):
    return f'up{{instance="127.0.0.1:{port}", job="coordinator"}}'


STORIES = {
    "a run ends, and there is no coordinator until the next run": (
        [("with the broker again", 40), ("its last words", 1), ("over", 60), ("the next run", 40)], set(),
    ),
    "a coordinator dies during a run, and is not started again": (
        [("running", 30), ("without a coordinator", 30)], {"CoordinatorAbsent"},
    ),
    "a coordinator is started again": (
        [("running", 30), ("without a coordinator", 1), ("running after a restart", 60)], set(),
    ),
    "the first round stands": ([("the first round stands", 30)], {"RoundStalled"}),
    "a round stands after a restart": (
        [("running", 30), ("without a coordinator", 1), ("stands after a restart", 30)], {"RoundStalled"},
    ),
    "a device is started again": (
        [("running after a restart", 30), ("with a device that has come back", 60)], set(),
    ),
    "a revoked device still sends hellos": (
        [("the next run", 30), ("with a revoked device", 60)], {"UnknownSenders"},
    ),
    "the broker is down for some minutes": (
        [("with a device that has come back", 30), ("without a broker", 40), ("with the broker again", 60)],
        {"BrokerDown"},
    ),
}  # fmt: skip


def says_hello(minute: int) -> float:
    """Return the earliest time of the last message of a device that is alive but quiet.

    Such a device has nothing else to send, or it sends hellos during a round without progress.
    """
    return 60.0 * minute - QUIET_SECONDS


@pytest.mark.parametrize("name", STORIES)
def test_each_story_raises_exactly_its_alerts(lived, tmp_path, name):
    told, expected = STORIES[name]
    story = [(lived.stages[s], minutes) for s, minutes in told]
    hello = {"protofleet_device_last_seen_timestamp_seconds": says_hello} if "stands" in name else {}
    # On a busy machine, the round of a restart may take twice the bytes, because messages are sent again.
    allowed = {"BytesPerRoundAnomaly"} if "restart" in name else set()
    assert who_fires(tmp_path, story, hello) - allowed == {"Watchdog", *expected}


@pytest.mark.parametrize(
    ("days", "name", "expected"),
    [
        (20, OWN_END, {"CertificateExpiring"}),
        (1, OWN_END, {"CertificateExpiring", "CertificateExpiringNow"}),
        (20, BROKERS_END, {"BrokerCertificateExpiring"}),
        (1, BROKERS_END, {"BrokerCertificateExpiring", "BrokerCertificateExpiringNow"}),
        (40, BROKERS_END, set()),
    ],
)
def test_an_expiring_certificate_raises_the_alert_of_its_owner(lived, tmp_path, days, name, expected):
    running = lived.stages["running"]
    at = min(seen[0][0] for seen in running.values())
    assert who_fires(tmp_path, [(changed(running, name, at + days * DAY), 70)]) == {"Watchdog", *expected}


@pytest.mark.parametrize(("mib_a_minute", "expected"), [(4, {"DiskWillFill"}), (1, set())])
def test_only_a_disk_that_fills_within_a_day_raises_an_alert(lived, tmp_path, mib_a_minute, expected):
    line = {"protofleet_disk_available_bytes": lambda minute: (4096 - mib_a_minute * minute) * 2.0**20}
    assert who_fires(tmp_path, [(lived.stages["running"], 120)], line) == {"Watchdog", *expected}


def test_prometheus_raised_the_alerts_without_a_delay_during_the_run(lived):
    groups = lived.prometheus.ask("rules")["groups"]
    assert [rule["name"] for group in groups for rule in group["rules"] if rule["health"] != "ok"] == []
    raised = lived.prometheus.now('max_over_time(ALERTS{alertstate="firing"}[1h])')
    assert {one["metric"]["alertname"] for one in raised} == {"Watchdog", "UnknownSenders"}


def lines_of(run):
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def last(lived, metric):
    """Return the last value of each series of the first run, by its labels."""
    found = lived.prometheus.ask("query", query=f"last_over_time({metric}[1h])", time=str(lived.over))[
        "result"
    ]
    ours = ("__name__", "instance", "job")
    return {
        tuple(v for k, v in sorted(one["metric"].items()) if k not in ours): float(one["value"][1])
        for one in found
    }


def test_totals_cover_the_whole_run_although_its_coordinator_was_killed(lived):
    summary, lines = json.loads((lived.run / "summary.json").read_text()), lines_of(lived.run)
    for metric, total in (("run_bytes", "payload"), ("run_wire_bytes", "wire")):
        found = last(lived, f"protofleet_{metric}_total")
        expected = {(d, k, "fedavg"): n for d, kinds in summary[total].items() for k, n in kinds.items()}
        assert found == expected
    assert last(lived, "protofleet_round_duration_seconds_count") == {(): ROUNDS + 1}
    answered = sum(len(phase["answered"]) for line in lines for phase in line["phases"])
    assert last(lived, "protofleet_updates_total")["accepted",] == answered
    assert last(lived, "protofleet_rounds_repeated_total") == {(): sum(line["attempt"] for line in lines)}
    given = {"query": "resets(protofleet_run_bytes_total[1h]) > 0", "time": str(lived.over)}
    assert lived.prometheus.ask("query", **given)["result"] == [], "no counter was reset"


def test_the_last_scrape_has_the_last_evaluation_and_no_kinds_of_earlier_rounds(lived):
    evaluation = lines_of(lived.run)[-1]
    assert evaluation["kind"] == "evaluation"
    by_domain = {(d, "test", "global"): v for d, v in evaluation["accuracy"]["global"].items()}
    assert by_domain.items() <= last(lived, "protofleet_accuracy_ratio").items()
    shown = [name for name in lived.stages["its last words"] if metric_of(name) == "protofleet_round_bytes"]
    assert len(shown) == sum(len(kinds) for kinds in evaluation["payload"].values())


def panels():
    for name, dashboard in DASHBOARDS.items():
        for panel in dashboard()["panels"]:
            for target in panel["targets"]:
                yield pytest.param(name, panel, target, id=f"{name}: {panel['title']} {target['refId']}")


def as_its_source_asks(lived, target):
    """Return the answer to the query that Grafana's data source sends for a panel of about 200 points.

    The variables of the dashboard stand at "All", and Grafana's own variable has its value.
    """
    query = re.sub(r"\$(run|device|domain|view|method)\b", ".*", target["expr"])
    step = max(INTERVAL, round((lived.ended - lived.prometheus.began) / 200))
    query = query.replace("$__rate_interval", f"{max(step + INTERVAL, 4 * INTERVAL):g}s")
    assert "$" not in query, f"a variable of Grafana that is not replaced:  {query}"
    if target["instant"]:  # At the end of the time span of the panel.
        at = lived.ended
        return lived.prometheus.ask("query", query=query, time=str(at))["result"]
    times = {"start": str(lived.prometheus.began), "end": str(lived.ended), "step": str(step)}
    return lived.prometheus.ask("query_range", query=query, **times)["result"]


# Panels without values: this machine has no such sensor, and the run has no codec.
EMPTY = {
    'protofleet_budget_used_ratio{run=~"$run"}',
    'protofleet_budget_devices_spent{run=~"$run"}',
    'protofleet_privacy_epsilon{run=~"$run"} / on (instance, run, unit) group_left () '
    'protofleet_privacy_epsilon_limit{run=~"$run"}',
    'sum by (direction) (protofleet_uncoded_bytes_total{run=~"$run", method=~"$method"})',
    'max(protofleet_device_temperature_celsius{device=~"$device"})',
    'protofleet_device_temperature_celsius{device=~"$device"}',
}


@pytest.mark.parametrize(("name", "panel", "target"), list(panels()))
def test_each_panel_has_data(lived, name, panel, target):
    found = as_its_source_asks(lived, target)
    values = [float(v) for one in found for _, v in one.get("values", [one.get("value")])]
    if target["expr"] not in EMPTY:
        assert any(map(math.isfinite, values)), f"nothing to draw for {target['expr']}"


def expression(name, title, number=0):
    (panel,) = (p for p in DASHBOARDS[name]()["panels"] if p["title"] == title)
    return panel["targets"][number]


def test_fedavg_saves_no_bytes_compared_with_fedavg(lived):
    """FedAvg does not cost more either, except for messages that are sent again after a crash."""
    undisturbed = max(seen[-1][0] for seen in lived.stages["running"].values())
    for name in ("federation", "bytes"):
        for one in as_its_source_asks(lived, expression(name, "Saved against FedAvg")):
            assert {float(value) for at, value in one["values"] if at < undisturbed} == {0.0}, one["metric"]
            assert all(-0.1 < float(value) <= 0.0 for _, value in one["values"]), one["metric"]


def test_mean_accuracy_is_shown_for_each_view_separately(lived):
    found = as_its_source_asks(lived, expression("federation", "Mean accuracy"))
    assert {one["metric"]["view"] for one in found} == {"global", "personal"}


def shown_at(lived, title, at):
    """Return the values that a panel shows for the moment `at`, by device, direction and kind."""
    query = re.sub(r"\$(run|device|method)\b", ".*", expression("bytes", title)["expr"])
    found = lived.prometheus.ask("query", query=query, time=str(at))["result"]
    labels = ("device", "direction", "kind")
    return {tuple(one["metric"][name] for name in labels): float(one["value"][1]) for one in found}


def by_device(lines):
    """Return the bytes by device, direction and kind, summed over the lines of rounds.jsonl."""
    found = Counter()
    for line in lines:
        for device, ways in line["by_device"].items():
            for way, kinds in ways.items():
                found.update({(device, way, kind): size for kind, size in kinds.items()})
    return found


def test_bytes_by_device_equal_the_bytes_in_rounds_jsonl(lived):
    lines = lines_of(lived.run)
    for line in lines:
        total = Counter()
        for (_, way, kind), size in by_device([line]).items():
            total[way, kind] += size
        assert total == {(way, kind): n for way, kinds in line["wire"].items() for kind, n in kinds.items()}
    last_scrape = max(
        seen[-1][0] for seen in lived.stages["its last words"].values() if seen[-1][0] < lived.over
    )
    whole, single = (f"All bytes of {what}, by device, kind and direction" for what in ("the run", "a round"))
    assert shown_at(lived, whole, last_scrape) == by_device(lines), "although its coordinator was killed"
    assert shown_at(lived, single, last_scrape) == by_device(lines[-1:])
    scrapes = {
        at
        for seen_then in lived.stages.values()
        for name, seen in seen_then.items()
        for at, _ in seen
        if metric_of(name) == "protofleet_round_device_wire_bytes" and at < lived.over
    }
    rounds = [by_device([line]) for line in lines]
    shown = {at: shown_at(lived, single, at) for at in sorted(scrapes)}
    assert shown and {at: one for at, one in shown.items() if one not in rounds} == {}
    assert {device for device, *_ in by_device(lines)} >= {*DEVICES, "all devices"}
