"""Conversion of cases to JSON and back; a person can read the JSON, and another language can use it."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from protofleet.protocol.security.envelope import (
    DOMAIN,
    HPKE,
    OPEN,
    SEALING,
    Header,
    read_header,
    seal,
    unseal,
)
from protofleet.protocol.security.keys import Keys, PublicKeys
from protofleet.protocol.wire import arrays, blocks, codec
from protofleet.protocol.wire.codec import Attachment, TaskId
from protofleet.protocol.wire.messages import (
    About,
    ArraySpec,
    BlockRequest,
    CommandOutcome,
    CommandRequest,
    Delta,
    Hello,
    IndirectManifest,
    Manifest,
    Message,
    Refusal,
    RoundStatus,
    State,
    Task,
    Update,
    Welcome,
)
from tests.protocol import hpke

FILE = Path(__file__).parent / "wire_1.json"
# These keys are public.
SECRETS = {"coordinator": bytes([1]) * 32, "board-7": bytes([7]) * 32, "alice": bytes([5]) * 32}


@dataclass(frozen=True)
class Array:
    name: str
    dtype: str
    shape: tuple[int, ...]
    values: tuple[Any, ...]  # In one list, row by row.


@dataclass(frozen=True)
class Body:
    arrays: tuple[Array, ...]
    parts: tuple[tuple[str, int], ...]

    def encode(self) -> bytes:
        values = {a.name: np.array(a.values, a.dtype).reshape(a.shape) for a in self.arrays}
        assert arrays.parts(values) == self.parts
        return b"".join(arrays.encode(values))

    @staticmethod
    def decode(data: bytes, _: object) -> Body:
        body = arrays.Body(lambda start, stop: data[start:stop], len(data))
        found = [(name, body[name]) for name in body]
        return Body(
            tuple(Array(n, a.dtype.name, a.shape, tuple(a.reshape(-1).tolist())) for n, a in found),
            body.parts,
        )


@dataclass(frozen=True)
class Block:
    object: bytes
    index: int
    data: bytes
    key: bytes = b""

    @property
    def manifest(self) -> Manifest:
        return Manifest(self.object, 1, 1, (), (), self.key)

    def encode(self) -> bytes:
        return blocks.pack(self.manifest, self.index, self.data)

    @staticmethod
    def decode(data: bytes, expected: object) -> Block:
        prefix, index, block = blocks.unpack(data)
        assert isinstance(expected, Block) and prefix == expected.manifest.wire_name[:16]
        plain = bytes(blocks.decrypted(expected.manifest, index, block))
        return Block(expected.object, index, plain, expected.key)


@dataclass(frozen=True)
class Envelope:
    header: Header
    message: Message
    attachment: Attachment = None
    metrics: tuple[str, ...] = ()  # The names of `about.metrics`; `numbers` uses their indices.
    ephemeral: bytes = b""  # The private key for a seal that can be repeated; if it is empty, a key is drawn.
    frame: bytes = b""  # The bytes of a sealed envelope, because each new seal has other bytes.

    def encode(self) -> bytes:
        if self.frame:
            return self.frame
        receive = b"" if self.header.suite == OPEN else ring()[self.header.recipient].receive
        made = seal(self.header, self.payload, key(self.header.sender), receive)
        if not self.ephemeral:
            return made
        head = made[: read_header(made)[1]]
        frame = head + self.sealing(head).encode()
        return frame + key(self.header.sender).sign(DOMAIN + frame)

    @property
    def payload(self) -> bytes:
        return codec.encode(self.message, self.attachment, self.metrics)

    def sealing(self, head: bytes) -> Sealing:
        return Sealing.of(self.header.recipient, self.ephemeral, SEALING + head, self.payload)

    def __eq__(self, other: object) -> bool:
        same = (self.header, self.message, self.attachment)
        return isinstance(other, Envelope) and same == (other.header, other.message, other.attachment)

    __hash__ = None  # type: ignore[assignment]

    @staticmethod
    def decode(data: bytes, expected: object) -> Envelope:
        header, payload = unseal(data, ring(), secrets(read_header(data)[0].recipient))
        place = TaskId(header.round, header.phase, header.base)
        metrics = expected.metrics if isinstance(expected, Envelope) else ()
        message, attachment = codec.decode(header.kind, payload, header.sender, place, metrics)
        ephemeral = expected.ephemeral if isinstance(expected, Envelope) else b""
        return Envelope(header, message, attachment, metrics, ephemeral)


@dataclass(frozen=True)
class Sealing:
    """A payload and its seal, with each intermediate number, for an author who writes HPKE by hand."""

    recipient: str
    receive: bytes  # The public key of the recipient.
    ephemeral: bytes  # The private key; outside of the vectors, each seal has a new random key.
    info: bytes
    payload: bytes
    shared_secret: bytes
    key: bytes
    nonce: bytes

    @staticmethod
    def of(recipient: str, ephemeral: bytes, info: bytes, payload: bytes) -> Sealing:
        drawn, receive = X25519PrivateKey.from_private_bytes(ephemeral), ring()[recipient].receive
        dh = drawn.exchange(X25519PublicKey.from_public_bytes(receive))
        secret = hpke.shared_secret(dh, drawn.public_key().public_bytes_raw(), receive)
        return Sealing(
            recipient, receive, ephemeral, info, payload, secret, *hpke.schedule(secret, info)
        )  # fmt: skip

    def encode(self) -> bytes:
        drawn = X25519PrivateKey.from_private_bytes(self.ephemeral)
        return hpke.seal(self.payload, self.receive, self.info, ephemeral=drawn)

    @staticmethod
    def decode(data: bytes, expected: object) -> Sealing:
        assert isinstance(expected, Sealing)
        payload = HPKE.decrypt(data, keys(expected.recipient).receive, info=expected.info)
        return Sealing.of(expected.recipient, expected.ephemeral, expected.info, payload)


@dataclass(frozen=True)
class Later:
    """A message that a later minor version could send. A reader accepts it, and we never send it."""

    understood_as: Envelope
    frame: bytes = b""

    def encode(self) -> bytes:
        return self.frame

    @staticmethod
    def decode(data: bytes, _: object) -> Later:
        return Later(Envelope.decode(data, None), data)


@dataclass(frozen=True)
class Refused:
    """A message that must be refused, with the reason."""

    reason: str
    why: str
    frame: bytes = b""

    def encode(self) -> bytes:
        return self.frame


Case = Body | Block | Envelope | Sealing | Later | Refused


def load() -> dict[str, Any]:
    book: dict[str, Any] = json.loads(FILE.read_text())
    return book


def dump(book: dict[str, Any]) -> None:
    FILE.write_text(json.dumps(book, indent=1) + "\n")


def key(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(SECRETS[name])


def keys(name: str) -> Keys:
    """Return both key pairs from the same 32 bytes, which only a test may do."""
    return Keys(key(name), X25519PrivateKey.from_private_bytes(SECRETS[name]))


def secrets(name: str) -> X25519PrivateKey | None:
    return keys(name).receive if name in SECRETS else None


def ring() -> dict[str, PublicKeys]:
    return {name: keys(name).public for name in SECRETS}


def vector_of(name: str, case: Case) -> dict[str, Any]:
    return {"name": name, "content": plain(case), "hex": case.encode().hex()}


def case_of(vector: dict[str, Any]) -> Case:
    case: Case = from_plain(vector["content"])
    drawn = isinstance(case, Envelope) and case.header.suite != OPEN and not case.ephemeral
    kept = drawn or isinstance(case, (Later, Refused))
    return replace(case, frame=bytes.fromhex(vector["hex"])) if kept else case


def plain(value: object) -> Any:
    """Return the JSON of a case. The key `is` names its type; bytes are objects with the single key `hex`."""
    if is_dataclass(value):
        own = FIELDS.get(type(value), {})
        named = {
            own.get(f.name, f.name): plain(getattr(value, f.name)) for f in fields(value) if f.name != "frame"
        }
        silent = ADDED.get(type(value), {})
        named = {k: v for k, v in named.items() if k not in silent or getattr(value, k) != silent[k]}
        if named.get("key") == {"hex": ""}:
            del named["key"]  # The object is not sealed.
        if isinstance(value, Hello) and not value.phase:
            named = {name: said for name, said in named.items() if name not in ("round", "phase", "base")}
        return {"is": NAMES.get(type(value), type(value).__name__), **named}
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, tuple):
        return [plain(v) for v in value]
    return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value


# The names of types in the vectors. They never change, although the classes may have other names.
NAMES: dict[type, str] = {
    BlockRequest: "Want",
    CommandRequest: "Command",
    CommandOutcome: "Result",
    ArraySpec: "Wanted",
    IndirectManifest: "Boxed",
    RoundStatus: "Now",
}
FIELDS: dict[type, dict[str, str]] = {IndirectManifest: {"manifest": "box"}}
TYPES: dict[str, type] = {
    NAMES.get(c, c.__name__): c
    for c in (
        Array,
        Body,
        Block,
        Envelope,
        Sealing,
        Later,
        Refused,
        Header,
        Manifest,
        IndirectManifest,
        About,
        ArraySpec,
        Delta,
        RoundStatus,
        *codec.KINDS,
    )
}
# Keys that messages got in minor versions 1 and 2, with the values that older vectors do not show.
ADDED: dict[type, dict[str, Any]] = {
    Envelope: {"metrics": (), "ephemeral": b""},
    Hello: {
        "can": (),
        "names": (),
        "names_hash": b"",
        "capacity": 0,
        "working": "",
        "answered": 0,
        "last_state": b"",
    },
    Welcome: {"about": About(), "instead": "", "keep": ""},
    About: {"counts": False, "codec": b""},
    Task: {"wants": (), "follows": False, "credit": 0, "took": None, "delta": None, "personal": b""},
    Update: {"follows": False},
    State: {"who": "", "now": None, "runs": None},
    BlockRequest: {"more": ()},
    Refusal: {"answers": ()},
}


def from_plain(value: Any) -> Any:
    """Return the case that JSON describes."""
    if isinstance(value, list):
        return tuple(from_plain(v) for v in value)
    if not isinstance(value, dict):
        return value
    if set(value) == {"hex"}:
        return bytes.fromhex(value["hex"])
    content = {k: from_plain(v) for k, v in value.items() if k != "is"}
    if "is" not in value:
        return content
    made = TYPES[value["is"]]
    own = {name: field for field, name in FIELDS.get(made, {}).items()}
    return made(**{own.get(name, name): part for name, part in content.items()})
