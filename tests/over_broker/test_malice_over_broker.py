"""A malicious device at a real Mosquitto: the others end with the bits of a run without it, in bounded memory."""

import resource
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from protofleet.protocol.security.keys import Keys
from protofleet.protocol.transport.base import Arrived, Connected
from protofleet.protocol.transport.mqtt import Mqtt
from protofleet.protocol.transport.receive_queue import MAX_BYTES, ReceiveQueue
from protofleet.protocol.wire.reasons import Reason
from tests.support.federation_over_broker import DEVICES, Federation
from tests.support.lying_device import Liar, encoded
from tests.support.small_federation import assert_same, simulation

NAN = {"weights.head.bias": np.full(3, np.nan, np.float32)}

STORM = {Reason.FLOOD, Reason.MALFORMED, Reason.UNKNOWN_SENDER}  # The reasons of its rejections.


def wait_until(check, what, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.01)  # Wait between two checks.


def storm(liar):
    """Send all kinds of bad frames at once.

    They are garbage, unknown names, forged and valid hellos, false updates, offers, blocks and large frames.
    """
    up = liar.topics.up(liar.name)
    for i in range(150):
        liar.publish(b"PF\x01" + i.to_bytes(2, "little") + bytes(90))
        liar.publish(liar.frame("hello", {}, sender=f"stranger-{i}"), liar.topics.up(f"stranger-{i}"))
        liar.publish(liar.frame("hello", {}, sender="device-0"), liar.topics.up("device-0"))
        liar.greet()
        liar.update((1, "train", b""), encoded(NAN))
        liar.update(
            (1, "train", b""),
            [i.to_bytes(32, "big"), 1 << 30, 1 << 20, bytes(16 << 10), [["weights", 1 << 30]]],
        )
        liar.publish(b"PF\x02" + bytes(20) + b"x" * 1000, up)
    for _ in range(20):
        liar.publish(b"PF\x01\x10\x00" + bytes((2 << 20) - 1000), up)


@pytest.fixture
def stormed(tmp_path, broker, federation):
    made = Federation(tmp_path / "real", broker.address, federation, "fedavg")
    made.coordinators_inbox = ReceiveQueue
    keys = Keys.new()
    made.keyring["liar"] = keys.public
    liar = Liar("liar", keys, made.keyring, made.topics, hello={"classes": 7})  # It joins no cohort.
    inbox = ReceiveQueue()
    liar.transport = Mqtt(
        f"{federation}-liar", broker.address, inbox, subscriptions=made.topics.device_subscriptions("liar")
    )
    liar.transport.connect()
    yield made, liar, inbox
    liar.transport.close()
    made.close()


@pytest.mark.slow
def test_honest_devices_end_with_the_same_bits_during_an_attack_over_mosquitto(tmp_path, stormed):
    made, liar, inbox = stormed
    while not isinstance(inbox.get(timeout=20), Connected):
        pass
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    service, coordinators = made.coordinator()
    made.start(service, coordinators)
    attack = threading.Thread(target=storm, args=(liar,), daemon=True)
    attack.start()
    rejected = service.run.link.meter.rejected
    for i, name in enumerate(DEVICES):
        if name == DEVICES[-1]:  # The run cannot end before the storm.
            wait_until(lambda: all(rejected[reason] for reason in STORM), "the lies to be rejected")
        made.start(*made.device(name, i))
    for thread in (attack, *made.threads):
        thread.join(90)
        assert not thread.is_alive(), "the federation did not come to its end"
    assert service.finished
    assert set(rejected) >= STORM
    assert "liar" not in service.run.participants.members
    assert not list((tmp_path / "real/coordinator/updates").glob("liar/*"))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < MAX_BYTES + (160 << 20), "the inbox, and what a federation of this size takes"
    assert_same(
        SimpleNamespace(service=service, agents=made.agents), simulation(tmp_path / "sim", "fedavg").run()
    )


def test_the_receive_queue_of_a_stalled_reader_drops_the_excess(broker, federation, peer):
    """Mosquitto has delivered everything, and the reader reads nothing."""
    lost = []
    inbox = ReceiveQueue(lost.append)
    reader = Mqtt(f"{federation}.reader", broker.address, inbox, subscriptions=[f"{federation}/#"])
    reader.connect()
    try:
        assert isinstance(inbox.get(timeout=20), Connected)
        sender = peer("sender", broker.address).ready()
        frame = bytes(1 << 20)
        for i in range(40):
            sender.mqtt.publish(f"{federation}/a", frame)
            time.sleep(0)  # Give the network thread a turn.
        sender.mqtt.publish(f"{federation}/b", b"the last")
        deadline, seen = time.monotonic() + 30, []
        while inbox.qsize() < 24 and time.monotonic() < deadline:
            time.sleep(0.01)
        while not seen or seen[-1] != f"{federation}/b":
            item = inbox.get(timeout=20)
            seen += [item.topic] if isinstance(item, Arrived) else []
        assert len(seen) + sum(lost) == 41 and sum(lost) > 0
    finally:
        reader.close()


def test_frames_that_a_full_queue_drops_are_counted_as_flood(tmp_path):
    from tests.protocol.ends import Ends

    link = Ends(tmp_path, "a").coordinator
    link.count_overflow(7)
    assert link.meter.rejected == {Reason.FLOOD: 7}
    assert link.meter.messages["up", "unreadable", "flood"] == 7
