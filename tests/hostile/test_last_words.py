"""A broker that loses the last messages of a run, and one that repeats refusals that it has kept."""

import pytest

from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.round.policy import Policy
from tests.hostile.federation import Federation
from tests.hostile.test_old_words import over, said_to, tell_again, until_connected

ALONE = Policy(quorum=1, gather=1, settle_seconds=0.2)
BOTH = Policy(quorum=2, gather=2, settle_seconds=0.2)


def hellos(f, device):
    return len(f.proxy.frames("hello", device, down=False))


def test_repeated_old_refusals_do_not_end_a_later_start_of_the_device(tmp_path):
    with Federation(tmp_path, "real", taken_over=True, rounds=1, policy=ALONE) as f:
        strict = f.coordinator(name="strict", limits=CoordinatorLimits(examples=1))
        # The broker keeps each refusal and delivers none.
        f.proxy.passes = lambda frame: not (frame.down and frame.kind == "refusal")
        for number in (1, 2):
            refused = f.device("real")
            f.wait_until(lambda n=number: len(said_to(f, "real", "refusal")) >= n, "a refusal")
            refused.kill()
        strict.kill()
        f.proxy.passes = lambda frame: True
        kept = said_to(f, "real", "refusal")
        before, again = hellos(f, "real"), f.device("real")  # It may be connected before the next line runs.
        until_connected(f, "real", before + 1)
        # Each refusal comes after the hello that the one before it may have caused.
        for number, refusal in enumerate(kept):
            tell_again(f, "real", [refusal])
            f.stays(again.runs, f"the device to run after refusal {number}", 3.0)
        f.coordinator()
        assert f.wait_for_end(again) == 0, again.last_word()


def test_a_lost_finished_message_is_repeated_until_device_and_coordinator_have_ended(tmp_path):
    with Federation(tmp_path, "real", "other", taken_over=True, rounds=1, policy=BOTH) as f:
        lost = []

        def passes(frame):
            if frame.down and frame.party == "real" and over(frame):
                lost.append(frame.kind)
                return False
            return True

        f.proxy.passes = passes
        coordinator, real, other = f.coordinator(), f.device("real"), f.device("other")
        assert f.wait_for_end(other) == 0, f.last_words()
        assert coordinator.child.poll() is None and real.child.poll() is None, (
            "it waits for the device that got no finished message"
        )
        f.wait_until(lambda: {"state", "finished"} <= set(lost), "both to be lost")
        f.proxy.passes = lambda frame: True  # The messages are repeated every 15 s.
        assert f.wait_for_end(real) == 0 and f.wait_for_end(coordinator) == 0, f.last_words()
        assert set(lost) == {"state", "finished"}


@pytest.mark.parametrize("stays", [False, True])
def test_a_coordinator_ends_as_soon_as_its_devices_have_received_finished(tmp_path, stays):
    with Federation(tmp_path, "real", taken_over=True, rounds=1, policy=ALONE) as f:
        coordinator, real = f.coordinator(), f.device("real", stays=stays)
        assert f.wait_for_end(coordinator) == 0, f"{f.last_words()}: it would stay for 150 s"
        farewell = f.proxy.frames("bye", "real", down=False)[0]
        said = f.proxy.seen[f.proxy.seen.index(farewell) :]
        assert not [x for x in said if x.down and x.kind == "finished"], (
            "no finished message is repeated after the bye"
        )
        assert real.runs() if stays else f.wait_for_end(real) == 0
