"""A change that every device installs, but that lowers the accuracy, is not deployed to a second wave."""

import http.server
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from prometheus_client import generate_latest

from protofleet.coordinator.observe.metrics import Metrics
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.deploy.fleet.accuracy import (
    AccuracyCheck,
    MetricsReading,
    fetch_metrics,
    parse_metrics,
    worst_drop,
)
from protofleet.deploy.fleet.deploy_log import DeployLog
from protofleet.deploy.fleet.rollout import HostOutcome, Rollout
from protofleet.deploy.fleet.settings import RolloutSettings
from protofleet.runtime.command.errors import RunError
from tests.support.small_federation import simulation

URL = "http://coordinator:9100/metrics"
CARE = RolloutSettings(accuracy_drop=0.05, metrics=URL, soak_seconds=10.0)
DIGITS, STREET = ("mnist", "test", "global", ""), ("svhn", "test", "global", "")


def check_of(*readings, care=CARE):
    """Return a check that sees one reading after the other, and the last one from then on."""
    waiting, clock = list(readings), SimpleNamespace(now=0.0)

    def look(url):
        assert url == URL
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]

    def sleep(seconds):
        clock.now += seconds

    return AccuracyCheck(care, look, lambda: clock.now, sleep)


def reading(rounds, digits, street=0.5):
    return MetricsReading({"": rounds}, {DIGITS: digits, STREET: street})


@contextmanager
def exporter(text):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *words):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()


def test_only_an_accuracy_drop_above_the_limit_is_reported_with_its_domain():
    assert worst_drop(reading(1, 0.9), reading(2, 0.86), 0.05) == ""
    words = worst_drop(reading(1, 0.9, 0.5), reading(2, 0.8, 0.3), 0.05)
    assert words == "accuracy of svhn (test, global) has fallen from 0.500 to 0.300, by more than 0.05"
    assert worst_drop(MetricsReading({"": 1}, {DIGITS: 0.9}), MetricsReading({"": 2}, {}), 0.05) == "", (
        "a domain without a measurement has no drop"
    )


def test_accuracy_is_judged_when_all_devices_have_measured_twice():
    check = check_of(reading(7, 0.9), reading(9, 0.9), reading(9, 0.2), reading(10, 0.2), reading(11, 0.9))
    check.record_baseline()
    assert check.judge() == (True, "")
    check = check_of(reading(7, 0.9), reading(9, 0.9), reading(10, 0.9), reading(11, 0.7))
    check.record_baseline()
    good, words = check.judge()
    assert not good and "from 0.900 to 0.700" in words


def of_two(red, blue, digits):
    """Return a reading of two runs, of which blue has the given accuracy; a round of None is a run that is over."""
    rounds = {name: round for name, round in (("red", red), ("blue", blue)) if round is not None}
    found = {"red": 0.9, "blue": digits}
    return MetricsReading(rounds, {("mnist", "test", "global", name): found[name] for name in rounds})


def test_each_run_of_a_queue_is_judged_by_its_own_accuracies():
    readings = [
        of_two(7, 3, 0.9),
        of_two(8, 3, 0.9),
        of_two(9, 3, 0.9),
        of_two(10, 4, 0.9),
        of_two(11, 5, 0.2),
    ]
    check = check_of(of_two(7, 3, 0.9), *readings)
    check.record_baseline()
    good, words = check.judge()
    assert not good and words.startswith(
        "accuracy of mnist (test, global, blue) has fallen from 0.900 to 0.200"
    )


def test_a_run_of_a_queue_that_ends_during_a_deployment_is_not_judged():
    check = check_of(of_two(7, 3, 0.9), of_two(8, None, 0), of_two(9, None, 0), of_two(10, None, 0))
    check.record_baseline()
    assert check.judge() == (True, "")


def test_metrics_are_read_for_each_run_of_a_queue_that_is_not_over():
    ratio = 'protofleet_accuracy_ratio{domain="mnist",split="test",view="global",run="%s"} %s\n'
    rounds, over = (
        'protofleet_accuracy_round{run="%s"} %d\n',
        'protofleet_run_over{how="finished",run="%s"} %d\n',
    )
    runs = (("red", 0.9, 7, 0), ("blue", 0.5, 3, 1))
    text = "".join(ratio % (n, a) + rounds % (n, r) + over % (n, o) for n, a, r, o in runs)
    assert parse_metrics(text) == MetricsReading({"red": 7}, {("mnist", "test", "global", "red"): 0.9})


def test_a_domain_without_new_measurements_is_named_and_not_judged():
    check = check_of(
        reading(7, 0.9), reading(8, 0.9), *(MetricsReading({"": n}, {DIGITS: 0.9}) for n in (9, 10))
    )
    check.record_baseline()
    assert check.judge() == (True, "accuracy of svhn is no longer measured, and was not judged")


def test_a_run_without_progress_is_not_judged_and_a_note_states_it():
    check = check_of(reading(7, 0.9))
    check.record_baseline()
    assert check.judge() == (
        True,
        "some devices have not measured 2 times within 10 s: accuracy was not judged",
    )


def test_the_check_counts_from_zero_after_a_restart_of_the_coordinator():
    check = check_of(reading(7, 0.9), reading(7, 0.9), reading(0, 0.9), reading(1, 0.1))
    check.record_baseline()
    assert not check.judge()[0]


def test_a_check_without_accuracy_drop_reads_no_metrics():
    check = check_of(reading(1, 0.0), care=RolloutSettings())
    check.record_baseline()
    assert check.judge() == (True, "")


def test_the_check_reads_the_metrics_that_a_coordinator_exports(tmp_path):
    run = simulation(tmp_path, "fedavg")
    metrics = Metrics(run.service.run.view)
    keep_journal(run.service.run, [metrics])
    run.run()
    with exporter(generate_latest(metrics.registry)) as url:
        found = fetch_metrics(url)
    assert found.rounds == {"": run.service.run.machine.rounds + 1}  # and the final evaluation
    assert found.accuracy and all(0 <= value <= 1 for value in found.accuracy.values())


@pytest.mark.parametrize("text", [b"no metrics {", b"protofleet_accuracy_ratio 0.5\n"])
def test_the_error_for_an_address_without_accuracy_metrics_names_the_settings(text):
    with (
        exporter(text) as url,
        pytest.raises(RunError, match=r"has no metrics of accuracy.*care\.metrics.*accuracy_drop"),
    ):
        fetch_metrics(url)
    with pytest.raises(RunError, match="has no metrics of accuracy"):
        fetch_metrics("http://127.0.0.1:1/metrics")


@pytest.mark.parametrize(
    ("drop", "metrics", "words"),
    [(2.0, URL, "at least 0 and at most 1"), (0.1, "", "needs the coordinator's metrics")],
)
def test_invalid_settings_of_the_accuracy_check_are_refused(drop, metrics, words):
    with pytest.raises(ValueError, match=words):
        RolloutSettings(accuracy_drop=drop, metrics=metrics)


def rollout_of(tmp_path, monkeypatch, check):
    monkeypatch.setattr(Rollout, "check", lambda self, ssh: None)
    monkeypatch.setattr(Rollout, "deploy", lambda self, ssh: HostOutcome(ssh, 3))
    made = Rollout(
        SimpleNamespace(care=CARE, hosts=dict.fromkeys("abc", SimpleNamespace(role="device"))),
        None,
        DeployLog(tmp_path / "log"),
        lambda name, words: None,
    )
    made.accuracy = check
    return made


@pytest.mark.parametrize(("after", "touched"), [(0.9, ["a", "b", "c"]), (0.1, ["a"])])
def test_a_canary_that_lowers_the_accuracy_stops_the_rollout(tmp_path, monkeypatch, after, touched):
    check = check_of(reading(7, 0.9), *(reading(i, after) for i in range(8, 20)))
    made = rollout_of(tmp_path, monkeypatch, check)
    assert [outcome.name for outcome in made.run({name: name for name in "abc"})] == touched
    assert bool(made.stopped) == (touched == ["a"])
    log = (tmp_path / "log").read_text() if (tmp_path / "log").exists() else ""
    assert ('"step": "accuracy"' in log) == (touched == ["a"])


def test_missing_metrics_after_a_wave_stop_the_rollout_and_keep_its_outcomes(tmp_path, monkeypatch):
    def gone(url):
        raise RunError(f"{url} has no metrics of accuracy")

    check = check_of(reading(7, 0.9))
    made = rollout_of(tmp_path, monkeypatch, check)
    check.record_baseline()
    check.fetch, check.record_baseline = gone, lambda: None
    assert [outcome.name for outcome in made.run({name: name for name in "abc"})] == ["a"]
    assert "has no metrics of accuracy" in made.stopped
