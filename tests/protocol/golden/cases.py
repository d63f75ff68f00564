"""Cases of the golden vectors: a short run of one device, and rare cases of the format."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import astuple, replace

import msgpack

from protofleet.protocol.link import indirect_manifest
from protofleet.protocol.security.envelope import Header, read_header
from protofleet.protocol.wire import arrays, blocks, codec
from protofleet.protocol.wire.class_names import digest_of
from protofleet.protocol.wire.messages import (
    About,
    ArraySpec,
    BlockRequest,
    Bye,
    CommandOutcome,
    CommandRequest,
    Delta,
    Finished,
    Hello,
    IndirectManifest,
    Manifest,
    Message,
    News,
    Probe,
    Receipt,
    Refusal,
    RoundStatus,
    State,
    StepDown,
    Task,
    Update,
    Welcome,
    short_name,
)
from tests.protocol.golden.vectors import Array, Block, Body, Case, Envelope, Later, Refused, key

EPOCH, BOOT = 1_800_000_000, 1_800_000_060
PLAN = json.dumps(
    {
        "classes": 2,
        "hyper": {"epochs": 1, "lr": 0.05},
        "method": "fedavg",
        "network": {"name": "cnn23"},
        "rounds": 1,
        "seed": 7,
        "size": 32,
    },
    sort_keys=True,
).encode()


def body(*rows: Array) -> Body:
    sizes: dict[str, int] = {}
    for row in rows:
        item = arrays.DTYPES[row.dtype].itemsize
        kind = arrays.kind_of(row.name)
        sizes[kind] = sizes.get(kind, 0) + item * len(row.values)
    table = msgpack.packb([[a.name, a.dtype, list(a.shape)] for a in rows])
    return Body(rows, (("control", 4 + len(table)), *sizes.items()))


def manifest(of: Body, block: int) -> Manifest:
    return blocks.manifest_of([of.encode()], of.parts, block)


def envelope_of(
    sender: str, sequence: int, message: Message, attachment: bytes | Manifest | None = None
) -> Envelope:
    """Seal a frame: the coordinator sends to the device, the device to the coordinator, births go to all."""
    mine = sender == "coordinator"
    other = "board-7" if mine else "coordinator"
    place = codec.task_id_of(message)
    header = Header(
        1, 0, 0, codec.KINDS[type(message)], "lab", "spring", EPOCH, sender, EPOCH if mine else BOOT, sequence,
        "*" if isinstance(message, State) else other, place.round, place.phase, place.base,
    )  # fmt: skip
    return Envelope(header, message, attachment)


def before_first_contact(envelope: Envelope) -> Envelope:
    """Return the envelope of a device that has received no message yet: it knows neither run nor epoch."""
    return replace(envelope, header=replace(envelope.header, run="", epoch=0))


def sealed(envelope: Envelope) -> Envelope:
    return replace(envelope, header=replace(envelope.header, suite=1))


def head_of(envelope: Envelope) -> bytes:
    """Return all bytes before the payload."""
    frame = envelope.encode()
    return frame[: read_header(frame)[1]]


DOWN = body(
    Array("classifier.bias", "float32", (2,), (0.5, -0.5)),
    Array("weights.conv", "float32", (2, 3), (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)),
)
UP = body(
    Array("counts", "int64", (2,), (3, 4)),
    Array("weights.conv", "float32", (2, 3), (0.5, 1.5, 2.5, 3.5, 4.5, 5.5)),
)
BROADCAST, OFFER = manifest(DOWN, 64), manifest(UP, 64)
HIDDEN = replace(BROADCAST, key=bytes(range(32)))
DIGEST = hashlib.sha256(PLAN).digest()
CORNERS = body(
    Array("anchors", "float16", (1, 2), (1.5, -0.0)),
    Array("odd", "bool", (3,), (True, False, True)),
    Array("steps", "int64", (), (-1,)),
    Array("features", "float64", (0, 4), ()),
    Array("labels", "uint8", (2, 1, 2), (0, 1, 254, 255)),
    Array("prototypes.a", "int16", (1,), (-2,)),
    Array("prototypes.b", "int32", (1,), (70_000,)),
    Array("prototypes.c", "int8", (1,), (-128,)),
)
HELLO = Hello("board-7", 2, 7, "garden", "protofleet 0.1.0")
ANSWER = Update("board-7", 1, "train", 7, BROADCAST.object, {}, {"loss.mean": 0.25, "seconds.work": 2.0})

CASES: dict[str, Case] = {
    "state of a device, its will": before_first_contact(
        envelope_of("board-7", 1, State(False, "connection lost"))
    ),
    "state of a device, its birth": before_first_contact(envelope_of("board-7", 2, State(True))),
    "hello, the first": before_first_contact(envelope_of("board-7", 3, HELLO)),
    "welcome": envelope_of("coordinator", 2, Welcome(PLAN)),
    "hello, on the plan": envelope_of(
        "board-7", 4, replace(HELLO, plan=DIGEST, counts=(3, 4), holds=(BROADCAST.object,))
    ),
    "body of the broadcast": DOWN,
    "task": envelope_of("coordinator", 3, Task(1, "train", BROADCAST, 60.0)),
    "want, of a device": envelope_of("board-7", 5, BlockRequest(BROADCAST.object, ((0, 2),))),
    "block 0": Block(BROADCAST.object, 0, DOWN.encode()[:64]),
    "block 1": Block(BROADCAST.object, 1, DOWN.encode()[64:]),
    "body of the answer": UP,
    "update, inline": envelope_of("board-7", 6, ANSWER, UP.encode()),
    "update, offered": envelope_of("board-7", 7, ANSWER, OFFER),
    "want, of the coordinator": envelope_of(
        "coordinator", 4, BlockRequest(OFFER.object, ((0, 1), (1, 2)), again=True)
    ),
    "receipt": envelope_of("coordinator", 5, Receipt(1, "train", "accepted")),
    "finished": envelope_of("coordinator", 6, Finished(1)),
    "state of the coordinator": envelope_of("coordinator", 1, State(True)),
    "bye": envelope_of("board-7", 8, Bye("signal SIGTERM")),
    "refusal": envelope_of("coordinator", 7, Refusal("it has 7 classes, this run has 2")),
    "refusal, of an older process": envelope_of(
        "coordinator", 11, Refusal("a later process has come", 1_800_000_060)
    ),
    "receipt, refused": envelope_of(
        "coordinator", 8, Receipt(1, "train", "refused", "weights.conv is (3, 3), not (2, 3)")
    ),
    "task without a broadcast": envelope_of("coordinator", 9, Task(1, "train", None, 0.5)),
    "hello, sealed": sealed(envelope_of("board-7", 9, HELLO)),
    "task, sealed": sealed(envelope_of("coordinator", 10, Task(1, "train", HIDDEN, 60.0))),
    "update, sealed": sealed(envelope_of("board-7", 10, ANSWER, UP.encode())),
    "sealed block 0": Block(BROADCAST.object, 0, DOWN.encode()[:64], HIDDEN.key),
    "sealed block 1": Block(BROADCAST.object, 1, DOWN.encode()[64:], HIDDEN.key),
    "body of nothing": body(),
    "hello, of one that has answered nothing": envelope_of(
        "board-7", 11, replace(HELLO, plan=DIGEST, phase="none")
    ),
    "hello, after an answer": envelope_of(
        "board-7",
        12,
        replace(HELLO, plan=DIGEST, holds=(BROADCAST.object,), round=1, phase="train", base=BROADCAST.object),
    ),
    "body of corners": CORNERS,
}


def signed(fields: list[object], payload: bytes, domain: bytes = b"protofleet/1 envelope\x00") -> bytes:
    """Make an envelope of board-7 by hand, so that it does not depend on the code under test."""
    packed = msgpack.packb(fields)
    frame = b"PF\x01" + struct.pack("<H", len(packed)) + packed + payload
    return frame + key("board-7").sign(domain + frame)


def hand_made() -> dict[str, Case]:
    hello = CASES["hello, the first"]
    assert isinstance(hello, Envelope)
    fields, payload = list(astuple(hello.header)), codec.encode(hello.message)
    more = msgpack.packb({**msgpack.unpackb(payload), "colour": "green"})
    later = replace(hello, header=replace(hello.header, minor=3))
    good = hello.encode()
    huge = msgpack.packb([["w", "float32", [1 << 39]]])
    flipped = good[:-65] + bytes([good[-65] ^ 1]) + good[-64:]
    stranger = [*fields[:7], "board-8", *fields[8:]]
    return {
        "hello of a later minor version": Later(later, signed([1, 3, *fields[2:], "shape"], more)),
        "a bit of the payload flipped": Refused("bad_signature", "the last before the signature", flipped),
        "a signature without its domain": Refused(
            "bad_signature", "of the frame", signed(fields, payload, b"")
        ),
        "another major version": Refused("version", "major 2", signed([2, *fields[1:]], payload)),
        "a suite of the future": Refused(
            "version", "suite 2", signed([*fields[:2], 2, *fields[3:]], payload)
        ),
        "sealed to nobody": Refused("not_for_us", "in clear", signed([*fields[:2], 1, *fields[3:]], payload)),
        "an unknown sender": Refused("unknown_sender", "board-8", signed(stranger, payload)),
        "a short header": Refused("malformed", "13 fields", signed(fields[:13], payload)),
        "a payload that is no map": Refused("malformed", "a list", signed(fields, msgpack.packb([1]))),
        "an empty block": Refused("malformed", "no data", b"PF\x02" + bytes(20)),
        "a table that promises too much": Refused(
            "bad_body", "2^39 numbers and no bytes", struct.pack("<I", len(huge)) + huge
        ),
    }


CASES |= hand_made()

# Messages with fields that minor version 1 has added.
CAN = ("inline", "many", "manifest", "wants")
METRICS = ("accuracy.test.global", "loss.test.global", "samples.test", "seconds.work")
# A plan for samples that are no square images; a device that supports only square images ends with one line.
SHAPED = json.dumps(
    {**{k: v for k, v in json.loads(PLAN).items() if k != "size"}, "shape": [6, 128]}, sort_keys=True
).encode()
ABOUT = About(CAN, ("manifest",), (), 16, METRICS)
MEASURED = replace(ANSWER, metrics={"accuracy.test.global": 0.5, "seconds.work": 2.0})
ROWS = (
    ArraySpec("labels", "int64", ("held",), 2, 0, 1, None, False, ()),
    ArraySpec(
        "counts", "int64", ("held",), 2, 1, 7, None, False, ("sum<=examples", ">=2 where repeated: labels")
    ),
    ArraySpec("lacks", "bool", (1,), None, None, None, None, False, ("optional",)),
    ArraySpec("weights.*.running_var", None, None, None, 0, None, 1e6, True, ()),
    ArraySpec("weights.*", None, None, None, None, None, 1e6, True, ()),
)
ONE_BLOCK = manifest(DOWN, len(DOWN.encode()))
FOLLOWS = Manifest(ONE_BLOCK.object, ONE_BLOCK.size, ONE_BLOCK.block, ONE_BLOCK.hashes, (), HIDDEN.key)
INSIDE = msgpack.packb(codec.manifest_fields(BROADCAST))
BOX = body(Array(indirect_manifest.ARRAY, "uint8", (len(INSIDE),), tuple(INSIDE)))
BOXED = IndirectManifest(
    BROADCAST.object, BROADCAST.size, HIDDEN.key, replace(manifest(BOX, 128), key=bytes(range(32, 64)))
)


def counted(envelope: Envelope) -> Envelope:
    """Return the envelope for two ends that know the names of the metrics."""
    return replace(envelope, metrics=METRICS)


CASES |= {
    "will of a device": before_first_contact(envelope_of("board-7", 0, State(False, "connection lost"))),
    "hello, with what it can": envelope_of("board-7", 11, replace(HELLO, can=CAN)),
    "welcome, to samples of another shape": envelope_of("coordinator", 32, Welcome(SHAPED)),
    "welcome, about the run": envelope_of("coordinator", 12, Welcome(PLAN, ABOUT)),
    "task, with what the answer must hold": envelope_of(
        "coordinator", 13, Task(1, "train", BROADCAST, 60.0, ROWS)
    ),
    "task, whose broadcast follows": envelope_of(
        "coordinator", 14, Task(1, "train", replace(FOLLOWS, key=b""), 60.0, follows=True)
    ),
    "body of a manifest": BOX,
    "task, whose manifest is an object": envelope_of("coordinator", 15, Task(1, "train", BOXED, 60.0)),
    "update, with metrics by their places": counted(envelope_of("board-7", 12, MEASURED, UP.encode())),
    "update, whose manifest is an object": envelope_of("board-7", 13, ANSWER, BOXED),
    "update, offered, with arrays of the kind control": envelope_of(
        "board-7", 14, ANSWER, manifest(CORNERS, 64)
    ),
    "want, of several objects": envelope_of(
        "coordinator", 16, BlockRequest(OFFER.object, ((0, 2),), more=((BROADCAST.object, ((0, 1),)),))
    ),
    "welcome, about the run, sealed": sealed(envelope_of("coordinator", 17, Welcome(PLAN, ABOUT))),
    "task, whose broadcast follows, sealed": sealed(
        envelope_of("coordinator", 18, Task(1, "train", FOLLOWS, 60.0, ROWS, follows=True))
    ),
    "sealed block that follows": Block(FOLLOWS.object, 0, DOWN.encode(), HIDDEN.key),
    "task, whose manifest is an object, sealed": sealed(
        envelope_of("coordinator", 19, Task(1, "train", BOXED, 60.0))
    ),
    "update, with metrics by their places, sealed": counted(
        sealed(envelope_of("board-7", 15, MEASURED, UP.encode()))
    ),
}

CALLED = ("cat", "dog")
NAMING = Hello("board-7", 2, 7, "garden", "protofleet 0.1.0", can=("names",))

CASES |= {
    "hello, with the names of its classes": before_first_contact(
        envelope_of("board-7", 16, replace(NAMING, names=CALLED))
    ),
    "hello, with the hash of these names": envelope_of(
        "board-7", 17, replace(NAMING, plan=DIGEST, names_hash=digest_of(CALLED))
    ),
    "welcome, with the names of the classes": envelope_of(
        "coordinator", 20, Welcome(PLAN, About(can=("names",), names=CALLED))
    ),
}

COUNTING = ("counts", "wants")
FEDHP = json.dumps({**json.loads(PLAN), "hyper": {}, "method": "fedhp"}, sort_keys=True).encode()
CASES |= {
    "hello, of one that tells counts when it is asked": before_first_contact(
        envelope_of("board-7", 19, replace(HELLO, can=COUNTING))
    ),
    "welcome, that asks for counts": envelope_of(
        "coordinator", 26, Welcome(FEDHP, About(COUNTING, counts=True))
    ),
}

PLACE = "lab-server pid 4711 folder 0badcafe"
CASES |= {
    "state of the coordinator, with where it is": envelope_of("coordinator", 1, State(True, who=PLACE)),
    "state of the coordinator, here, waiting for two": envelope_of(
        "coordinator", 24,
        State(True, "here", PLACE, RoundStatus(1, "train", 0, (short_name("board-7"), short_name("board-9")))),
    ),
    "state of the coordinator, here, gathering": envelope_of(
        "coordinator", 25, State(True, "here", PLACE, RoundStatus(2, "", 1, None))
    ),
    "will of the coordinator": envelope_of("coordinator", 0, State(False, "connection lost", PLACE)),
    "refusal, that says what it answers": envelope_of(
        "coordinator", 22, Refusal("it has 7 classes, this run has 2", answers=(1_800_000_060, 3))
    ),
    "refusal, that says what it answers, sealed": sealed(
        envelope_of("coordinator", 23, Refusal("it has 7 classes, this run has 2", answers=(1_800_000_060, 3)))
    ),
    "bye, at the end of the run": envelope_of("board-7", 18, Bye("finished")),
}  # fmt: skip

# A seal whose bytes can be computed again, because its ephemeral key is known.
KNOWN = replace(sealed(envelope_of("board-7", 20, replace(HELLO, can=CAN))), ephemeral=bytes(range(64, 96)))
CASES |= {
    "hello, sealed with a known ephemeral key": KNOWN,
    "the seal of that hello": KNOWN.sealing(head_of(KNOWN)),
}

# The one block of an update that its task requests in advance.
OWN_BLOCK = manifest(UP, len(UP.encode()))
STEP = manifest(body(Array("weights.~", "uint8", (24,), tuple(range(24)))), 16)
UNASKED = replace(OWN_BLOCK, parts=(), key=bytes(range(96, 128)))
CASES |= {
    "hello, of one that may send an answer's block unasked": envelope_of(
        "board-7", 21, replace(HELLO, can=("credit", *CAN))
    ),
    "task, with the update that was used last": envelope_of(
        "coordinator", 28, Task(2, "train", BROADCAST, 60.0, took=(1, "train"))
    ),
    "task, with bytes for one device only": envelope_of(
        "coordinator", 37, Task(2, "train.masked", BROADCAST, 30.0, personal=bytes(range(64, 148)))
    ),
    "hello, of one that takes part in masked sums": envelope_of(
        "board-7", 28, replace(HELLO, can=(*CAN, "secagg"))
    ),
    "welcome, with a codec that loses nothing": envelope_of(
        "coordinator", 33, Welcome(PLAN, About(CAN, codec=b'"exact"'))
    ),
    "task, with a delta": envelope_of(
        "coordinator", 29, Task(2, "train", BROADCAST, 60.0, delta=Delta(bytes(range(32)), STEP))
    ),
    "task, with a delta that follows and needs no reference": envelope_of(
        "coordinator",
        30,
        Task(2, "train", BROADCAST, 60.0, delta=Delta(b"", replace(FOLLOWS, key=b""), follows=True)),
    ),
    "task, that asks for the answer's block in advance": envelope_of(
        "coordinator", 27, Task(1, "train", replace(FOLLOWS, key=b""), 60.0, follows=True, credit=1)
    ),
    "update, whose block follows": envelope_of(
        "board-7", 22, replace(ANSWER, follows=True), replace(UNASKED, key=b"")
    ),
    "block of the answer, unasked": Block(UNASKED.object, 0, UP.encode()),
    "update, whose block follows, sealed": sealed(
        envelope_of("board-7", 23, replace(ANSWER, follows=True), UNASKED)
    ),
    "sealed block of the answer, unasked": Block(UNASKED.object, 0, UP.encode(), UNASKED.key),
}

# A device that takes part in several runs.
SEVERAL = ("runs", *CAN)
CASES |= {
    "hello, of a device without a run that could take on two": before_first_contact(
        envelope_of("board-7", 24, replace(HELLO, can=SEVERAL, capacity=2))
    ),
    "hello, of a device that works on another run": envelope_of(
        "board-7",
        25,
        replace(
            HELLO,
            plan=DIGEST,
            holds=(BROADCAST.object,),
            round=1,
            phase="train",
            base=BROADCAST.object,
            can=SEVERAL,
            capacity=1,
            working="autumn",
            answered=1,
        ),
    ),
    "hello, of a device that works on another run, sealed": sealed(
        envelope_of("board-7", 26, replace(HELLO, plan=DIGEST, can=SEVERAL, working="autumn", answered=1))
    ),
    "state of the coordinator, of two runs": envelope_of(
        "coordinator", 31, State(True, who=PLACE, runs=("autumn", "spring"))
    ),
    "state of the coordinator, here, of two runs": envelope_of(
        "coordinator",
        34,
        State(
            True, "here", PLACE, RoundStatus(1, "train", 0, (short_name("board-7"),)), ("autumn", "spring")
        ),
    ),
    "state of the coordinator, between runs": envelope_of("coordinator", 35, State(True, who=PLACE, runs=())),
}
# A device that has received a higher epoch, and a run that continues under another name.
NEWEST = CASES["state of the coordinator, of two runs"].encode()
CASES |= {
    "hello, with the newest state of a coordinator": envelope_of(
        "board-7", 27, replace(HELLO, plan=DIGEST, can=SEVERAL, answered=1, last_state=NEWEST)
    ),
    "welcome, of a run that takes the place of another": envelope_of(
        "coordinator", 36, Welcome(PLAN, instead="spring", keep="spring")
    ),
}  # fmt: skip

# The commands of an operator.
STOP = CommandRequest(bytes(range(16)), "stop", b'{"run": "spring", "reason": "wrong data"}')
STOPPED = CommandOutcome(STOP.id, "done", "the run is stopped", b"{}")
NEWS = News(41, ("round 1 of 2: 2 of 2 devices answered", "the run is finished"))
DENIED = CommandOutcome(STOP.id, "denied", "alice has no grant run, which stop needs", b"{}")


def commands(sequence: int, message: Message) -> Envelope:
    """Seal a frame between an operator and the coordinator; only news name a run."""
    said = envelope_of("board-7" if isinstance(message, CommandRequest) else "coordinator", sequence, message)
    to_operator = said.header.sender == "coordinator"
    party = {"recipient": "alice"} if to_operator else {"sender": "alice", "epoch": 0}
    run = "spring" if isinstance(message, News) else ""
    return replace(said, header=replace(said.header, run=run, **party))


CASES |= {
    "command": commands(1, STOP),
    "command, sealed": sealed(commands(2, STOP)),
    "result": commands(36, STOPPED),
    "result, denied, sealed": sealed(commands(37, DENIED)),
    "news": commands(38, NEWS),
    "news, the last of a run, sealed": sealed(commands(39, replace(NEWS, over="finished"))),
}


def probes(message: Message) -> Envelope:
    """Seal a frame of a standby: it has no run, no epoch and no boot."""
    said = envelope_of("coordinator", 0, message)
    return replace(said, header=replace(said.header, run="", epoch=0, boot=0, recipient="coordinator"))


CASES |= {
    "probe": probes(Probe()),
    "step_down": probes(StepDown(EPOCH, "hall-2 4711")),
}
