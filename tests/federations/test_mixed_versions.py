"""A fleet with different versions, over a real Mosquitto: the promises of docs/protocol.md, section 10.

There has been one major version. A later minor version sends more fields, which this version must ignore. A
device of another major version gets a refusal. A device of version 1.0, written from the
document alone, takes part in tests/protocol/test_foreign_client.py.
"""

import itertools
import struct
from dataclasses import astuple, replace
from types import SimpleNamespace

import msgpack
import pytest

from protofleet.protocol.security.envelope import DOMAIN, OPEN, SEALED, SEALING, Header
from protofleet.protocol.security.keys import Keys
from protofleet.protocol.transport.base import StopRequest
from protofleet.protocol.wire import codec
from protofleet.protocol.wire.codec import task_id_of
from protofleet.protocol.wire.messages import Hello
from protofleet.protocol.wire.names import COORDINATOR, EVERYBODY
from protofleet.protocol.wire.reasons import Reason
from tests.protocol import hpke
from tests.support.federation_over_broker import DEVICES, Federation
from tests.support.small_federation import POLICY, assert_same, simulation

MORE = ["shape", 7, b"\x00", ["a", ["list"]], None, 2.5]  # More fields of a header; a header has no maps.
NEWS = {"colour": "green", "telemetry": {"depth": [1, 2, 3]}, "": None, "seconds2": 1e9}


class Later:
    """The frames of a link of version 1.7: more fields in the header, and more in each payload."""

    def __init__(self, link, minor=7, major=1):
        self.link, self.minor, self.major = link, minor, major
        self.said, self.numbers = 0, itertools.count(link.party.last_sequence + 1)
        self.speaks_up = False  # It sends a kind of message that only it knows before its first hello.
        link.seal = self

    def __call__(self, message, recipient=EVERYBODY, attachment=None, receive=b""):
        if self.speaks_up and isinstance(message, Hello):
            self.speaks_up = False
            self.say_unheard_of()
        self.said += 1
        kind = codec.KINDS[type(message)]
        return self.frame(kind, codec.encode(message, attachment), recipient, task_id_of(message))

    def frame(self, kind, payload, recipient, place):
        party = self.link.party
        suite = SEALED if party.sealed and recipient != EVERYBODY else OPEN
        header = Header(
            self.major, self.minor, suite, kind, party.topics.federation, self.link.run, party.epoch,
            party.me.name, party.me.boot, next(self.numbers), recipient, place.round, place.phase, place.base,
        )  # fmt: skip
        packed = msgpack.packb([*astuple(header), *MORE])
        head = b"PF\x01" + struct.pack("<H", len(packed)) + packed
        text = msgpack.packb({**msgpack.unpackb(payload), **NEWS})
        if suite == SEALED:
            text = hpke.seal(text, party.keyring[recipient].receive, SEALING + head)
        return head + text + party.me.keys.sign.sign(DOMAIN + head + text)

    def say_unheard_of(self):
        """Send a kind of message that only this version knows."""
        up = self.link.topics.up(self.link.me.name)
        self.link.transport.publish(
            up, self.frame("telemetry", msgpack.packb({}), COORDINATOR, codec.TaskId())
        )


class Mixed(Federation):
    """A federation in which the parties `later` speak 1.7, and all others the version of this code."""

    later = ()

    def coordinator(self):
        service, inbox = super().coordinator()
        self.voices = {}
        if COORDINATOR in self.later:
            self.voices[COORDINATOR] = Later(service.run.link)
        return service, inbox

    def device(self, name, i):
        agent, inbox = super().device(name, i)
        if name in self.later:
            self.voices[name] = Later(agent.link)
        return agent, inbox


def finished(made, folder):
    for thread in made.threads:
        thread.join(60)
        assert not thread.is_alive(), "the federation did not end"
    assert_same(
        SimpleNamespace(service=made.service, agents=made.agents), simulation(folder / "sim", "fedavg").run()
    )


@pytest.fixture
def mixed(tmp_path, broker, federation):
    made = Mixed(tmp_path / "real", broker.address, federation, "fedavg")
    yield made
    made.close()


@pytest.mark.parametrize(
    "later",
    [("device-2",), ("coordinator",), ("device-0", "coordinator")],
    ids=["device", "coordinator", "both"],
)
def test_a_party_of_a_later_minor_version_takes_part_and_changes_no_bit(mixed, tmp_path, later):
    mixed.later = later
    finished(mixed.run(), tmp_path)
    assert all(voice.said > 4 for voice in mixed.voices.values())
    assert not mixed.service.run.link.meter.rejected


def test_an_unknown_kind_of_message_is_dropped_and_counted(mixed, tmp_path):
    mixed.later = ("device-1",)
    mixed.start(*mixed.coordinator())
    mixed.wait_until_the_coordinator_listens()  # The unknown message is sent only once.
    for i, name in enumerate(DEVICES):
        agent, inbox = mixed.device(name, i)
        if name == "device-1":  # It sends the message before its first hello, which may be its only one.
            mixed.voices[name].speaks_up = True
        mixed.start(agent, inbox)
    finished(mixed, tmp_path)
    assert set(mixed.service.run.link.meter.rejected) <= {Reason.MALFORMED}
    assert mixed.service.run.link.meter.messages["up", "unreadable", "malformed"] >= 1


@pytest.mark.parametrize("way", ["in its hello", "in its frames"])
def test_a_device_of_another_major_version_is_refused_or_counted_and_the_run_ends(mixed, tmp_path, way):
    """A device of version 2 that still writes frames of version 1 gets a refusal with the reason.

    A frame of version 2 is only counted.
    """
    mixed.keys["newer"] = Keys.new()
    mixed.keyring["newer"] = mixed.keys["newer"].public
    mixed.start(*mixed.coordinator())
    agent, inbox = mixed.device("newer", 0)
    del mixed.agents["newer"]
    if way == "in its frames":
        Later(agent.link, minor=0, major=2)
    say = agent.link.send
    agent.link.send = lambda m: say(replace(m, protocol=(2, 3)) if isinstance(m, Hello) else m)
    mixed.start(agent, inbox)
    reason = Reason.UNFIT if way == "in its hello" else Reason.VERSION
    deadline = POLICY.patience_seconds
    while not mixed.service.run.link.meter.rejected[reason] and deadline > 0:
        mixed.threads[-1].join(0.02)
        deadline -= 0.02
    if way == "in its hello":
        mixed.threads[-1].join(20)
        assert agent.finished and agent.view.problem.endswith(
            "it speaks protocol 2 to 3, this coordinator speaks 1"
        )
    else:
        assert mixed.service.run.link.meter.rejected[Reason.VERSION] >= 1 and not agent.finished
        inbox.put(StopRequest("nobody follows its version"))
    for i, name in enumerate(DEVICES):
        mixed.start(*mixed.device(name, i))
    finished(mixed, tmp_path)
    assert "newer" not in mixed.service.run.participants.members
    agent.link.transport.close()
