"""A hostile broker can exclude an honest device for a limited time.

It publishes on the topic of that device, or under invented names.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from protofleet.coordinator.round.policy import Policy
from tests.hostile.federation import Federation

HOUR = 3600.0


def noise(f: Federation) -> bytes:
    return b"x"


def repeat(f: Federation) -> bytes:
    """Return a frame that two has signed and sent before."""
    assert f.proxy
    return f.proxy.frames("update", "two")[0].data


def banned(f: Federation) -> bool:
    return bool(f.metrics().get("protofleet_banned_devices"))


def takes_part(f: Federation, name: str) -> Callable[[], bool]:
    begun = len(f.rounds())
    return lambda: any(name in line["participants"] for line in f.rounds()[begun:])


@pytest.mark.parametrize("words", [noise, repeat], ids=["noise", "repeats"])
def test_an_honest_device_that_a_hostile_broker_got_banned_takes_part_again_after_the_ban(tmp_path, words):
    rules = Policy(quorum=1, grace_seconds=1.0)
    with Federation(tmp_path, "one", "two", taken_over=True, rounds=100_000, policy=rules) as f:
        assert f.proxy
        first = f.coordinator()
        f.raw("one"), f.raw("two")
        f.wait_until(lambda: len(f.rounds()) >= 2 and f.proxy.frames("update", "two"), "rounds")
        for _ in range(3000):
            f.proxy.tell("coordinator", f"protofleet/1/{f.name}/up/two", words(f))
        f.wait_until(
            lambda: " UTC, or until you run `protofleet unban two" in f.log_of(first), "two to be banned"
        )
        assert banned(f)
        first.kill()
        begun = len(f.rounds())
        second = f.coordinator(ahead=HOUR - 600.0)
        # The first of them may have been open when two was banned; then the answer of two counts in it.
        f.wait_until(lambda: len(f.rounds()) >= begun + 3, "rounds after the restart")
        assert banned(f) and "two" not in f.rounds()[-1]["participants"]
        second.kill()
        third = f.coordinator(ahead=HOUR + 60.0)
        f.wait_until(takes_part(f, "two"), "two to take part again")
        assert not banned(f) and "Traceback" not in f.log_of(third)


def test_frames_of_a_broker_under_invented_names_cause_one_pause_and_no_internal_error(tmp_path):
    with Federation(tmp_path, "one", "two", taken_over=True, rounds=100_000, policy=Policy(quorum=2)) as f:
        assert f.proxy
        coordinator = f.coordinator()
        f.raw("one"), f.raw("two")
        f.wait_until(lambda: len(f.rounds()) >= 2, "rounds")
        begun = len(f.rounds())
        for topic in ["nobody"] * 3000 + [f"n{i}" for i in range(3000)]:
            f.proxy.tell("coordinator", f"protofleet/1/{f.name}/dev/{topic}/state", bytes(60))
        paused = "too many frames arrive under names that are not enrolled: such frames are dropped for 60 s"
        f.wait_until(lambda: paused in f.log_of(coordinator), "the strangers to be paused")
        f.wait_until(lambda: dropped(f) > 3000, "their frames to be dropped")
        f.wait_until(lambda: len(f.rounds()) >= begun + 3, "rounds after that")
        log = f.log_of(coordinator)
        assert "Traceback" not in log and log.count(paused) == 1
        assert f.metrics()["protofleet_peers_cut_off_total"] == 0 and not banned(f)


def dropped(f: Federation) -> float:
    return sum(value for name, value in f.metrics().items() if "rejected" in name and '"banned"' in name)
