"""When a hello is sent, and which refusal ends a device."""

import pytest

from protofleet.edge_client.conversation.hello_exchange import NEVER
from protofleet.edge_client.conversation.hello_timer import HEARD_SECONDS, HELLO_SECONDS
from protofleet.edge_client.conversation.old_messages import CONFIRM_SECONDS
from protofleet.protocol.wire.messages import HERE, Receipt, Refusal, RoundStatus, State, Welcome
from tests.edge_client.agent_parts import BOOT, EPOCH, AgentParts

HERE_NOW = State(True, HERE, now=RoundStatus(1, "train", 0, ()))


@pytest.fixture
def parts(tmp_path):
    parts = AgentParts(tmp_path)
    parts.context.now = 100.0
    parts.hellos.connected()
    parts.link.kinds()
    return parts


def test_a_connection_is_announced_and_greeted_and_its_loss_ends_the_hellos(tmp_path):
    parts = AgentParts(tmp_path)
    parts.hellos.connected()
    assert parts.link.kinds() == ["State", "Hello"] and parts.context.connected
    parts.hellos.disconnected()
    assert parts.hellos.next_at == NEVER and not parts.context.connected


@pytest.mark.parametrize(
    ("heard", "pause"),
    [
        ([], HELLO_SECONDS),
        ([Welcome(b"")], HELLO_SECONDS),
        ([Welcome(b""), HERE_NOW], HEARD_SECONDS),
        ([Welcome(b""), HERE_NOW, State(True)], HELLO_SECONDS),
        ([HERE_NOW], HELLO_SECONDS),
    ],
)
def test_hellos_are_seldom_only_where_the_coordinator_knows_the_device_and_says_whom_it_misses(
    parts, heard, pause
):
    parts.hellos.received(State(True), EPOCH)
    parts.hellos.send()
    for message in heard:
        parts.hellos.received(message, EPOCH)
    assert parts.hellos.next_at == 100.0 + pause


def test_a_coordinator_that_is_heard_for_the_first_time_is_greeted_at_once(parts):
    parts.hellos.received(State(True), EPOCH)
    parts.hellos.send()
    parts.hellos.received(Receipt(1, "train", "accepted"), EPOCH + 1)
    assert parts.hellos.next_at == 100.0


def test_on_hold_no_hello_is_sent_and_one_is_due_as_soon_as_work_is_taken_again(parts):
    parts.run.welcomed(EPOCH)
    parts.hellos.hold("too hot")
    parts.hellos.hold("too hot")
    assert parts.link.kinds() == ["Bye"], "said once"
    parts.hellos.send()
    assert parts.link.kinds() == [] and parts.hellos.next_at == NEVER
    parts.context.now = 200.0
    parts.hellos.resume()
    assert parts.hellos.next_at == 200.0 and not parts.run.is_welcome(parts.run.name, EPOCH)
    parts.hellos.send()
    assert parts.link.kinds() == ["Hello"]


def test_whatever_is_heard_no_hello_is_sent_before_a_pause_after_a_failure_is_over(parts):
    seconds = parts.hellos.back_off()
    parts.hellos.received(State(True), EPOCH)
    assert parts.hellos.next_at == 100.0 + seconds
    parts.hellos.send()
    assert parts.link.kinds() == []


def test_a_refusal_of_the_last_hello_ends_the_device(parts):
    last = (BOOT, parts.link.last_sequence)
    parts.hellos.refused(Refusal("nobody knows it", answers=last))
    assert parts.context.problem == "the coordinator refuses this device: nobody knows it"


@pytest.mark.parametrize("refusal", [Refusal("old", answers=(BOOT, 10**6)), Refusal("old", boot=BOOT)])
def test_a_refusal_of_another_hello_or_of_another_process_ends_nobody(parts, refusal):
    parts.hellos.refused(refusal)
    assert not parts.context.finished


def test_a_refusal_that_names_no_hello_ends_the_device_when_the_next_hello_is_refused_too(parts):
    parts.hellos.refused(Refusal("no"))
    assert not parts.context.finished and parts.hellos.next_at == 100.0 + CONFIRM_SECONDS
    parts.context.now = parts.hellos.next_at
    parts.hellos.send()
    parts.hellos.refused(Refusal("no"))
    assert parts.context.finished


def test_a_receipt_contradicts_an_earlier_refusal(parts):
    parts.hellos.refused(Refusal("no"))
    parts.hellos.received(Receipt(1, "train", "accepted"), EPOCH)
    parts.context.now = 200.0
    parts.hellos.send()
    parts.hellos.refused(Refusal("no"))
    assert not parts.context.finished


def test_a_later_process_of_the_same_name_ends_this_one(parts):
    parts.hellos.refused(Refusal("another process", boot=BOOT + 1))
    assert parts.context.finished
