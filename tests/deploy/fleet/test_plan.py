"""A plan turns the facts of hosts into steps."""

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


def test_a_board_out_of_its_box_gets_everything_in_order():
    assert names(jetson(), present=InstalledSettings()) == ALL


def test_a_board_that_is_as_it_shall_be_gets_nothing():
    assert names(jetson(installed=deployed())) == []


def test_other_software_is_switched_to_between_two_questions():
    other = replace(WANTED, release="e" * 16)
    assert names(jetson(installed=deployed()), other) == [
        "ship", "build", "switch", "drain", "start", "health", "soak", "record",
    ]  # fmt: skip


def test_other_settings_need_no_other_software():
    other = replace(WANTED, settings="f" * 16)
    assert names(jetson(installed=deployed()), other) == [
        "configure", "switch", "drain", "start", "health", "soak", "record",
    ]  # fmt: skip


@pytest.mark.parametrize("change", [{"tls": "old"}, {"tls": ""}, {"roots": "old"}, {"coordinator": "old"}])
def test_what_the_federation_has_renewed_is_installed_while_the_device_runs(change):
    assert names(jetson(installed=deployed(**change))) == ["enrol"]


@pytest.mark.parametrize(
    "service",
    [
        Service(),
        Service("inactive", "dead", True),
        Service("failed", "failed", True),
        Service("active", "running", False, 77, 0, RELEASE, MARK),  # not started at the next boot
        Service("active", "running", True, 77, 0, "e" * 16, MARK),  # switched but never started
        Service("active", "running", True, 77, 0, RELEASE, "e" * 16),  # another unit
    ],
)
def test_a_process_that_is_not_what_was_installed_is_started_again(service):
    steps = names(jetson(installed=deployed(service=service)))
    assert [s for s in steps if s != "drain"] == ["start", "health"]
    assert ("drain" in steps) == (service.active == "active")


def test_a_process_with_settings_of_before_is_started_again():
    assert names(jetson(installed=deployed()), present=InstalledSettings(SETTINGS, 6)) == [
        "drain",
        "start",
        "health",
    ]


def test_a_device_that_has_lost_its_broker_is_looked_at_and_not_touched():
    here = deployed()
    here = replace(here, status=replace(here.status, connected=False))
    assert names(jetson(installed=here)) == ["health"]


def test_what_never_served_a_round_is_not_good_yet():
    older = KnownGood("e" * 16, SETTINGS, WANTED.unit, "eve@desk", 1)
    for good in (None, older):
        assert names(jetson(installed=deployed(good=good))) == ["health", "soak", "record"]


def test_settings_that_our_root_has_not_signed_are_replaced():
    assert names(jetson(installed=deployed()), present=InstalledSettings())[0] == "configure"


def test_what_has_failed_here_before_is_not_tried_again_unless_it_is_forced():
    here = deployed(good=None, blocked=frozenset({f"{RELEASE}-{SETTINGS}"}))
    (refused,) = plan(jetson(installed=here), WANTED, [], PRESENT)
    assert isinstance(refused, RefuseHost) and "use --force" in describe(refused)
    assert names(jetson(installed=here), force=True) == ["health", "soak", "record"]


def test_what_was_rolled_back_by_hand_is_not_said_to_have_failed():
    key = f"{RELEASE}-{SETTINGS}"
    here = deployed(good=None, blocked=frozenset({key}), rolled_back=frozenset({key}))
    (refused,) = plan(jetson(installed=here), WANTED, [], PRESENT)
    words = describe(refused)
    assert "was rolled back by hand on this device" in words and "--force" in words and "failed" not in words


@pytest.mark.parametrize(
    ("sub", "restarts", "age", "over", "healthy"),
    [
        ("running", 0, 5, "", True),
        ("running", 1, 86_400, "", True),  # its crash was long ago
        ("running", 7, 5, "", False),  # it is connected only for the moment
        ("running", 0, 5, "the coordinator refuses this device", False),  # it is about to end
        ("auto-restart", 3, 5, "", False),
    ],
)
def test_a_device_that_ends_again_and_again_is_not_healthy_while_it_is_up(sub, restarts, age, over, healthy):
    here = deployed(service=Service("active", sub, True, 77, restarts, RELEASE, MARK))
    facts = jetson(installed=replace(here, status=replace(here.status, started=NOW - age, over=over)))
    cells, well = status_cells("board-7", facts, WANTED)
    assert (is_healthy(facts), well) == (healthy, healthy)
    assert ("ends again and again" in cells[3]) == (sub == "auto-restart" or restarts == 7)


def test_a_device_that_is_not_fit_is_not_touched_and_all_reasons_are_said():
    bad = [
        Check("disk", "FAIL", "0.1 GB are free", "make room"),
        Check("root", "FAIL", "user id 5", "be root"),
    ]
    (refused,) = plan(jetson(), WANTED, [*bad, Check("clock", "WARN", "drifts", "ntp")], PRESENT)
    words = describe(refused)
    assert "disk: 0.1 GB are free; make room" in words and "root" in words and "drifts" not in words


def test_wherever_a_deployment_breaks_off_the_next_plan_is_the_rest_of_it():
    """The test makes the facts that each step leaves behind, one step after the other."""
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


def test_a_fleet_changes_in_waves_behind_a_canary():
    assert waves(["a"], 1, 0.1) == [["a"]]
    assert waves(["a", "b", "c"], 1, 0.1) == [["a"], ["b", "c"]]
    many = [f"board-{i}" for i in range(40)]
    assert [len(wave) for wave in waves(many, 1, 0.1)] == [1, 4, 35]
    assert sum(waves(many, 2, 0.5), []) == many
    assert waves([], 1, 0.1) == []
