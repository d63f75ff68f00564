"""A plan computes the steps of a deployment from the facts of the hosts."""

from dataclasses import replace

import pytest

from protofleet.deploy.fleet.checks import Check
from protofleet.deploy.fleet.device.facts import KnownGood, Service
from protofleet.deploy.fleet.plan import InstalledSettings, RefuseHost, describe, is_healthy, name_of, plan
from protofleet.deploy.fleet.rollout import waves
from protofleet.deploy.fleet.status import status_cells
from tests.deploy.fleet.boards import GOOD, MARK, NOW, RELEASE, SETTINGS, WANTED, deployed, jetson

PRESENT = InstalledSettings(SETTINGS, 5)
ALL = ["prepare", "ship", "build", "enrol", "configure", "switch", "start", "health", "soak", "record"]


def names(facts, wanted=WANTED, present=PRESENT, checks=(), force=False):
    return [name_of(step) for step in plan(facts, wanted, list(checks), present, force)]


def test_a_new_board_gets_all_steps_in_order():
    assert names(jetson(), present=InstalledSettings()) == ALL


def test_a_board_in_the_desired_state_gets_no_steps():
    assert names(jetson(installed=deployed())) == []


def test_new_software_is_switched_before_the_drain():
    other = replace(WANTED, release="e" * 16)
    assert names(jetson(installed=deployed()), other) == [
        "ship", "build", "switch", "drain", "start", "health", "soak", "record",
    ]  # fmt: skip


def test_new_settings_are_deployed_without_shipping_software():
    other = replace(WANTED, settings="f" * 16)
    assert names(jetson(installed=deployed()), other) == [
        "configure", "switch", "drain", "start", "health", "soak", "record",
    ]  # fmt: skip


@pytest.mark.parametrize("change", [{"tls": "old"}, {"tls": ""}, {"roots": "old"}, {"coordinator": "old"}])
def test_renewed_certificates_and_records_are_installed_without_a_restart(change):
    assert names(jetson(installed=deployed(**change))) == ["enrol"]


@pytest.mark.parametrize(
    "service",
    [
        Service(),
        Service("inactive", "dead", True),
        Service("failed", "failed", True),
        Service(
            "active", "running", False, 77, 0, RELEASE, MARK
        ),  # The service does not start at the next boot.
        Service(
            "active", "running", True, 77, 0, "e" * 16, MARK
        ),  # The release was switched, but the service was not started.
        Service("active", "running", True, 77, 0, RELEASE, "e" * 16),  # The service runs with another unit.
    ],
)
def test_a_service_that_differs_from_the_installed_release_is_started_again(service):
    steps = names(jetson(installed=deployed(service=service)))
    assert [s for s in steps if s != "drain"] == ["start", "health"]
    assert ("drain" in steps) == (service.active == "active")


def test_a_service_that_runs_with_older_settings_is_restarted():
    assert names(jetson(installed=deployed()), present=InstalledSettings(SETTINGS, 6)) == [
        "drain",
        "start",
        "health",
    ]


def test_a_device_without_its_broker_gets_only_a_health_check():
    here = deployed()
    here = replace(here, status=replace(here.status, connected=False))
    assert names(jetson(installed=here)) == ["health"]


def test_a_release_that_is_not_known_good_gets_health_and_soak():
    older = KnownGood("e" * 16, SETTINGS, WANTED.unit, "eve@desk", 1)
    for good in (None, older):
        assert names(jetson(installed=deployed(good=good))) == ["health", "soak", "record"]


def test_settings_without_a_signature_of_the_root_are_replaced():
    assert names(jetson(installed=deployed()), present=InstalledSettings())[0] == "configure"


def test_a_blocked_release_is_refused_without_force():
    here = deployed(good=None, blocked=frozenset({f"{RELEASE}-{SETTINGS}"}))
    (refused,) = plan(jetson(installed=here), WANTED, [], PRESENT)
    assert isinstance(refused, RefuseHost) and "use --force" in describe(refused)
    assert names(jetson(installed=here), force=True) == ["health", "soak", "record"]


def test_a_refusal_after_a_manual_rollback_does_not_state_a_failure():
    key = f"{RELEASE}-{SETTINGS}"
    here = deployed(good=None, blocked=frozenset({key}), rolled_back=frozenset({key}))
    (refused,) = plan(jetson(installed=here), WANTED, [], PRESENT)
    words = describe(refused)
    assert "was rolled back by hand on this device" in words and "--force" in words and "failed" not in words


@pytest.mark.parametrize(
    ("sub", "restarts", "age", "over", "healthy"),
    [
        ("running", 0, 5, "", True),
        ("running", 1, 86_400, "", True),  # Its crash was long ago.
        ("running", 7, 5, "", False),  # The device is connected only at this moment.
        ("running", 0, 5, "the coordinator refuses this device", False),  # It will end soon.
        ("auto-restart", 3, 5, "", False),
    ],
)
def test_a_device_that_restarts_repeatedly_is_not_healthy(sub, restarts, age, over, healthy):
    here = deployed(service=Service("active", sub, True, 77, restarts, RELEASE, MARK))
    facts = jetson(installed=replace(here, status=replace(here.status, started=NOW - age, over=over)))
    cells, well = status_cells("board-7", facts, WANTED)
    assert (is_healthy(facts), well) == (healthy, healthy)
    assert ("ends again and again" in cells[3]) == (sub == "auto-restart" or restarts == 7)


def test_a_host_that_fails_checks_is_refused_with_all_reasons():
    bad = [
        Check("disk", "FAIL", "0.1 GB are free", "make room"),
        Check("root", "FAIL", "user id 5", "be root"),
    ]
    (refused,) = plan(jetson(), WANTED, [*bad, Check("clock", "WARN", "drifts", "ntp")], PRESENT)
    words = describe(refused)
    assert "disk: 0.1 GB are free; make room" in words and "root" in words and "drifts" not in words


def test_the_plan_after_an_interrupted_deployment_has_the_remaining_steps():
    """The test makes the facts that a host has after each step."""
    shipped = {"user": True, "good": None, "service": Service(), "status": None}
    stages = [
        (
            deployed(**shipped, release="", complete=frozenset(), settings=b"", unit="", tls=""),
            InstalledSettings(),
            ALL[1:],
        ),
        (deployed(**shipped, release="", settings=b"", unit="", tls=""), InstalledSettings(), ALL[3:]),
        (deployed(**shipped, release="", settings=b"", unit=""), InstalledSettings(), ALL[4:]),
        (deployed(**shipped), PRESENT, ALL[6:]),
        (deployed(good=None), PRESENT, ALL[7:]),
        (deployed(good=GOOD), PRESENT, []),
    ]
    for installed, present, rest in stages:
        assert names(jetson(installed=installed), present=present) == rest


def test_a_fleet_is_deployed_in_waves_after_a_canary():
    assert waves(["a"], 1, 0.1) == [["a"]]
    assert waves(["a", "b", "c"], 1, 0.1) == [["a"], ["b", "c"]]
    many = [f"board-{i}" for i in range(40)]
    assert [len(wave) for wave in waves(many, 1, 0.1)] == [1, 4, 35]
    assert sum(waves(many, 2, 0.5), []) == many
    assert waves([], 1, 0.1) == []
