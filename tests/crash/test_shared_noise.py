"""A device that crashes near the write of its masked vector with noise: the ledger names each vector that it sends.

Its noise stays the same within an attempt, so an attempt is one release, even if the device crashes several times.
"""

import random
import tempfile
from functools import lru_cache
from pathlib import Path

import pytest

from protofleet.protocol.settings.dp import DpSettings
from tests.crash.masked_world import masked_run
from tests.crash.points import FATES, SECOND
from tests.crash.world import DEVICES

VICTIM = DEVICES[1]
NOISE = {
    "fedavg": DpSettings("device", 8.0, 1e-4, 1.0, 10),
    "fedncm": DpSettings("sample", 8.0, 1e-4, 3.0, 10),
}
WINDOW = 12  # Steps of the device's disk and transport before its vector leaves.
SOME = 7  # Every seventh of them is in the quick test.


@lru_cache
def leaving_point(method):
    """Return the number of steps of the device when its masked vector leaves."""
    with tempfile.TemporaryDirectory() as folder:
        run = masked_run(Path(folder), method, dp=NOISE[method])

        def vector_has_left():
            return any(device == VICTIM for device, _, _ in run.vectors)

        run.run(vector_has_left)
        run.kill_all()
        return len(run.points[VICTIM].passed)


def faults(method, point, fate):
    """Return the faults of the ledgers after a crash at this point; an empty list means no faults."""
    deadly = {point, point + SECOND} if fate == "killed twice" else {point}
    dice = random.Random(point) if fate == "torn" else None
    power = {} if fate.startswith("killed") else {"power": True, "dice": dice}
    with tempfile.TemporaryDirectory() as folder:
        run = masked_run(Path(folder), method, {VICTIM: frozenset(deadly)}, dp=NOISE[method], **power)
        run.live()
        assert run.points[VICTIM].deaths >= 1
        return [*run.problems(), *wrong_ledgers(run)]


def wrong_ledgers(run):
    for device in DEVICES:
        ledger = run.agents[device].state.releases
        accepted = run.service.run.releases.releases(device)
        attempts = len({keys for name, keys, _ in run.vectors if name == device})
        if len(ledger) != attempts:
            yield f"{device} has masked vectors in {attempts} attempts, and its ledger names {len(ledger)}"
        if not accepted or accepted != ledger[-len(accepted) :]:
            yield f"the coordinator names {accepted} of {device}, and the device {ledger}"


def points(method):
    return range(leaving_point(method) - WINDOW, leaving_point(method) + 2)


@pytest.mark.parametrize("method", NOISE)
def test_both_ledgers_are_right_after_a_crash_near_the_write_of_a_masked_vector(method):
    for i, point in enumerate(points(method)[::SOME]):
        fate = list(FATES)[i % len(FATES)]
        assert faults(method, point, fate) == [], f"{fate} at point {point}"


@pytest.mark.slow
@pytest.mark.parametrize("method", NOISE)
@pytest.mark.parametrize("fate", FATES)
def test_both_ledgers_are_right_after_each_crash_near_the_write_of_a_masked_vector(fate, method):
    assert {point: words for point in points(method) if (words := faults(method, point, fate))} == {}
