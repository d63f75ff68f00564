"""A device in one file, which knows no method: python device.py HOST PORT KEYS FOLDER CLASSES EXAMPLES
Written from docs/protocol.md; docs/write-a-client.md goes through it. Your computation goes into `answer_to`."""

import base64
import hashlib
import json
import os
import queue
import random
import signal
import ssl
import struct
import sys
import time
from collections import namedtuple
from fnmatch import fnmatchcase
from itertools import accumulate, pairwise
from math import floor, inf, log, log1p, log2, prod, sqrt
from pathlib import Path
from typing import Any

import msgpack
import paho.mqtt.client as paho
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

CAN = ["answers", "bye", "codec", "counts", "inline", "manifest", "many", "wants"]  # forms newer than version 1.0
HPKE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
FINAL = {132, 133, 134, 135, 138, 140, 142, 149, 152, 154, 155, 156, 157}  # reason codes: do not connect again
FAULTS = ValueError, TypeError, LookupError, AttributeError, struct.error, InvalidSignature, InvalidTag  # bad frame
KEPT = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
KEPT.SessionExpiryInterval = 600
Fields = dict[str, Any]

# -- 1. Keys: the files that `protofleet enrol install` has written into keys/current
Keys = namedtuple("Keys", "folder federation name sign receive coordinator_signs coordinator_receives holders since")
def read_keys(folder: Path) -> Keys:
    sign, receive = (load_pem_private_key((folder / f).read_bytes(), None) for f in ("identity.key", "receive.key"))
    federation, name, _, mine, _, serial, since = read_record(folder / "identity.record")
    _, _, _, signs, receives, *_ = read_record(folder / "coordinator.record")
    public = Ed25519PublicKey.from_public_bytes(signs), X25519PublicKey.from_public_bytes(receives)
    return Keys(folder, federation.decode(), name.decode(), sign, receive, *public, [serial, mine, signs], since)

def read_record(path: Path) -> list[Any]:  # federation, name, role, two keys, serial, not before
    data = base64.b64decode("".join(path.read_text().splitlines()[1:-1]))
    at = 10 + data[4] + 8 * data[5 + data[4]]  # after the magic, the kind, the signers and the length of the body
    fields: list[bytes] = []
    for _ in range(5):
        length = int.from_bytes(data[at : at + 4], "little")
        fields, at = [*fields, data[at + 4 : at + 4 + length]], at + 4 + length
    return [*fields, data[at : at + 8], int.from_bytes(data[at + 8 : at + 16], "little")]

# -- 2. Memory: the state that survives a restart of this process
Answer = namedtuple("Answer", "question round phase base body parts")
class Memory:
    def __init__(self, path: Path, holders: list[bytes], since: int) -> None:
        self.path, self.holders = path, holders
        path.parent.mkdir(parents=True, exist_ok=True)
        found: list[Any] = msgpack.unpackb(path.read_bytes()) if path.exists() else [0, 0, 0, "", []]
        found += [holders, 0, []][len(found) - 5 :]
        self.boot, self.epoch, self.sequence, self.run, answers, of, seen, self.lost = found
        self.answers = [Answer(*answer) for answer in answers]
        renewed, other, others = (a != b for a, b in zip(of, holders, strict=True))
        self.seen = 0 if renewed else seen  # new approvals are installed after a wrong clock was set
        self.least = max(since, self.seen - 86_400)  # a clock that shows less is wrong, and checks no number
        self.boot *= not (other or (renewed and self.ahead(self.boot)))  # new keys begin with new numbers
        self.epoch *= not (others or self.ahead(self.epoch))

    def ahead(self, number: int) -> bool:  # whether a number is more than a day ahead
        return number - 86_400 > time.time() >= self.least

    def write(self) -> None:  # after a power cut, the old file or the new file is there
        self.seen, numbers = max(self.seen, int(time.time())), [self.boot, self.epoch, self.sequence]
        with self.path.with_suffix(".new").open("wb", 0) as file:
            file.write(msgpack.packb([*numbers, self.run, self.answers, self.holders, self.seen, self.lost]))
            os.fsync(file.fileno())
        self.path.with_suffix(".new").replace(self.path)

# -- 3. Envelopes
Header = namedtuple("Header", ["major", "minor", "suite", "kind", "federation", "run", "epoch", "sender", "boot",
                               "sequence", "recipient", "round", "phase", "base"])
def envelope(header: Header, fields: Fields, keys: Keys) -> bytes:
    packed, payload = msgpack.packb(header), msgpack.packb(fields)
    head = b"PF\x01" + struct.pack("<H", len(packed)) + packed
    if header.suite == 1:
        payload = HPKE.encrypt(payload, keys.coordinator_receives, info=b"protofleet/1 sealed\0" + head)
    return bytes(head + payload + keys.sign.sign(b"protofleet/1 envelope\0" + head + payload))

def opened(topic: str, frame: bytes, keys: Keys) -> tuple[Header, Fields]:  # raises one of FAULTS for a bad frame
    start, state = 5 + int.from_bytes(frame[3:5], "little"), topic.endswith("/coord/state")
    h = Header._make(msgpack.unpackb(frame[5:start])[:14])  # a later version may have more fields
    keys.coordinator_signs.verify(frame[-64:], b"protofleet/1 envelope\0" + frame[:-64])
    expected = 1, keys.federation, "coordinator", "*" if state else keys.name, 0 if state else 1, state
    if (h.major, h.federation, h.sender, h.recipient, h.suite, h.kind == "state") != expected:
        raise ValueError(f"a {h.kind} that is not for us")
    info, payload = b"protofleet/1 sealed\0" + frame[:start], frame[start:-64]
    return h, msgpack.unpackb(payload if state else HPKE.decrypt(payload, keys.receive, info=info))

# -- 4. Bodies: named arrays
CODES = dict(float16="e", float32="f", float64="d", int8="b", int16="h", int32="i", int64="q", uint8="B", bool="?")
KINDS = {"weights", "prototypes", "anchors", "classifier", "amplifier", "features", "labels", "counts"}
Array = namedtuple("Array", "dtype shape numbers")  # numbers in row-major order
def kind_of(name: str) -> str:
    return first if (first := name.partition(".")[0]) in KINDS else "control"

def decode(body: bytes) -> Fields:
    found, at = {}, 4 + int.from_bytes(body[:4], "little")
    for name, dtype, shape in msgpack.unpackb(body[4:at]):
        form = f"<{prod(shape)}{CODES[dtype]}"
        found[name] = Array(dtype, shape, struct.unpack_from(form, body, at))
        at += struct.calcsize(form)
    return found

def encode(arrays: Fields) -> tuple[bytes, list[list[Any]]]:  # the body, and its number of bytes for each kind
    ordered = sorted(arrays.items(), key=lambda item: (kind_of(item[0]), item[0]))
    table = msgpack.packb([[name, a.dtype, a.shape] for name, a in ordered])
    pieces, kinds = [struct.pack("<I", len(table)) + table], dict[str, int]()
    for name, (dtype, _, numbers) in ordered:
        pieces.append(struct.pack(f"<{len(numbers)}{CODES[dtype]}", *numbers))
        kinds[kind_of(name)] = kinds.get(kind_of(name), 0) + len(pieces[-1])
    return b"".join(pieces), [["control", len(pieces[0])], *(list(part) for part in kinds.items())]

# -- 5. Objects: bodies that travel in blocks
Manifest = namedtuple("Manifest", "object size block hashes parts key")
def manifest_of(body: bytes, parts: list[list[Any]], room: int) -> Manifest:  # each object has a new key
    block = 1 << max(min(16, room.bit_length() - 1), ((len(body) - 1) // 4096).bit_length())
    hashes = (hashlib.sha256(body[i : i + block]).digest()[:16] for i in range(0, len(body), block))
    return Manifest(hashlib.sha256(body).digest(), len(body), block, b"".join(hashes), parts, os.urandom(32))

def name_of(manifest: Manifest) -> bytes:  # the name on the wire
    return hashlib.sha256(b"protofleet/1 object\0" + manifest.key + manifest.object).digest()

def block_frame(manifest: Manifest, index: int, body: bytes) -> bytes:
    head = b"PF\x02" + name_of(manifest)[:16] + struct.pack("<I", index)
    data = body[index * manifest.block : (index + 1) * manifest.block]
    return head + AESGCM(manifest.key).encrypt(index.to_bytes(12, "little"), data, head)

# -- 6. The answer: arrays that satisfy the rows of `wants`
Row = namedtuple("Row", "name dtype shape most low high norm finite rules")
def answer_to(wants: list[Row], sent: Fields, examples: int, dice: random.Random) -> Fields:
    """Return the arrays of the broadcast with small changes, and random arrays. Put your own computation here."""
    names = [*sent, *(row.name for row in wants if "*" not in row.name and row.name not in sent)]
    first = {name: next((row for row in wants if fnmatchcase(name, row.name)), None) for name in names}
    rows, lengths = {name: row for name, row in first.items() if row and "optional" not in row.rules}, Fields()
    for r, axis in [(row, dim) for row in rows.values() for dim in row.shape or [] if isinstance(dim, str)]:
        labels = r.high + 1 if r.dtype.startswith("int") and r.high is not None else inf  # labels must differ
        step = next((int(rule.split()[-1]) for rule in r.rules if rule.startswith("most, or")), 0)
        lengths[axis] = int(min(step or lengths.get(axis, examples), r.most, labels))
    return {name: array_for(row, sent.get(name), lengths, examples, dice) for name, row in rows.items()}

def array_for(row: Row, sent: Array | None, lengths: Fields, examples: int, dice: random.Random) -> Array:
    dtype, shape, numbers = sent if sent and row.dtype is None else (row.dtype, row.shape, None)
    real, count = dtype.startswith("float"), prod(shape := [lengths.get(dim, dim) for dim in shape])
    low, high = (end if bound is None else bound for bound, end in ((row.low, -inf), (row.high, inf)))
    most = min(1.0, inf if row.norm is None else row.norm / sqrt(count or 1))
    numbers = numbers or ([dice.uniform(-most, most) for _ in range(count)] if real else range(count))
    numbers = [examples // count] * count if "sum<=examples" in row.rules else numbers
    changed = float32([n * dice.uniform(0.998, 1.0) for n in numbers]) if real else numbers
    return Array(dtype, shape, [(float if real else int)(min(max(n, low), high)) for n in changed])

# -- 7. Coded arrays, for a run with a codec
EXACT, HALF, INT8, INTS, DIFFERENCE, TERNARY, GOLDEN = 1, 2, 4, 10, 128, 128 + 9, (sqrt(5) + 1) / 2
CODED = {"form": ("exact", "int8", "ternary"), "rounding": ("nearest",), "pack": (False,)}  # supported
def float32(numbers: Any) -> list[float]:  # round each number once
    return list(struct.unpack(f"<{len(numbers)}f", struct.pack(f"<{len(numbers)}f", *numbers)))

def leb(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + leb(number >> 7)

def int8(a: Array) -> tuple[bytes, list[float]]:  # the content of a record, and the decoded numbers
    scales, codes, read, rows = b"", list[int](), list[float](), a.shape[0] if len(a.shape) > 1 else 1
    for row in (a.numbers[i * len(a.numbers) // rows : (i + 1) * len(a.numbers) // rows] for i in range(rows)):
        raw = struct.unpack("<I", struct.pack("<f", max(map(abs, row), default=0.0) / 127))[0] + 0xFFFF >> 16
        [scale] = struct.unpack("<f", struct.pack("<I", raw << 16))  # rounded up, so that no code exceeds 127
        near = [max(-127, min(127, round(n))) for n in float32([n / (scale or inf) for n in row])]
        scales, codes, read = scales + struct.pack("<H", raw), codes + near, read + [scale * code for code in near]
    return scales + struct.pack(f"{len(codes)}b", *codes), float32(read)

def ternary(numbers: list[float], kept: list[int]) -> tuple[bytes, list[float]]:
    *_, total = accumulate((abs(numbers[i]) for i in kept), initial=0.0)  # in this order; sum() may round differently
    [size] = float32([total / (len(kept) or 1)])
    b = 1 + floor(log2(log(GOLDEN - 1) / log1p(-len(kept) / len(numbers)))) if 0 < 2 * len(kept) < len(numbers) else 0
    gaps, signs = [at - before - 1 for before, at in pairwise([-1, *kept])], {i: numbers[i] > 0 for i in kept}
    rests = "".join(f"{gap & (1 << b) - 1:0{b}b}"[::-1] for gap in gaps if b)
    streams = "".join("0" * (gap >> b) + "1" for gap in gaps), rests, "".join("01"[sign] for sign in signs.values())
    bits = "".join(one + "0" * (-len(one) % 8) for one in streams)
    data = struct.pack("<IfB", len(kept), size, b) + int(bits[::-1] or "0", 2).to_bytes(len(bits) // 8, "little")
    return data, [(size if signs[i] else -size) if i in signs else 0.0 for i in range(len(numbers))]

def content(form: int, a: Array, kept: Any = ()) -> tuple[bytes, list[float]]:
    if form == TERNARY or form % DIFFERENCE == INT8:
        return ternary(a.numbers, kept) if form == TERNARY else int8(a)
    if form % DIFFERENCE == INTS:
        return b"".join(leb(n << 1 ^ n >> 63) for n in a.numbers), []
    return struct.pack(f"<{len(a.numbers)}{'e' if form == HALF else CODES[a.dtype]}", *a.numbers), []

def form_of(name: str, a: Array, stage: Fields, held: Array | None, lost: list[float]) -> tuple[int, Array]:
    held = held if (against := stage.get("against") == "broadcast") and held and held[:2] == a[:2] else None
    if held and content(EXACT, held) == content(EXACT, a) and not any(lost):
        return DIFFERENCE, a._replace(numbers=())
    minus = [n - h for n, h in zip(a.numbers, held.numbers, strict=True)] if held and a.dtype != "bool" else []
    if a.dtype != "float32" or stage.get("form", "exact") == "exact":
        ways = [(EXACT, a), (INTS, a), (INTS + DIFFERENCE, a._replace(numbers=minus))]
        return min(ways[: 2 + bool(minus) if a.dtype[0] in "ib" else 1], key=lambda way: len(content(*way)[0]))
    if name.endswith((".running_mean", ".running_var")) or not (held if against else len(a.shape) > 1):
        return HALF if max(map(abs, a.numbers), default=0) < 65520 else EXACT, a
    added = float32([n + r for n, r in zip(float32(minus), lost or [0.0] * len(minus), strict=True)])
    dense = len(a.shape) < 2 or len(added) < 1024 or stage["form"] == "int8"
    return (INT8 + DIFFERENCE if dense else TERNARY, a._replace(numbers=added)) if held else (INT8, a)

def bundle(arrays: Fields, stage: Fields, sent: Fields, lost: Fields) -> tuple[bytes, Fields]:  # data, coding errors
    chosen = {n: form_of(n, a, stage, sent.get(n), lost.get(n, [])) for n, a in sorted(arrays.items())}
    sparse = sorted((-abs(x), n, i) for n, (f, a) in chosen.items() if f == TERNARY for i, x in enumerate(a.numbers))
    kept = {(n, i) for least, n, i in sparse[: max(1, len(sparse) // (stage.get("keep") or 1))] if least}
    names = leb(len(chosen)) + b"".join(leb(len(n)) + n for n in map(str.encode, chosen))
    data, off, feedback = b"\1\0" if [*chosen] == sorted(sent) else b"\1\1" + names, Fields(), stage.get("feedback")
    for n, (form, a) in chosen.items():
        about = bytes([[*CODES].index(a.dtype), len(a.shape)]) + b"".join(map(leb, a.shape))
        record, read = content(form, a, [i for i in range(len(a.numbers)) if (n, i) in kept])
        data += bytes([form]) + (about if form < DIFFERENCE else b"") + leb(len(record)) + record
        off[n] = float32([x - r for x, r in zip(a.numbers, read, strict=True)]) if read and feedback else []
    return data, off

# -- 8. The conversation
class Device:
    def __init__(self, keys: Keys, folder: Path, classes: int, examples: int) -> None:
        self.keys, self.classes, self.examples = keys, classes, examples
        self.memory, self.inbox = Memory(folder / "memory", keys.holders, keys.since), queue.SimpleQueue[Any]()
        self.memory.boot = max(self.memory.boot + 1, int(time.time()))
        self.memory.write()  # store the boot before the first message
        self.prefix, self.room, self.birth = f"protofleet/1/{keys.federation}/", 0, 0
        self.up, self.my_state = f"{self.prefix}up/{keys.name}", f"{self.prefix}dev/{keys.name}/state"
        self.run, self.sequence, self.said, self.floor, self.seen = "", 0, 0, self.memory.sequence, set[int]()
        self.plan, self.planned_by, self.counts, self.refused, self.ended = b"", 0, list[int](), False, -1
        self.task = self.coming = self.answer = None  # type: Any
        self.offers, self.served, self.stages = dict[bytes, Fields](), dict[bytes, tuple[Manifest, bytes]](), Fields()
        self.blocks, self.asked, self.bodies, self.early = dict[int, bytes](), set[int](), dict[bytes, bytes](), b""
        self.pauses, self.at = {"update": 5.0, "want": 1.0}, {"hello": inf, "update": inf, "want": inf}

    def frame(self, number: int, kind: str, fields: Fields, place: tuple[int, str, bytes] = (0, "", b"")) -> bytes:
        k, m, (suite, to) = self.keys, self.memory, (0, "*") if kind == "state" else (1, "coordinator")
        who = 1, 1, suite, kind, k.federation, self.run, m.epoch, k.name, m.boot, number, to
        return envelope(Header(*who, *place), fields, k)

    def say(self, kind: str, fields: Fields, *place: Any) -> None:
        self.sequence += 1
        self.publish(self.frame(self.sequence, kind, fields, *place), kind == "state")

    def publish(self, frame: bytes, state: bool = False) -> None:
        if self.client.is_connected():  # a dropped message is sent again later
            self.client.publish(self.my_state if state else self.up, frame, 1, state)

    def wait(self, what: str, seconds: float, most: float) -> None:
        self.at[what], self.pauses[what] = time.monotonic() + seconds, min(2 * seconds, most)

    def hello(self) -> None:
        known, self.said = self.planned_by == self.memory.epoch, self.sequence + 1  # a new epoch may have a new plan
        self.say("hello", {"classes": self.classes, "examples": self.examples, "protocol": [1, 1], "can": CAN,
                           "plan": self.plan if known else b"", "counts": self.counts if known else []})
        self.wait("hello", 15, 15)

    def take(self, message: paho.MQTTMessage) -> None:
        try:
            if message.payload[:3] == b"PF\x02":
                return self.block(bytes(message.payload), message.topic.endswith("/bcast/now"))
            header, fields = opened(message.topic, bytes(message.payload), self.keys)
            if self.is_new(header.epoch, header.sequence):
                self.run = header.run
                self.wait("hello", 15, 15)
                getattr(self, f"on_{header.kind}".replace("finished", "state"))(header, fields)
        except FAULTS as fault:
            print(f"dropped a frame: {type(fault).__name__} {str(fault)[:80]!r}", flush=True)

    def is_new(self, epoch: int, number: int) -> bool:
        m = self.memory
        if epoch > m.epoch:
            if m.ahead(epoch):
                raise ValueError(f"epoch {epoch} is more than a day ahead of this clock")
            m.epoch, m.sequence, self.floor, self.seen = epoch, 0, 0, set()
        new = epoch == m.epoch and number > max(self.floor, m.sequence - 1024) and number not in self.seen
        self.seen |= {number} if new else set()
        m.sequence = max(m.sequence, number if new else 0)
        return new or (number == 0 and epoch == m.epoch)  # a will may arrive more than once

    def on_state(self, header: Header, fields: Fields) -> None:
        if "finished" not in (header.kind, fields.get("reason")):
            self.wait("hello", 0 if fields["online"] and fields.get("reason") != "here" else 15, 15)
        elif header.run == self.memory.run:
            self.end(0, "finished")

    def on_welcome(self, header: Header, fields: Fields) -> None:
        about, digest = fields.get("about", {}), hashlib.sha256(fields["plan"]).digest()
        self.stages = (json.loads(fields["plan"]).get("codec") or {}).get("up", {})
        strange = {f"codec {k} {v}" for s in self.stages.values() for k, v in s.items() if v not in CODED.get(k, [v])}
        if lacking := {*about.get("uses", [])} - {*CAN} | {"counts", "wants"} - {*about.get("can", [])} | strange:
            return self.end(1, f"not known to both, this device and this coordinator: {', '.join(lacking)}")
        self.counts = [(self.examples + i) // self.classes for i in range(self.classes) if about.get("counts")]
        if header.run != self.memory.run or digest != (self.plan or digest):
            self.memory.run, self.memory.answers, self.memory.lost, self.answer = header.run, [], [], None
        self.plan, self.planned_by = digest, header.epoch
        self.hello()

    def on_task(self, header: Header, fields: Fields) -> None:
        m, offer = self.memory, fields.get("follows") or fields.get("manifest") or fields["broadcast"] or [b""]
        question = hashlib.sha256(msgpack.packb([header.run, header.round, header.phase, offer[0]])).digest()
        if header.run != m.run or not self.plan or (m.answers and header.round < m.answers[-1].round):
            return  # without a plan: the next hello makes the coordinator send the task again
        self.task, self.refused = (header, fields), False
        if said := [answer for answer in m.answers if answer.question == question]:
            self.answer, self.pauses["update"] = said[0], 5.0  # send the stored answer again
            self.update()
        elif not offer[0] or offer[0] in self.bodies:
            self.work(offer[0], question)
        else:
            self.fetch(fields, fields.get("follows"), fields.get("manifest"))

    def fetch(self, fields: Fields, follows: Any, boxed: Any) -> None:  # first a manifest that is an object
        if follows:
            parts = [*follows[:2], follows[1], follows[0][:16], [], follows[2]]
        elif boxed and (box := self.bodies.get(boxed[3][0])):
            parts = [*msgpack.unpackb(bytes(decode(box)["manifest"].numbers))[:5], boxed[2]]
        else:
            parts = boxed[3] if boxed else fields["broadcast"]
        manifest = Manifest._make(parts[:6])
        if self.coming is None or name_of(self.coming) != name_of(manifest):
            if self.coming:
                self.client.unsubscribe(f"{self.prefix}bcast/{name_of(self.coming).hex()}")
            self.coming, self.blocks, self.asked = manifest, {}, set()
            self.wait("want", 1, 20)
            if follows:
                return self.block(self.early, False)
            self.client.subscribe(f"{self.prefix}bcast/{name_of(manifest).hex()}", 1)
            self.want(False)

    def want(self, again: bool = True) -> None:
        known = {*self.blocks} if again else {*self.blocks, *self.asked}
        self.asked.update(gaps := [i for i in range(len(self.coming.hashes) // 16) if i not in known][:64])
        ranges = [n for i in gaps for n in (i, i + 1)]
        self.say("want", {"object": self.coming.object, "ranges": ranges, "again": again})
        self.wait("want", self.pauses["want"] if again else 1, 20)

    def block(self, frame: bytes, unasked: bool) -> None:
        index, coming = int.from_bytes(frame[19:23], "little"), self.coming
        if not coming or frame[3:19] != name_of(coming)[:16] or index >= len(coming.hashes) // 16:
            self.early = frame if unasked else self.early  # the block has arrived before its task
            return
        self.blocks[index] = AESGCM(coming.key).decrypt(index.to_bytes(12, "little"), frame[23:], frame[:23])
        self.wait("want", 1, 20)
        body = b"".join(self.blocks[i] for i in sorted(self.blocks))
        if len(body) == coming.size:
            self.client.unsubscribe(f"{self.prefix}bcast/{name_of(coming).hex()}")
            self.bodies = {coming.object: body} if hashlib.sha256(body).digest() == coming.object else {}
            self.coming, self.at["want"] = None, inf
            self.on_task(*self.task)
        elif self.asked <= {*self.blocks}:
            self.want(False)

    def work(self, base: bytes, question: bytes) -> None:
        header, fields = self.task
        rows, sent = [Row(*row[:9]) for row in fields.get("wants", [])], decode(self.bodies[base]) if base else {}
        body, parts = encode(self.coded(answer_to(rows, sent, self.examples, random.Random()), sent))
        self.answer, self.pauses["update"] = Answer(question, header.round, header.phase, base, body, parts), 5.0
        self.bodies = {base: self.bodies.get(base, b""), hashlib.sha256(body).digest(): body}  # a later base
        self.memory.answers = [*(a for a in self.memory.answers if a.round == header.round), self.answer]
        self.memory.write()  # store the answer before it is sent
        self.update()

    def coded(self, arrays: Fields, sent: Fields) -> Fields:  # also adds the coding errors to memory.lost
        (header, fields), lost = self.task, self.memory.lost or [[0, "", {}]]
        used = next((i for i, one in enumerate(lost) if one[:2] == fields.get("took")), 0)  # the rest was not used
        first = max((i for i, one in enumerate(lost[: used + 1]) if one[0] < header.round), default=0)
        found, left = {n: a for n, a in arrays.items() if n.partition(".")[0] not in self.stages}, {**lost[used][2]}
        for kind in {n.partition(".")[0] for n in arrays} & {*self.stages}:
            own, theirs = ({n: a for n, a in some.items() if n.partition(".")[0] == kind} for some in (arrays, sent))
            data, left[name] = bundle(own, self.stages[kind], theirs, left.get(name := f"{header.phase} {kind}", {}))
            found[f"{kind}.~"] = Array("uint8", [len(data)], data)
        self.memory.lost = [*lost[first : used + 1], [header.round, header.phase, left]]
        return found

    def update(self) -> None:
        if (a := self.answer) and (self.planned_by, self.run) == (self.memory.epoch, self.memory.run):
            self.offers[a.question] = offer = self.offers.get(a.question) or self.offered(a.body, a.parts)
            fields = {"examples": self.examples, "metrics": {}, "numbers": {}, **offer}  # without measurements
            self.say("update", fields, (a.round, a.phase, a.base))
            self.wait("update", self.pauses["update"], 60)

    def offered(self, body: bytes, parts: list[list[Any]]) -> Fields:
        if len(body) <= min(48 * 1024, self.room):
            return {"arrays": body}
        whole = manifest_of(body, parts, self.room)
        self.served[whole.object] = whole, body
        if len(whole.hashes) <= self.room:
            return {"arrays": whole}
        body, parts = encode({"manifest": Array("uint8", [len(plain := msgpack.packb(whole[:5]))], plain)})
        box = manifest_of(body, parts, self.room)
        self.served[box.object] = box, body
        return {"arrays": None, "manifest": [whole.object, whole.size, whole.key, box]}

    def on_want(self, header: Header, fields: Fields) -> None:
        for name, ranges in [(fields["object"], fields["ranges"]), *fields.get("more", [])]:
            for first, last in zip(*[iter(ranges if name in self.served else [])] * 2, strict=True):
                for i in range(first, last):
                    self.publish(block_frame(self.served[name][0], i, self.served[name][1]))

    def on_receipt(self, header: Header, fields: Fields) -> None:
        print(f"round {header.round} {header.phase}: {fields['verdict']} {fields['reason']}", flush=True)
        if self.answer and (self.answer.round, self.answer.phase) == (header.round, header.phase):
            self.answer, self.offers, self.served, self.at["update"] = None, {}, {}, inf
            self.memory.write()

    def on_refusal(self, header: Header, fields: Fields) -> None:
        boot, answers = fields.get("boot", 0), fields.get("answers", [])
        if boot > self.memory.boot or answers == [self.memory.boot, self.said] or (self.refused and not boot):
            return self.end(1, f"refused: {fields['reason']}", boot)
        self.refused = not boot and not answers  # it may refer to an earlier start, so wait for a second one
        self.wait("hello", 2, 2)

    def end(self, code: int, why: str, boot: int = 0) -> None:
        print(why, flush=True)
        if boot <= self.memory.boot:  # otherwise a later process has the name: send nothing more in this name
            self.say("bye", {"reason": why})
            self.say("state", {"online": False, "reason": why})
        self.memory.boot, self.ended = max(self.memory.boot, boot), code
        self.memory.write()

    # -- 9. The connection
    def live(self, host: str, port: int) -> int:
        self.client = self.connection()
        self.client.connect_async(host, port, 30, clean_start=False, properties=KEPT)
        self.client.loop_start()
        while self.ended < 0:
            try:
                self.inbox.get(timeout=max(0.0, min(1.0, min(self.at.values()) - time.monotonic())))()
            except queue.Empty:
                for what in [what for what, at in self.at.items() if at <= time.monotonic()]:
                    self.at[what] = inf
                    getattr(self, what)()
        time.sleep(0.5)  # let the client send the last messages
        self.client.disconnect()
        return self.ended

    def connection(self) -> paho.Client:
        k, context = self.keys, ssl.create_default_context(cafile=self.keys.folder / "ca.crt")
        context.load_cert_chain(k.folder / "tls.crt", k.folder / "tls.key")
        client = paho.Client(CallbackAPIVersion.VERSION2, f"{k.federation}.{k.name}", protocol=paho.MQTTv5)
        client.tls_set_context(context)
        client.will_set(self.my_state, self.frame(0, "state", {"online": False, "reason": "lost"}), 1, True)
        client.on_connect, client.on_subscribe = self.connected, self.subscribed
        client.on_disconnect = lambda c, d, f, code, p: self.lost(code)
        client.on_message = lambda c, d, m: self.inbox.put(lambda: self.take(m))
        return client

    def connected(self, client: paho.Client, data: Any, flags: Any, code: Any, told: Any) -> None:
        self.lost(code)
        self.room, self.offers = getattr(told, "MaximumPacketSize", 1 << 28) - 4096, {}  # make offers of the new size
        topics = [(self.prefix + topic, 1) for topic in ("coord/state", f"down/{self.keys.name}", "bcast/now")]
        self.birth = client.subscribe(topics)[1] or 0

    def subscribed(self, client: paho.Client, data: Any, mid: int, codes: Any, told: Any) -> None:
        if mid == self.birth:  # subscribed: no response to the hello can be missed
            self.inbox.put(lambda: self.say("state", {"online": True}))
            self.inbox.put(self.hello)

    def lost(self, code: Any) -> None:
        if code.value in FINAL:
            self.inbox.put(lambda: self.end(1, f"the broker does not take us: {code}"))

if __name__ == "__main__":
    host, port, keys, folder, classes, examples = sys.argv[1:]
    device = Device(read_keys(Path(keys)), Path(folder), int(classes), int(examples))
    signal.signal(signal.SIGTERM, lambda *_: device.inbox.put(lambda: device.end(0, "told to stop")))
    sys.exit(device.live(host, int(port)))
