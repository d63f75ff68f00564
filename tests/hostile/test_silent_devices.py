"""The delay that a device which only sends hellos causes for the other devices."""

import logging
import statistics
import time

import pytest

from protofleet.coordinator.round.policy import Policy
from tests.hostile.device import honest
from tests.hostile.federation import Federation

log = logging.getLogger(__name__)
WORK_SECONDS = 1.0


NAMES = ("one", "two", "three", "four")


def works(task):
    time.sleep(WORK_SECONDS)  # The duration of a training; it does not wait for an event.
    return honest(task)


def seconds_of_six_rounds(folder, devices, work_of_the_last):
    """Return six times the seconds of the median round, because a stalled machine stalls in one of them."""
    with Federation(folder, *devices, rounds=6) as f:  # All other settings are the defaults.
        *others, last = devices
        raw = [f.raw(name, works) for name in others]
        raw.append(f.raw(last, work_of_the_last, again=15.0))
        coordinator = f.coordinator()
        assert f.wait_for_end(coordinator, 240) == 0, f.last_words()
        assert [len(line["participants"]) for line in f.rounds()][1:] == [3] * 6
        return 6 * statistics.median(line["seconds"] for line in f.rounds()[:6])


def test_a_silent_device_of_four_makes_six_rounds_at_most_three_times_as_long(tmp_path):
    without = seconds_of_six_rounds(tmp_path / "three", NAMES[:3], works)
    beside = seconds_of_six_rounds(tmp_path / "four", NAMES, lambda task: None)
    log.warning("%.1f s without, %.1f s beside it: %.2f times", without, beside, beside / without)
    assert beside <= 3 * without, (beside, without)


def takes(seconds, *rounds):
    """Return work that takes these seconds in these rounds, or in all."""

    def work(task):
        if task.phase == "train" and (task.round in rounds or not rounds):
            time.sleep(seconds)  # The duration of a training.
        return honest(task)

    return work


def participants(f):
    return [line["participants"] for line in f.rounds()]


@pytest.mark.parametrize("number", [1, 2])
def test_a_restarted_coordinator_does_not_wait_the_patience_for_a_silent_device(tmp_path, number):
    """Two answers are ready by then, and one device works.

    No device waits 600 s, and the working device is not cut off.
    """
    with Federation(tmp_path, *NAMES, rounds=2, policy=Policy(gather=4, grace_seconds=8.0)) as f:
        quick = [f.raw(name) for name in ("one", "two")]
        slow = f.raw("three", takes(8.0, number))
        f.raw("four", lambda task: None if task.round >= number else honest(task))
        coordinator = f.coordinator()
        slow.wait("task", lambda h: h.header["round"] == number)
        coordinator.kill()
        began = time.monotonic()
        again = f.coordinator()
        assert f.wait_for_end(again, 150) == 0, f.last_words()
        assert {"one", "two", "three"} <= set(participants(f)[number - 1]), participants(f)
        assert time.monotonic() - began < 120.0 and all(device.verdicts() for device in quick)


def test_a_device_that_is_silent_in_the_last_evaluation_does_not_delay_the_end(tmp_path):
    # On a loaded machine the devices that answer at once may need more than half a second. They have 8 s here, and
    # the end waits no longer.
    policy = Policy(gather=4, straggler_seconds=8.0)
    with Federation(tmp_path, *NAMES, rounds=2, policy=policy) as f:
        for name in NAMES[:3]:
            f.raw(name)
        f.raw("four", lambda task: None if task.phase == "evaluate" else honest(task))
        assert f.wait_for_end(f.coordinator(), 60) == 0, f.last_words()
        assert participants(f) == [sorted(NAMES), sorted(NAMES), ["one", "three", "two"]]


def test_devices_that_answer_at_once_do_not_exclude_the_slower_half(tmp_path):
    with Federation(tmp_path, *NAMES, rounds=2, policy=Policy(gather=4)) as f:
        for name in NAMES:
            f.raw(name, honest if name in NAMES[:2] else takes(3.0))
        assert f.wait_for_end(f.coordinator(), 60) == 0, f.last_words()
        assert participants(f) == [sorted(NAMES)] * 3
