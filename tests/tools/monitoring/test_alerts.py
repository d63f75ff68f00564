"""Each alert is raised only by its cause: one table has the cases for the rule tests of Prometheus."""

import json
import re
import shutil
import subprocess

import pytest

from protofleet.cli.main import main
from tests.test_docs import sections
from tests.tools.monitoring.rule_tests import PROMTOOL, RULES, needs_promtool, run_promtool
from tools.pages import alerts

FOLDER = RULES.parent
RULES_TEXT = (RULES / "alerts.yml").read_text()
DAY = 86_400

# Rounds of 10 seconds: the buckets that the 95th percentile is taken from. One sample a minute.
ROUNDS = {
    'protofleet_round_duration_seconds_bucket{job="coordinator", le="8"}': "0x10000",
    'protofleet_round_duration_seconds_bucket{job="coordinator", le="16"}': "0+6x10000",
    'protofleet_round_duration_seconds_bucket{job="coordinator", le="+Inf"}': "0+6x10000",
}
SINCE = 'protofleet_round_since_timestamp_seconds{instance="c"}'
NEXT = 'protofleet_round_next_timestamp_seconds{instance="c"}'  # This metric is set in a pause.
PAUSED = 'protofleet_run_paused{instance="c"}'
SESSION = 'protofleet_coordinator_connected{instance="c"}'
PRESENT, QUORUM = 'protofleet_devices_present{instance="c"}', 'protofleet_quorum{instance="c"}'
STARTED = 'protofleet_start_timestamp_seconds{job="coordinator", instance="c"}'
UNCLEAN = 'protofleet_unclean_start_timestamp_seconds{job="coordinator", instance="c"}'
BROKER_END = 'protofleet_broker_certificate_expiry_timestamp_seconds{instance="%s"}'
INVITED = 'protofleet_round_invited{instance="c"}'
FINISHED, DIVERGED = (f'protofleet_run_over{{instance="c", how="{how}"}}' for how in ("finished", "diverged"))
RUN_INFO = 'protofleet_run_info{federation="%s", instance="%s"}'
SEEN = 'protofleet_device_last_seen_timestamp_seconds{instance="c", device="d1"}'
END = 'protofleet_certificate_expiry_timestamp_seconds{instance="c"}'
DISK = 'protofleet_disk_available_bytes{instance="c"}'
REJECTED = 'protofleet_rejected_total{job="coordinator", reason="%s"}'
LATE, GOOD = (f'protofleet_updates_total{{verdict="{verdict}"}}' for verdict in ("late", "accepted"))
CONNECTED, OUTBOX = (f'protofleet_device_{name}{{device="d1"}}' for name in ("connected", "outbox_answers"))
WIRE, TENSORS = (
    f'protofleet_message_{w}bytes_total{{job="coordinator", kind="weights"}}' for w in ("wire_", "")
)
VERSION = 'protofleet_build_info{version="%s", role="%s"}'
ACCURACY = 'protofleet_accuracy_ratio{split="test", domain="m", view="global"}'
UP = 'up{job="coordinator", instance="c"}'


# alert -> (series that raise it, series that do not, minutes after which the test looks)
CASES = {
    "RoundStalled": (
        {SINCE: "60x100", SESSION: "1x100", PRESENT: "2x100", QUORUM: "2x100", NEXT: "0x100", **ROUNDS},
        {SINCE: "0+60x9 600x90", SESSION: "1x100", PRESENT: "2x100", QUORUM: "2x100", NEXT: "0x9 86400x90", **ROUNDS},
        30,
    ),
    "QuorumLost": (
        {PRESENT: "1x100", QUORUM: "2x100", SESSION: "1x100"},
        {PRESENT: "2x100", QUORUM: "2x100", SESSION: "1x100"}, 30,
    ),
    "ParticipationDrop": (
        {'protofleet_participation_ratio{instance="c"}': "1x120 0.7x120", INVITED: "3x240"},
        {'protofleet_participation_ratio{instance="c"}': "1x120 0.9x120", INVITED: "3x240"}, 200,
    ),
    "LateAnswers": (
        {LATE: "0+1x100", GOOD: "0+2x100"},
        {LATE: "0+1x100", GOOD: "0+9x100"}, 90,
    ),
    "DomainAccuracyDrop": ({ACCURACY: "0.9x60 0.7x20"}, {ACCURACY: "0.9x60 0.85x20"}, 70),
    "BytesPerRoundAnomaly": (
        {'protofleet_round_wire_bytes{direction="up"}': "100x300 300x60"},
        {'protofleet_round_wire_bytes{direction="up"}': "100x300 150x60"}, 320,
    ),
    "RejectedUpdates": (
        {REJECTED % "bad_signature": "0x10 1x20"},
        {REJECTED % "late": "0x10 1x20", REJECTED % "unknown_sender": "0x10 1x20"}, 15,
    ),
    "UnknownSenders": ({REJECTED % "unknown_sender": "0x10 1x20"}, {REJECTED % "bad_signature": "0x10 1x20"}, 15),
    "ClockAhead": ({REJECTED % "boot_ahead": "0x10 1x20"}, {REJECTED % "stale_boot": "0x10 1x20"}, 15),
    "MessagesMissing": (
        {'protofleet_device_messages_missing{device="d1"}': "3x60"},
        {'protofleet_device_messages_missing{device="d1"}': "3x9 0 3x9 0 3x9 0 3x9 0x60"}, 45,
    ),
    "CoordinatorSilent": (
        {'protofleet_device_coordinator_silent{device="d1"}': "1x60", SESSION: "1x60"},
        {'protofleet_device_coordinator_silent{device="d1"}': "1x60", SESSION: "0x60"}, 15,
    ),
    "AnswerPutAside": (
        {"protofleet_answers_aside_total": "0x10 1x20"}, {"protofleet_answers_aside_total": "1x30"}, 15,
    ),
    "RoundTakenBack": (
        {"protofleet_rounds_taken_back_total": "0x10 1x20"}, {"protofleet_rounds_taken_back_total": "1x30"}, 15,
    ),
    "RoundsWithoutSum": (
        {"protofleet_rounds_without_sum_total": "0x10 1x2 2x2 3x20"},
        {"protofleet_rounds_without_sum_total": "0x10 1x2 2x40"}, 20,
    ),
    "FloodOfRejected": ({REJECTED % "flood": "0+120x60"}, {REJECTED % "flood": "0+30x60"}, 30),
    "TwoCoordinators": (
        {'protofleet_rejected_total{job="devices", reason="stale_epoch"}': "0x40 1x20", STARTED: "0x60"},
        {'protofleet_rejected_total{job="devices", reason="stale_epoch"}': "0x40 1x20", STARTED: "0x39 2340x20",
         RUN_INFO % ("a", "c"): "1x60", RUN_INFO % ("b", "e"): "1x60"}, 45,
    ),
    # The coordinator is stopped cleanly many times, for a backup, a restore and another method.
    "CoordinatorRestarting": (
        {UNCLEAN: "0x3 240x3 480x3 720x20"},
        {UNCLEAN: "0x3 240x3 480x30", STARTED: "0x3 240x3 480x3 720x20"}, 14,
    ),
    "RunDiverged": (
        {DIVERGED: "0x10 1 stale _x60", FINISHED: "0x11 stale _x60"},
        {DIVERGED: "0x11 stale _x60", FINISHED: "0x10 1 stale _x60"}, 60,
    ),
    "RunFailed": (
        {'protofleet_run_over{instance="c", run="red", how="failed"}': "0x10 1 stale _x60"},
        {'protofleet_run_over{instance="c", run="red", how="failed"}': "0x10 1x5 0x60", FINISHED: "0x10 1x60"}, 60,
    ),
    "BrokerDown": ({SESSION: "1x10 0x20", CONNECTED: "1x10 0x20"}, {SESSION: "1x10 0x20", CONNECTED: "1x30"}, 20),
    "CoordinatorCutOff": (
        {SESSION: "1x10 0x20", CONNECTED: "1x30"}, {SESSION: "1x10 0x20", CONNECTED: "1x10 0x20"}, 20,
    ),
    "BrokerCertificateExpiring": (
        {BROKER_END % "c": f"{20 * DAY}x200"},
        {BROKER_END % "c": f"{40 * DAY}x200", BROKER_END % "d1": f"{20 * DAY}x200"}, 90,
    ),
    "BrokerCertificateExpiringNow": (
        {BROKER_END % "c": f"{1 * DAY}x200"}, {BROKER_END % "c": f"{5 * DAY}x200"}, 90,
    ),
    "CertificateExpiring": ({END: f"{20 * DAY}x200"}, {END: f"{40 * DAY}x200"}, 90),
    "CertificateExpiringNow": ({END: f"{1 * DAY}x200"}, {END: f"{5 * DAY}x200"}, 90),
    "DeviceMissing": (
        {SEEN: "60x100", SESSION: "1x100", **ROUNDS}, {SEEN: "0+60x100", SESSION: "1x100", **ROUNDS}, 60,
    ),
    "DeviceCutOff": (
        {CONNECTED: "0x60", SESSION: "1x60"}, {CONNECTED: "0x60", SESSION: "0x60"}, 15,
    ),
    "DeviceHot": (
        {'protofleet_device_temperature_celsius{device="d1", zone="gpu"}': "90x60"},
        {'protofleet_device_temperature_celsius{device="d1", zone="gpu"}': "70x60"}, 15,
    ),
    "WillsNotDue": (
        {'protofleet_device_wills_total{device="d1", outcome="refuted"}': "0+1x100"},
        {'protofleet_device_wills_total{device="d1", outcome="left"}': "0+1x100"}, 60,
    ),
    "DeviceThrottled": (
        {'protofleet_device_throttled{device="d1"}': "1x60"},
        {'protofleet_device_throttled{device="d1"}': "1x5 0 1x5 0x60"}, 15,
    ),
    "TrainingDies": (
        {'protofleet_device_training_deaths_total{device="d1"}': "0x10 1x10 2x10 3x60"},
        {'protofleet_device_training_deaths_total{device="d1"}': "0x10 1x60"}, 40,
    ),
    "DeviceMemoryLow": (
        {'protofleet_device_memory_available_bytes{device="d1"}': "1000000x60"},
        {'protofleet_device_memory_available_bytes{device="d1"}': "1000000000x60"}, 15,
    ),
    "OutboxStuck": (
        {OUTBOX: "1x60", CONNECTED: "1x60"},
        {OUTBOX: "1x9 0 1x60", CONNECTED: "1x60"}, 22,
    ),
    "DiskFull": (
        {'protofleet_device_disk_full{instance="d1"}': "1x60"},
        {'protofleet_device_disk_full{instance="d1"}': "0x60", 'protofleet_disk_full{instance="c"}': "0x60"}, 15,
    ),
    "BudgetSpent": (
        {'protofleet_budget_devices_spent{instance="c", limit="run"}': "0x10 1x50"},
        {'protofleet_budget_devices_spent{instance="c", limit="run"}': "0x60"}, 15,
    ),
    "PrivacyBudgetNearlySpent": (
        {
            'protofleet_privacy_epsilon{instance="c", device="d1", unit="sample"}': "1x10 6.5x50",
            'protofleet_privacy_epsilon_limit{instance="c", unit="sample"}': "8x60",
        },
        {
            'protofleet_privacy_epsilon{instance="c", device="d1", unit="sample"}': "1x10 6.3x50",
            'protofleet_privacy_epsilon_limit{instance="c", unit="sample"}': "8x60",
        }, 15,
    ),
    "FilesDamaged": (
        {'protofleet_checkpoint_fallbacks_total{instance="c", what="snapshot"}': "1x60"},
        {'protofleet_checkpoint_fallbacks_total{instance="c", what="snapshot"}': "0x60",
         'protofleet_device_fallbacks{instance="d1"}': "0x60"}, 15,
    ),
    "OlderCopies": (
        {'protofleet_older_copies_total{instance="c", device="d1", whose="coordinator"}': "0x10 1x50"},
        {'protofleet_older_copies_total{instance="c", device="d1", whose="coordinator"}': "1x60"}, 30,
    ),
    "DeviceBanned": (
        {'protofleet_banned_devices{instance="c"}': "1x60"}, {'protofleet_banned_devices{instance="c"}': "0x60"}, 15,
    ),
    "OwnErrors": (
        {'protofleet_peers_cut_off_total{instance="c"}': "0x10 1x50"},
        {'protofleet_peers_cut_off_total{instance="c"}': "1x60",
         'protofleet_observer_errors_total{instance="c"}': "0x60"}, 30,
    ),
    "DiskWillFill": ({DISK: "8000000000-10000000x300"}, {DISK: "8000000000-100000x300"}, 240),
    "VersionSkew": (
        {VERSION % ("1", "device"): "1x3000", VERSION % ("2", "device"): "1x3000"},
        {VERSION % ("1", "device"): "1x3000", VERSION % ("1", "coordinator"): "1x3000"}, 1500,
    ),
    "BrokerDropping": (
        {WIRE: "0+150x100",
         TENSORS: "0+100x100"},
        {WIRE: "0+105x100",
         TENSORS: "0+100x100"}, 60,
    ),
    "CoordinatorAbsent": (
        {UP: "1x5 0x60", FINISHED: "0x5 stale _x60"},
        {UP: "1x5 0x60", FINISHED: "0x4 1 stale _x60"}, 30,
    ),
    "DevicesAbsent": ({'up{job="devices", device="d1"}': "0x60"}, {'up{job="devices", device="d1"}': "1x60"}, 30),
    "Watchdog": ({}, None, 1),
}  # fmt: skip


# A run of a queue, and a second run that makes progress.
BLUE, RED = ({name: one.replace("{", f'{{run="{run}", ', 1) for name, one in {
    "since": SINCE, "present": PRESENT, "quorum": QUORUM, "next": NEXT, "seen": SEEN, "over": FINISHED,
    "patience": 'protofleet_patience_seconds{instance="c"}', "info": RUN_INFO % ("a", "c"), "good": GOOD,
    "late": LATE, "full": 'protofleet_disk_full{instance="c"}',
}.items()} for run in ("blue", "red"))  # fmt: skip
QUEUE = 'protofleet_queue_runs{instance="c", state="finished"}'
GOES_ON = {
    SESSION: "1x100", RED["since"]: "0+60x100", BLUE["since"]: "60x100",
    **{one["patience"]: "60x100" for one in (RED, BLUE)}, **{one["quorum"]: "2x100" for one in (RED, BLUE)},
    RED["present"]: "2x100",
}  # fmt: skip
# More series that raise an alert, in the form of CASES.
LOUD = [
    ("RoundStalled", {**GOES_ON, BLUE["present"]: "2x100"}, 30),
    ("QuorumLost", {**GOES_ON, BLUE["present"]: "1x100"}, 30),
    ("LateAnswers", {BLUE["late"]: "0+1x100", BLUE["good"]: "0+2x100", RED["good"]: "0+90x100"}, 90),
    # This address had a coordinator of one run, whose run is over. Now it has a queue, and one of its runs is over.
    ("CoordinatorAbsent", {
        UP: "1x20 0x40", FINISHED: "0x4 1 stale _x60",
        **dict.fromkeys((RED["over"], QUEUE), "_x10 1x10 stale _x40"),
    }, 40),
]  # fmt: skip
# More series that do not raise an alert, in the form of CASES.
QUIET = [
    ("RoundStalled", {**GOES_ON, BLUE["present"]: "2x100", BLUE["over"]: "1x100"}, 30),
    ("DeviceMissing", {
        SESSION: "1x100", RED["seen"]: "0+60x100", BLUE["seen"]: "60x100", BLUE["over"]: "1x100", **ROUNDS,
    }, 60),
    ("DiskFull", {BLUE["full"]: "1x60", BLUE["over"]: "1x60"}, 15),
    ("TwoCoordinators", {RED["info"]: "1x60", BLUE["info"]: "1x60"}, 45),
    ("RoundStalled", {
        SINCE: "60x100", SESSION: "1x100", PRESENT: "2x100", QUORUM: "2x100", NEXT: "0x100", PAUSED: "0x5 1x95",
        **ROUNDS,
    }, 30),
]  # fmt: skip


def names():
    return re.findall(r"- alert: (\w+)", RULES_TEXT)


def test_every_alert_has_a_case():
    assert sorted(CASES) == sorted(names())


def test_every_alert_has_a_meaning_and_instructions():
    text = (RULES / "alerts.yml").read_text()
    for what in ("meaning", "look_at", "what_to_do"):
        assert text.count(f" {what}: ") >= len(names()) - 1, what  # Watchdog has no `look_at`.


def test_the_page_of_operations_has_the_alerts_of_the_rules():
    assert alerts.generate(alerts.PAGE.read_text()) == alerts.PAGE.read_text(), (
        "run python -m tools.pages.alerts"
    )


def test_every_alert_links_to_its_entry_in_the_page():
    links = re.findall(r"alert: (\w+)(?:(?!alert:).)*?runbook_url: \"(.*?)\"\n", RULES_TEXT, re.DOTALL)
    anchors = sections(alerts.PAGE)
    assert [name for name, _ in links] == names()
    for name, link in links:
        assert link == f"{{{{ or $externalLabels.runbooks `docs/operations.md` }}}}#{name.lower()}"
        assert name.lower() in anchors


@pytest.mark.slow
@needs_promtool
@pytest.mark.parametrize("page", ["", "https://wiki.example/operations.md"])
def test_the_alert_of_a_disk_has_its_free_space_and_the_link_to_its_entry(tmp_path, page):
    """The text does not contain the negative space that a prediction gives."""
    left = 8_000_000_000 - 240 * 10_000_000
    expected = {
        "summary": f"the disk of c has {left / 2**30:.4g}GiB left",
        "runbook_url": f"{page or 'docs/operations.md'}#diskwillfill",
    }
    found = alert_annotations(tmp_path, "DiskWillFill", {DISK: "8000000000-10000000x300"}, 240, page)
    assert {key: found[key] for key in expected} == expected


@pytest.mark.slow
@needs_promtool
@pytest.mark.parametrize(
    ("series", "words"),
    [
        ({**GOES_ON, BLUE["present"]: "2x100"}, "the run blue has made no progress for 29m 0s, more than"),
        (CASES["RoundStalled"][0], "the run has made no progress for 29m 0s, more than"),
    ],
)
def test_an_alert_about_a_run_of_a_queue_names_the_run(tmp_path, series, words):
    assert alert_annotations(tmp_path, "RoundStalled", series, 30, "")["summary"].startswith(words)


def alert_annotations(folder, name, series, minutes, page):
    """Return the annotations of an alert that a Prometheus with that page in its external labels would send."""
    test = {
        "interval": "1m", "external_labels": {"runbooks": page} if page else {},
        "input_series": [{"series": s, "values": v} for s, v in series.items()],
        "alert_rule_test": [{"eval_time": f"{minutes}m", "alertname": name, "exp_alerts": []}],
    }  # fmt: skip
    done = run_promtool(folder, [test])
    (said,) = re.findall(r"got:\[.*?Annotations:\{(.*)\}", done.stdout + done.stderr, re.DOTALL)
    return {key: json.loads(value) for key, value in re.findall(r'(\w+)=("(?:[^"\\]|\\.)*")', said)}


@needs_promtool
def test_prometheus_accepts_the_settings(tmp_path):
    copy = shutil.copytree(FOLDER, tmp_path / "prometheus")
    (copy / "targets").mkdir()
    (copy / "targets" / "devices.json").write_text('[{"targets": ["d1:9100"], "labels": {"device": "d1"}}]')
    done = subprocess.run(
        [PROMTOOL, "check", "config", str(copy / "prometheus.yml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@needs_promtool
@pytest.mark.parametrize("raised", [True, False], ids=["raises", "does_not_raise"])
def test_each_alert_is_raised_only_by_its_cause(tmp_path, raised):
    """An alert test of promtool compares all labels, but here only the name counts, so the test queries ALERTS."""
    cases = [
        (name, guilty if raised else innocent, minutes) for name, (guilty, innocent, minutes) in CASES.items()
    ]
    tests = []
    for name, series, minutes in [*cases, *(LOUD if raised else QUIET)]:
        if series is None:
            continue
        tests.append({
            "interval": "1m", "name": name,
            "input_series": [{"series": s, "values": v} for s, v in series.items()],
            "promql_expr_test": [{
                "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) > bool 0',
                "eval_time": f"{minutes}m",
                "exp_samples": [{"labels": "{}", "value": 1}] if raised else [],
            }],
        })  # fmt: skip
    done = run_promtool(tmp_path, tests)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


@needs_promtool
def test_prometheus_loads_rules_and_targets_with_the_settings_of_day_0(tmp_path):
    hosts = ("--broker", "10.0.0.10", "--coordinator", "10.0.0.10", "--device", "board-1=10.0.0.11")
    assert main(["init", str(tmp_path / "fleet"), *hosts]) == 0
    page = (RULES.parents[3] / "docs/day-0.md").read_text()
    (block,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (copied,) = re.findall(r"the rules\s+of\s+`(\S+)` in this checkout", page)
    config = tmp_path / "prometheus.yml"
    config.write_text(block)
    checked = [PROMTOOL, "check", "config", str(config)]
    shutil.copytree(RULES.parents[3] / copied, tmp_path / "rules")
    shutil.copy(tmp_path / "fleet/targets.json", tmp_path)
    done = subprocess.run(checked, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "2 rule files found" in said, said
    assert all(f"{tmp_path}/rules/{path.name}" in said for path in RULES.glob("*.yml")), said
    (tmp_path / "targets.json").write_text("{}")
    assert subprocess.run(checked, capture_output=True, check=False).returncode, "the targets are checked too"
