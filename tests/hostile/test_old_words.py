"""Old genuine messages that a broker has kept and repeats to devices when they start."""

from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.round.policy import Policy
from tests.hostile.device import honest
from tests.hostile.federation import Federation

BOTH = Policy(quorum=2, gather=2, settle_seconds=0.2)
# A device waits for five seconds, and not for thirty, whether another message contradicts the end of a run.
SHORT_WAIT = "import protofleet.edge_client.conversation.old_messages as m; m.OVER_SECONDS = 5.0"


def said_to(f, device, *kinds):
    return [frame for frame in f.proxy.seen if frame.party == device and frame.down and frame.kind in kinds]


def tell_again(f, device, frames):
    for frame in frames:
        f.proxy.tell(device, frame.topic, frame.data)


def until_connected(f, device, times):
    """Wait until a device has sent this many hellos; it sends them only after it has connected."""
    f.wait_until(
        lambda: len(f.proxy.frames("hello", device, down=False)) >= times, f"hello {times} of {device}"
    )


def hellos(f, device):
    return len(f.proxy.frames("hello", device, down=False))


def test_a_refusal_ends_a_device_once_and_not_when_a_broker_repeats_it(tmp_path):
    with Federation(tmp_path, "real", taken_over=True, rounds=1) as f:
        strict = f.coordinator(name="strict", limits=CoordinatorLimits(examples=1))
        first = f.device("real")
        assert f.wait_for_end(first) == 1 and "refuses this device" in first.last_word()
        strict.kill()
        refusals = said_to(f, "real", "refusal")
        assert refusals
        before, again = hellos(f, "real"), f.device("real")  # It may be connected before the next line runs.
        until_connected(f, "real", before + 1)
        tell_again(f, "real", refusals)
        f.coordinator()
        assert f.wait_for_end(again) == 0, again.last_word()
        assert [line["participants"] for line in f.rounds()] == [["real"]] * 2


def test_repeated_messages_of_an_ended_run_do_not_end_a_device_that_waits_for_the_next_run(tmp_path):
    with Federation(tmp_path, "real", taken_over=True, rounds=1) as f:
        coordinator, first = f.coordinator(name="spring"), f.device("real")
        assert f.wait_for_end(coordinator) == 0 and f.wait_for_end(first) == 0, f.last_words()
        kept = said_to(f, "real", "finished", "state")
        assert "finished" in {frame.kind for frame in kept}
        before, again = hellos(f, "real"), f.device("real")  # It may be connected before the next line runs.
        # The broker has sent the last state of the coordinator, which is retained.
        until_connected(f, "real", before + 1)
        tell_again(f, "real", kept)
        until_connected(f, "real", before + 2)  # 15 seconds later the device repeats its hello.
        assert again.child.poll() is None, again.last_word()
        f.coordinator()
        assert f.wait_for_end(again) == 0, again.last_word()
        assert [line["participants"] for line in f.rounds()] == [["real"]] * 2


def test_a_device_that_was_killed_before_the_end_of_its_run_ends_after_a_limited_wait(tmp_path):
    with Federation(tmp_path, "real", taken_over=True, rounds=1) as f:
        lost = []
        f.proxy.passes = lambda frame: (
            not (frame.down and frame.party == "real" and over(frame) and not lost.append(frame))
        )
        coordinator, first = f.coordinator(), f.device("real")
        f.wait_until(lambda: lost, "the end")
        first.kill()
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        f.proxy.passes = lambda frame: True
        again = f.device("real", planted=SHORT_WAIT)
        assert f.wait_for_end(again) == 0, again.last_word()


def over(frame):
    return frame.kind == "finished" or (frame.kind == "state" and b"finished" in frame.data)


def test_a_restarted_device_that_gets_all_old_messages_again_repeats_no_work(tmp_path):
    with Federation(tmp_path, "real", "raw", taken_over=True, rounds=3, policy=BOTH) as f:
        gate = []
        # With that receipt the device would have nothing to repeat.
        f.proxy.passes = lambda frame: not is_receipt_of(frame, 3)
        coordinator, first = f.coordinator(), f.device("real")
        f.raw("raw", lambda task: honest(task) if gate or task.round < 3 else None)
        f.wait_until(lambda: len(f.rounds()) == 2, "two rounds")
        f.wait_until(lambda: said_by(f, "real", 3), "its third answer")
        first.kill()
        kept = [x for x in f.proxy.seen if x.party == "real" and x.down and not is_receipt_of(x, 3)]
        answers = len(said_by(f, "real", 3))
        again = f.device("real")
        # A device that has not begun the plan drops tasks, and the coordinator lets in those that have begun it.
        f.wait_until(lambda: joined(f, coordinator, "real") == 2, "the device to join again")
        tell_again(f, "real", kept)
        f.wait_until(lambda: len(said_by(f, "real", 3)) > answers, "its third answer again")
        f.proxy.passes = lambda frame: True
        gate.append("open")
        assert f.wait_for_end(coordinator) == 0 and f.wait_for_end(again) == 0, f.last_words()
        assert [line["participants"] for line in f.rounds()] == [["raw", "real"]] * 4
        said = [line.split()[-1] for line in f.log_of(first).splitlines() + f.log_of(again).splitlines()
                if "round 3 train: sending the update" in line]  # fmt: skip
        assert len(said) >= 2 and len(set(said)) == 1, "the device sends the same answer to the same task"


def joined(f, coordinator, device):
    return f.log_of(coordinator).count(f'"event": "joined", "device": "{device}"')


def is_receipt_of(frame, number):
    return (
        frame.down and frame.party == "real" and frame.kind == "receipt" and frame.header["round"] == number
    )


def said_by(f, device, number):
    return [x for x in f.proxy.frames("update", device, down=False) if x.header["round"] == number]
