"""A broker that returns with a smaller packet limit during a run."""

import contextlib
import itertools

import pytest

from protofleet.coordinator.round.policy import Policy
from protofleet.methods.contract.plan import Network
from tests.hostile.federation import Federation
from tests.hostile.proxy import of_packets_up_to

SOON = {"settle_seconds": 0.2, "patience_seconds": 15.0}


@contextlib.contextmanager
def federation(folder, *devices, **more):
    with Federation(folder, *devices, taken_over=True, rounds=4, **more) as f:
        yield f


def shrink(f, size, *parties, passes=lambda frame: True):
    """Lower the packet limit of the broker, and break the connections of these parties.

    Return the number of the frames that were seen before.
    """
    f.proxy.alters = lambda party, packet: of_packets_up_to(size, packet)
    before = len(f.proxy.seen)  # A cut party may be back before the next line of this test runs.
    for party in parties:
        f.proxy.cut(party)
    f.proxy.passes = passes
    return before


def test_an_open_broadcast_is_split_into_smaller_blocks_after_the_packet_limit_shrinks(tmp_path):
    with federation(tmp_path, "one", "two", policy=Policy(quorum=2, gather=2, **SOON)) as f:
        f.proxy.passes = lambda frame: not (frame.down and frame.kind == "block")
        coordinator = f.coordinator()
        devices = [f.device(name) for name in ("one", "two")]
        f.wait_until(
            lambda: len({frame.party for frame in f.proxy.frames("task", down=True)}) == 2,
            "a task for both",
        )
        after = shrink(f, 5200, "coordinator", "one", "two")
        assert f.wait_for_end(coordinator) == 0, coordinator.last_word()
        assert [f.wait_for_end(device) for device in devices] == [0, 0]
        for party in ("coordinator", "one", "two"):
            assert max(len(frame.data) for frame in said_anew(f, party, after)) < 5200
        assert "no answer from" not in f.log_of(coordinator)
        assert "refused a message" not in f.log_of(coordinator)


def said_anew(f, party, after):
    """Return the frames of a party from the first one over its first new connection on."""
    said = [frame for frame in f.proxy.seen[after:] if frame.party == party and not frame.down]
    return list(itertools.dropwhile(lambda frame: frame.kind != "state", said))


def test_an_open_answer_is_offered_again_with_smaller_blocks_after_the_packet_limit_shrinks(tmp_path):
    large = Network("mlp", feature_size=600)
    with federation(tmp_path, "one", network=large, policy=Policy(quorum=1, gather=1, **SOON)) as f:
        f.proxy.passes = lambda frame: frame.down or frame.kind != "block" or frame.party != "one"
        coordinator, device = f.coordinator(), f.device("one")
        f.wait_until(lambda: f.proxy.frames("want", "coordinator", down=True), "a want")
        shrink(f, 20_000, "coordinator", "one")
        assert f.wait_for_end(coordinator) == 0, coordinator.last_word()
        assert f.wait_for_end(device) == 0, device.last_word()
        assert "no answer from" not in f.log_of(coordinator)
        assert "refused a message" not in f.log_of(device)


@pytest.mark.parametrize("size", [5000, 5200])
def test_a_packet_limit_that_is_too_small_for_a_moment_ends_no_process(tmp_path, size):
    """At a limit of 5,200 bytes the model would take more blocks than an object may have."""
    large = Network("mlp", feature_size=5500)
    network = large if size == 5200 else Network("mlp")
    with federation(tmp_path, "one", network=network, policy=Policy(quorum=1, gather=1, **SOON)) as f:
        f.proxy.passes = lambda frame: frame.kind != "update"  # Otherwise the run might end before the cut.
        coordinator, device = f.coordinator(), f.device("one")
        f.wait_until(lambda: f.proxy.frames("update", "one"), "an answer")
        told = {"coordinator": 0, "one": 0}

        def alters(party, packet):
            if party not in told:  # The coordinator also connects under a second name, as standby.
                return packet
            told[party] += (altered := of_packets_up_to(size, packet)) != packet
            return altered if told[party] < 3 else packet

        f.proxy.alters = alters
        for party in told:
            f.proxy.cut(party)
        f.proxy.passes = lambda frame: True
        assert f.wait_for_end(coordinator) == 0, coordinator.last_word()
        assert f.wait_for_end(device) == 0, device.last_word()
        assert min(told.values()) >= 3, "two limits that are too small, and one that is not"
        for process in (coordinator, device):  # A reason is logged once, also after many tries.
            assert (
                f.log_of(process).count(
                    "the broker accepted larger packets before, so this process tries again"
                )
                == 1
            )


def test_a_packet_limit_that_is_too_small_at_the_first_connection_is_one_clear_line(tmp_path):
    with federation(tmp_path, "one") as f:
        f.proxy.alters = lambda party, packet: of_packets_up_to(5000, packet)
        for process in (f.coordinator(), f.device("one")):
            assert f.wait_for_end(process) == 1
            assert "packets of 5000 bytes, but packets of 5120 bytes are needed" in process.last_word()
            assert "Traceback" not in f.log_of(process)


def test_no_device_is_reported_as_silent_while_the_broker_is_unusable(tmp_path):
    with federation(
        tmp_path, "one", policy=Policy(quorum=1, gather=1, **{**SOON, "patience_seconds": 3.0})
    ) as f:
        f.proxy.passes = lambda frame: frame.kind != "update"
        coordinator, device = f.coordinator(), f.device("one")
        f.wait_until(lambda: f.proxy.frames("update", "one"), "an answer")
        f.proxy.alters = lambda party, packet: of_packets_up_to(5000, packet)
        f.proxy.cut("coordinator")
        why = "begins again: 0 of 1 answers are in, policy.quorum is 1; there is no connection"
        f.wait_until(lambda: f.log_of(coordinator).count(why) >= 2, "two attempts")
        # Before the cut, the coordinator may have logged another reason: that no device answers.
        lines = [line for line in f.log_of(coordinator).splitlines() if "begins again" in line]
        since = next(number for number, line in enumerate(lines) if why in line)
        assert all(why in line for line in lines[since:])
        f.proxy.alters = lambda party, packet: packet
        f.proxy.passes = lambda frame: True
        assert f.wait_for_end(coordinator) == 0, coordinator.last_word()
        assert f.wait_for_end(device) == 0, device.last_word()


def test_a_device_without_the_form_manifest_is_not_refused_after_one_smaller_limit(tmp_path):
    """A device of version 1.0 could not take part at 5,200 bytes, and a refusal would end it."""
    large = Network("mlp", feature_size=600)
    with federation(tmp_path, "one", network=large, policy=Policy(quorum=1, gather=1, **SOON)) as f:
        coordinator, one = f.coordinator(), f.raw("one", lambda task: None)
        one.wait("task")
        told = []

        def alters(party, packet):
            if party == "coordinator" and not told and of_packets_up_to(5200, packet) != packet:
                told.append(packet)
                return of_packets_up_to(5200, packet)
            return packet

        f.proxy.alters = alters
        f.proxy.cut("coordinator")
        again = "the broker accepted larger packets before, so this process tries again"
        f.wait_until(lambda: again in f.log_of(coordinator), "the smaller limit")
        one.wait("task", since=len(one.heard))
        assert not f.proxy.frames("refusal", down=True)


SOON_LASTING = "import protofleet.coordinator.devices.small_packets as sp; sp.LASTS_SECONDS = 2.0"


@pytest.mark.parametrize("leaves", [True, False])
def test_a_device_without_the_form_manifest_does_not_stop_the_others_at_a_small_limit(tmp_path, leaves):
    """It is the only such device, and the broker's limit stays small. The other devices make up a quorum."""
    large = Network("mlp", feature_size=600)
    with federation(
        tmp_path,
        "one",
        "old",
        network=large,
        policy=Policy(quorum=1, gather=2, settle_seconds=0.2, patience_seconds=60.0),
    ) as f:
        f.proxy.passes = lambda frame: frame.kind != "update"
        coordinator = f.coordinator(planted=SOON_LASTING)
        old, one = f.raw("old"), f.device("one")
        for device in ("old", "one"):
            f.wait_until(
                lambda d=device: f'"joined", "device": "{d}"' in f.log_of(coordinator), "both to join"
            )
        if leaves:
            old.say("bye", {"reason": "signal: SIGTERM"})
            f.wait_until(lambda: '"event": "left", "device": "old"' in f.log_of(coordinator), "its bye")
            old.stop()
        if leaves:
            shrink(f, 5200, "coordinator", "one", "old")
        else:  # The run does not end before the device is back.
            shrink(f, 5200, "coordinator", "one", "old", passes=f.proxy.passes)
            old.wait("refusal")
            f.proxy.passes = lambda frame: True
        assert f.wait_for_end(coordinator) == 0, f.log_of(coordinator)[-3000:]
        assert f.wait_for_end(one) == 0, one.last_word()
        assert leaves or "it does not know manifest" in old.wait("refusal").fields["reason"]
