"""Tests that a device that is written only from docs/protocol.md can take part in a run on the simulated broker."""

import hashlib
import json
import struct

import msgpack
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from protofleet.lab.simulation.network import NetworkConditions
from protofleet.protocol.security.keys import PublicKeys
from protofleet.protocol.transport.base import Arrived, Connected
from tests.protocol import hpke
from tests.support.small_federation import CLASSES, simulation

DOMAIN, SEALING = b"protofleet/1 envelope\0", b"protofleet/1 sealed\0"
ME, BASE = "foreign", "protofleet/1/simulated/"
KEY = bytes(range(32))  # The key of each object; a client with secrets draws a new key for each object.


class Foreign:
    """A device that sends back the arrays that it received and states ten examples."""

    def __init__(self, run, key, secret, coordinator):
        self.key, self.secret, self.clock = key, secret, run.clock
        self.coordinator_key = Ed25519PublicKey.from_public_bytes(coordinator.sign)
        self.coordinator_receive = coordinator.receive
        self.run, self.epoch, self.sequence, self.plan, self.verdicts = "", 0, 0, b"", []
        self.objects, self.coming, self.task, self.answer, self.finished = {}, None, None, None, False
        topics = {BASE + t for t in ("coord/state", "round", f"down/{ME}")}
        self.session = run.broker.connect(ME, self.take, topics)
        self.tick()

    def take(self, item):
        if isinstance(item, Connected):
            self.hello()
        elif isinstance(item, Arrived) and item.frame[:3] == b"PF\x01":
            self.message(item.frame)
        elif isinstance(item, Arrived) and item.frame[:3] == b"PF\x02":
            self.block(item.frame)

    def tick(self):
        """Repeat each second the message that has no answer yet."""
        if self.answer:
            self.update()
        elif self.coming:
            self.want(again=True)
        else:
            self.hello()
        if not self.finished:
            self.clock.call_at(self.clock.now + 1.0, self.tick)

    def say(self, kind, fields, round=0, phase="", base=b""):
        self.sequence += 1
        header = msgpack.packb(
            [
                1,
                0,
                1,
                kind,
                "simulated",
                self.run,
                self.epoch,
                ME,
                1,
                self.sequence,
                "coordinator",
                round,
                phase,
                base,
            ]
        )
        head = b"PF\x01" + struct.pack("<H", len(header)) + header
        frame = head + hpke.seal(msgpack.packb(fields), self.coordinator_receive, SEALING + head)
        self.session.publish(BASE + f"up/{ME}", frame + self.key.sign(DOMAIN + frame))

    def message(self, frame):
        self.coordinator_key.verify(frame[-64:], DOMAIN + frame[:-64])
        (length,) = struct.unpack("<H", frame[3:5])
        _, _, suite, kind, _, self.run, self.epoch, _, _, _, _, round, phase, _ = msgpack.unpackb(
            frame[5 : 5 + length]
        )
        payload = frame[5 + length : -64]
        if suite == 1:
            payload = hpke.unseal(payload, self.secret, SEALING + frame[: 5 + length])
        assert (suite == 1) == (kind != "state")
        fields = msgpack.unpackb(payload)
        if kind == "welcome":
            assert json.loads(fields["plan"])["classes"] == CLASSES
            self.plan = hashlib.sha256(fields["plan"]).digest()
            self.hello()
        elif kind == "task":
            self.asked(round, phase, fields["broadcast"])
        elif kind == "want" and self.answer:
            self.serve(fields["object"], fields["ranges"])
        elif kind == "receipt":
            self.verdicts.append(fields["verdict"])
            if self.answer and self.answer[:2] == (round, phase):
                self.answer = None
        elif kind == "finished":
            self.finished = True

    def hello(self):
        self.say("hello", {"classes": CLASSES, "examples": 10, "protocol": [1, 1], "plan": self.plan})

    def asked(self, round, phase, manifest):
        self.task = round, phase, manifest[0]
        if manifest[0] in self.objects:
            self.work()
        elif not self.coming or self.coming[0][0] != manifest[0]:
            self.coming = manifest, {}
            self.session.subscribe(BASE + f"bcast/{wire_name(manifest).hex()}")
            self.want(again=False)

    def want(self, again):
        (name, size, block, _, _, _), here = self.coming
        missing = [i for i in range(-(-size // block)) if i not in here][:64]
        self.say("want", {"object": name, "ranges": [n for i in missing for n in (i, i + 1)], "again": again})

    def block(self, frame):
        (index,) = struct.unpack("<I", frame[19:23])
        if not self.coming or frame[3:19] != wire_name(self.coming[0])[:16]:
            return
        (name, size, block, hashes, _, key), here = self.coming
        data = AESGCM(key).decrypt(index.to_bytes(12, "little"), frame[23:], frame[:23])
        if hashlib.sha256(data).digest()[:16] == hashes[16 * index : 16 * index + 16]:
            here[index] = data
        if len(here) * block >= size:
            self.objects[name] = b"".join(here[i] for i in sorted(here))
            assert hashlib.sha256(self.objects[name]).digest() == name
            self.coming = None
            self.work()

    def work(self):
        round, phase, base = self.task
        body = self.objects[base] if phase == "train" else struct.pack("<I", 1) + b"\x90"
        self.answer = round, phase, base, body
        self.update()

    def update(self):
        round, phase, base, body = self.answer
        self.say("update", {"examples": 10, "metrics": {}, "arrays": self.manifest(body)}, round, phase, base)

    def manifest(self, body):
        """Return a manifest with blocks of 5,000 bytes, so that they are requested; return a short body itself."""
        if len(body) < 100:
            return body
        (table,) = struct.unpack("<I", body[:4])
        blocks = [body[i : i + 5000] for i in range(0, len(body), 5000)]
        hashes = b"".join(hashlib.sha256(b).digest()[:16] for b in blocks)
        parts = [["control", 4 + table], ["weights", len(body) - 4 - table]]
        return [hashlib.sha256(body).digest(), len(body), 5000, hashes, parts, KEY]

    def serve(self, name, ranges):
        body, offer = self.answer[3], self.manifest(self.answer[3])
        for first, last in zip(ranges[::2], ranges[1::2]):
            for i in range(first, last):
                head = b"PF\x02" + wire_name(offer)[:16] + struct.pack("<I", i)
                data, nonce = body[5000 * i : 5000 * i + 5000], i.to_bytes(12, "little")
                self.session.publish(BASE + f"up/{ME}", head + AESGCM(KEY).encrypt(nonce, data, head))


def wire_name(manifest):
    return hashlib.sha256(b"protofleet/1 object\0" + manifest[5] + manifest[0]).digest()


@pytest.mark.parametrize(
    "conditions",
    [NetworkConditions(), NetworkConditions(jitter=0.2, loss=0.2, repeat=0.2)],
    ids=["good network", "bad network"],
)
def test_a_device_written_only_from_the_document_completes_a_run(tmp_path, conditions):
    run = simulation(tmp_path, "fedavg", conditions)
    key = Ed25519PrivateKey.generate()
    run.kill("device-2")
    secret = X25519PrivateKey.generate()
    run.keyring[ME] = PublicKeys(key.public_key().public_bytes_raw(), secret.public_key().public_bytes_raw())
    foreign = Foreign(run, key, secret, run.keyring["coordinator"])
    run.run()
    assert run.service.finished and ME in run.service.run.participants.members
    assert foreign.verdicts.count("accepted") >= 4 and set(foreign.verdicts) <= {"accepted", "late"}
    assert not [
        k
        for k in run.service.run.link.meter.messages
        if k[0] == "up" and k[2] not in ("accepted", "duplicate")
    ]
