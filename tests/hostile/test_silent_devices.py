"""A device that says hello and nothing else, among others: what it costs them."""

import time

import pytest

from tests.hostile.device import honest
from tests.hostile.federation import Federation

WORK_SECONDS = 1.0


def works(task):
    time.sleep(WORK_SECONDS)  # what a training takes; it is no wait for anything
    return honest(task)


def seconds_of_six_rounds(folder, devices, work_of_the_last):
    with Federation(folder, *devices, rounds=6) as f:  # and no other setting
        *others, last = devices
        raw = [f.raw(name, works) for name in others]
        raw.append(f.raw(last, work_of_the_last, again=15.0))
        coordinator = f.coordinator()
        assert f.wait_for_end(coordinator, 240) == 0, f.last_words()
        began = min(h.at for device in raw for h in device.heard if h.kind == "task")
        ended = max(h.at for device in raw for h in device.heard if h.kind == "finished")
        assert [len(line["participants"]) for line in f.rounds()][1:] == [3] * 6
        return ended - began


@pytest.mark.slow
def test_one_silent_device_of_four_costs_six_rounds_no_three_times_their_time(tmp_path):
    names = ("one", "two", "three", "four")
    without = seconds_of_six_rounds(tmp_path / "three", names[:3], works)
    beside = seconds_of_six_rounds(tmp_path / "four", names, lambda task: None)
    assert beside <= 3 * without, (beside, without)
