"""Old messages under unchanged keys stay refused, after a renewal and after a clock was wrong once."""

import json
import signal
import time

import pytest

from protofleet.coordinator.round.policy import Policy
from protofleet.federation.enrol.authority import Authority
from protofleet.federation.enrol.lifecycle import renew
from protofleet.protocol.wire.names import COORDINATOR
from tests.hostile.federation import Federation
from tests.hostile.test_clocks import DAY, Dial, rejected, renewed
from tests.hostile.test_old_words import hellos, said_to, tell_again, until_connected
from tests.hostile.test_other_runs import held_in

ALONE = Policy(quorum=1, gather=1, settle_seconds=0.2, patience_seconds=600)


def run_on_disk(f):
    return json.loads((f.folder / "devices" / "real" / "device.json").read_text())["book"]["runs"][0]["run"]


def kept_of_an_earlier_run(f, ahead=0.0):
    spring, real = f.coordinator(name="spring", rounds=1, ahead=ahead), f.device("real", ahead=ahead)
    assert f.wait_for_end(spring) == 0 and f.wait_for_end(real) == 0, f.last_words()
    f.settings["name"] = "summer"
    return said_to(f, "real", "welcome")


def assert_stays_in_summer(f, device, kept):
    """Repeat all messages of the earlier run's coordinator to the device; check that it stays in this run."""
    tell_again(f, "real", kept)
    f.wait_until(
        lambda: "stale_epoch" in f.log_of(device) or run_on_disk(f) != "summer",
        "the device to get messages of spring",
    )
    assert run_on_disk(f) == "summer"


def byes_of(f, device):
    """End a device in order after a round, and return its byes."""
    f.wait_until(f.rounds, "a round")
    device.say(signal.SIGTERM)
    f.wait_for_end(device)
    byes = f.proxy.frames("bye", "real", down=False)
    assert byes
    return byes


def assert_have_a_stale_boot(f, coordinator, byes):
    """Repeat byes of an earlier start to the coordinator; check that no device leaves because of them."""
    left = f.log_of(coordinator).count("real leaves")
    for bye in byes:
        f.proxy.tell(COORDINATOR, bye.topic, bye.data)
    f.wait_until(
        lambda: rejected(f, "stale_boot") or f.log_of(coordinator).count("real leaves") > left,
        "the coordinator to get its bye again",
    )
    assert rejected(f, "stale_boot") and f.log_of(coordinator).count("real leaves") == left


def two_more_rounds(f):
    at = len(f.rounds())
    f.wait_until(lambda: len(f.rounds()) > at + 1, "two more rounds")


@pytest.mark.parametrize("restarted", [False, True])
def test_old_messages_of_an_ended_run_stay_refused_after_a_renewal_of_the_coordinator(tmp_path, restarted):
    with Federation(
        tmp_path, "real", taken_over=True, rounds=4, policy=ALONE, method={"name": "fedproto"}
    ) as f:
        kept = kept_of_an_earlier_run(f)
        assert kept
        summer = f.coordinator()
        (real,), held = held_in(f, 2, "real")
        f.wait_until(held, "the second round")
        renewed(f, COORDINATOR)
        renewed(f, "real")
        f.proxy.passes = lambda frame: not (frame.down and frame.party == "real")
        if restarted:
            real.kill()
            real, before = f.device("real"), hellos(f, "real")
            until_connected(f, "real", before + 1)
        assert_stays_in_summer(f, real, kept)
        f.proxy.passes = lambda frame: True
        (f.folder / "go").touch()
        assert f.wait_for_end(summer) == 0 and f.wait_for_end(real) == 0, f.last_words()


def test_an_old_bye_stays_refused_after_a_renewal_of_its_device(tmp_path):
    with Federation(tmp_path, "real", taken_over=True, rounds=100_000, policy=ALONE) as f:
        coordinator, first = f.coordinator(), f.device("real")
        byes = byes_of(f, first)
        f.device("real")
        two_more_rounds(f)
        renew(f.fleet.authority(), "real")
        assert_have_a_stale_boot(f, coordinator, byes)
        two_more_rounds(f)


def test_an_old_bye_stays_refused_when_the_clock_of_the_coordinator_is_set_back(tmp_path, monkeypatch):
    monkeypatch.setattr(Authority, "now", lambda self: int(time.time() - 5 * DAY))  # Makes the records older.
    clock = Dial(tmp_path / "clock", -2 * DAY)
    with Federation(tmp_path, "real", taken_over=True, rounds=100_000, policy=ALONE) as f:
        coordinator, first = f.coordinator(planted=clock.planted), f.device("real", ahead=-2 * DAY)
        byes = byes_of(f, first)
        clock.turn(0.0)
        f.device("real")
        two_more_rounds(f)
        clock.turn(-2 * DAY)
        assert_have_a_stale_boot(f, coordinator, byes)


def test_old_messages_of_an_ended_run_stay_refused_after_a_start_under_a_slow_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(Authority, "now", lambda self: int(time.time() - 5 * DAY))  # Makes the records older.
    with Federation(
        tmp_path, "real", taken_over=True, rounds=4, policy=ALONE, method={"name": "fedproto"}
    ) as f:
        kept = kept_of_an_earlier_run(f, ahead=-2.5 * DAY)
        assert kept
        summer = f.coordinator()
        (real,), held = held_in(f, 2, "real")
        f.wait_until(held, "the second round")
        f.proxy.passes = lambda frame: not (frame.down and frame.party == "real")
        for ahead in (-2 * DAY, 0.0):
            real.kill()
            before, real = hellos(f, "real"), f.device("real", ahead=ahead)
            until_connected(f, "real", before + 1)
        assert_stays_in_summer(f, real, kept)
        f.proxy.passes = lambda frame: True
        assert f.wait_for_end(summer) == 0 and f.wait_for_end(real) == 0, f.last_words()
