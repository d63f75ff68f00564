"""A hello is sent at the right times, and only some refusals end a device."""

from collections import Counter

import pytest

from protofleet.edge_client.conversation.hello import HelloSender
from protofleet.edge_client.conversation.hello_exchange import NEVER
from protofleet.edge_client.conversation.hello_timer import (
    HEARD_SECONDS,
    HELLO_SECONDS,
    QUIET_SECONDS,
    SPREAD_SECONDS,
)
from protofleet.edge_client.conversation.old_messages import CONFIRM_SECONDS
from protofleet.protocol.wire.messages import HERE, Receipt, Refusal, RoundStatus, State, Task, Welcome
from tests.edge_client.agent_parts import BOOT, EPOCH, AgentParts
from tests.support.small_federation import shard

HERE_NOW = State(True, HERE, now=RoundStatus(1, "train", 0, ()))


@pytest.fixture
def parts(tmp_path):
    parts = AgentParts(tmp_path)
    parts.context.now = 100.0
    parts.hellos.connected()
    parts.link.taken()
    return parts


def test_a_device_sends_state_and_hello_on_connect_and_no_hello_after_disconnect(tmp_path):
    parts = AgentParts(tmp_path)
    parts.hellos.connected()
    assert parts.link.taken() == ["State", "Hello"] and parts.context.connected
    parts.hellos.disconnected()
    assert parts.hellos.next_at == NEVER and not parts.context.connected


def test_only_the_first_hello_of_a_connection_describes_the_machine(parts):
    said = []
    sender = HelloSender(parts.link, shard(0), parts.state, "0.1.0", about="0.1.0, torch; a board")
    parts.link.send = lambda hello: said.append(hello.software)
    sender.send(None)
    sender.send(None)
    sender.name_classes_in_full()
    sender.send(None)
    assert said == ["0.1.0, torch; a board", "0.1.0", "0.1.0, torch; a board"]


@pytest.mark.parametrize(
    ("heard", "least", "most"),
    [
        ([], HELLO_SECONDS / 2, HELLO_SECONDS),
        ([Welcome(b"")], HELLO_SECONDS / 2, HELLO_SECONDS),
        ([Welcome(b""), HERE_NOW], HEARD_SECONDS, HEARD_SECONDS),
        ([Welcome(b""), HERE_NOW, State(True)], HELLO_SECONDS / 2, HELLO_SECONDS),
        ([HERE_NOW], HELLO_SECONDS / 2, HELLO_SECONDS),
        ([Welcome(b""), State(True, HERE)], HELLO_SECONDS, HELLO_SECONDS),
    ],
)
def test_hellos_are_rare_only_after_a_welcome_and_a_here_with_the_round_status(parts, heard, least, most):
    parts.hellos.received(State(True), EPOCH)
    parts.hellos.send()
    for message in heard:
        parts.hellos.received(message, EPOCH)
    assert 100.0 + least <= parts.hellos.next_at <= 100.0 + most


def pauses(parts, number):
    """Return the pauses in seconds between hellos that get no answer."""
    found = []
    for _ in range(number):
        before, parts.context.now = parts.context.now, parts.hellos.next_at
        parts.hellos.send()
        found.append(parts.context.now - before)
    return found


def test_the_pause_between_hellos_doubles_while_no_answer_arrives(parts):
    for number, pause in enumerate(pauses(parts, 9)):
        longest = min(HELLO_SECONDS * 2**number, QUIET_SECONDS)
        assert longest / 2 <= pause <= longest


@pytest.mark.parametrize("message", [State(True), Task(1, "train", None, 0.0), Refusal("no")])
def test_a_birth_a_task_or_a_refusal_makes_the_pause_between_hellos_short_again(parts, message):
    parts.hellos.received(State(True), EPOCH)
    assert pauses(parts, 6)[-1] > 2 * HELLO_SECONDS
    parts.hellos.received(message, EPOCH)
    assert parts.hellos.next_at <= parts.context.now + HELLO_SECONDS


def test_a_here_or_a_receipt_does_not_shorten_the_pause_between_hellos(parts):
    parts.hellos.received(State(True), EPOCH)
    pauses(parts, 6)
    due = parts.hellos.next_at
    for message in (HERE_NOW, Receipt(1, "train", "accepted")):
        parts.hellos.received(message, EPOCH)
    assert parts.hellos.next_at == due


def reconnected(folder, number, waited_for, welcomed=True):
    """Return the time of a device's hello to the same coordinator over a new connection, after an earlier hello."""
    parts = AgentParts(folder / str(number), f"device-{number}")
    parts.hellos.received(State(True), EPOCH)
    parts.hellos.connected(waited_for=False)
    assert parts.hellos.next_at > 0.0 and parts.link.taken() == ["State", "Hello"], "the first at once"
    if welcomed:
        parts.hellos.received(Welcome(b""), EPOCH)
    parts.hellos.disconnected()
    parts.context.now = 100.0
    parts.hellos.connected(waited_for=waited_for)
    parts.hellos.coordinator_came(waited_for=waited_for)
    parts.hellos.missed(by_name=False)
    if "Hello" in parts.link.taken():
        return 100.0
    parts.hellos.received(Welcome(b""), EPOCH)
    parts.hellos.send()
    assert not parts.link.taken(), "a welcome does not make the hello earlier"
    parts.context.now = due = parts.hellos.next_at
    parts.hellos.send()
    assert parts.link.taken() == ["Hello"]
    return due


def test_a_device_without_a_welcome_sends_its_hello_at_once_after_a_reconnect(tmp_path):
    assert {reconnected(tmp_path, number, False, welcomed=False) for number in range(10)} == {100.0}


def test_the_hellos_of_a_fleet_are_spread_over_seconds_after_all_connections_are_lost(tmp_path):
    """No second has most of the hellos."""
    times = sorted(reconnected(tmp_path, number, waited_for=False) for number in range(60))
    assert times[-1] - times[0] > 0.8 * SPREAD_SECONDS and times[-1] <= 100.0 + SPREAD_SECONDS
    assert max(Counter(int(at) for at in times).values()) < 40


def test_a_device_sends_hello_at_once_after_a_reconnect_if_the_round_waits_for_it(tmp_path):
    assert reconnected(tmp_path, 0, waited_for=True) == 100.0


def test_a_device_sends_hello_at_once_after_a_message_of_a_new_epoch(parts):
    parts.hellos.received(State(True), EPOCH)
    parts.hellos.send()
    parts.hellos.received(Receipt(1, "train", "accepted"), EPOCH + 1)
    assert parts.hellos.next_at == 100.0


def test_a_paused_device_sends_no_hello_until_it_resumes(parts):
    parts.run.welcomed(EPOCH)
    parts.hellos.pause("too hot")
    parts.hellos.pause("too hot")
    assert parts.link.taken() == ["Bye"], "sent once"
    parts.hellos.send()
    assert parts.link.taken() == [] and parts.hellos.next_at == NEVER
    parts.context.now = 200.0
    parts.hellos.resume()
    assert parts.hellos.next_at == 200.0 and not parts.run.was_welcomed_by(parts.run.name, EPOCH)
    parts.hellos.send()
    assert parts.link.taken() == ["Hello"]


def test_no_hello_is_sent_during_the_pause_after_a_failure(parts):
    seconds = parts.hellos.back_off()
    parts.hellos.received(State(True), EPOCH)
    assert parts.hellos.next_at == 100.0 + seconds
    parts.hellos.send()
    assert parts.link.taken() == []


def test_a_refusal_of_the_last_hello_ends_the_device(parts):
    last = (BOOT, parts.link.last_sequence)
    parts.hellos.refused(Refusal("an unknown name", answers=last))
    assert parts.context.problem == "the coordinator refuses this device: an unknown name"


@pytest.mark.parametrize("refusal", [Refusal("old", answers=(BOOT, 10**6)), Refusal("old", boot=BOOT)])
def test_a_refusal_of_another_hello_or_an_earlier_process_does_not_end_the_device(parts, refusal):
    parts.hellos.refused(refusal)
    assert not parts.context.finished


def test_a_refusal_that_names_no_hello_ends_the_device_when_the_next_hello_is_refused_too(parts):
    parts.hellos.refused(Refusal("no"))
    assert not parts.context.finished and parts.hellos.next_at == 100.0 + CONFIRM_SECONDS
    parts.context.now = parts.hellos.next_at
    parts.hellos.send()
    parts.hellos.refused(Refusal("no"))
    assert parts.context.finished


def test_a_receipt_cancels_an_earlier_refusal(parts):
    parts.hellos.refused(Refusal("no"))
    parts.hellos.received(Receipt(1, "train", "accepted"), EPOCH)
    parts.context.now = 200.0
    parts.hellos.send()
    parts.hellos.refused(Refusal("no"))
    assert not parts.context.finished


def test_a_refusal_that_names_a_later_boot_ends_the_device(parts):
    parts.hellos.refused(Refusal("another process", boot=BOOT + 1))
    assert parts.context.finished
