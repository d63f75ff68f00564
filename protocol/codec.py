"""Message <-> payload of an envelope: a msgpack map of the message's scalars, strictly decoded.

`round`, `phase` and `base` travel in the header. Tensors travel as an attachment: the body itself where
it fits into one packet, else the manifest of an object that is fetched in blocks. Unknown keys are
ignored: a later minor version may say more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgpack

from protocol import arrays
from protocol.messages import (
    Bye,
    Finished,
    Hello,
    Manifest,
    Message,
    Receipt,
    Refusal,
    State,
    Task,
    Update,
    Want,
    Welcome,
)
from protocol.reasons import Reason, Rejected

MAX_PAYLOAD: Final = 1 << 20
MAX_TEXT: Final = 512
MAX_RANGES: Final = 64
MAX_BLOCKS: Final = 4096
MAX_BLOCK: Final = 1 << 20  # bytes of one: what is half here is checked block by block in memory
MAX_ASKED: Final = 64  # blocks in one want: no receiver has more in flight
MAX_ROUND: Final = (1 << 31) - 1
MAX_PHASE: Final = 64  # bytes
MAX_METRICS: Final = 256
MAX_COUNTS: Final = 4096
MAX_HOLDS: Final = 64
MAX_PARTS: Final = 32
HASH: Final = 32
SHORT_HASH: Final = 16

Attachment: TypeAlias = bytes | Manifest | None
Fields: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """What the header says of a message's place in the run."""

    round: int = 0
    phase: str = ""
    base: bytes = b""


KINDS: Final[dict[type, str]] = {
    Hello: "hello",
    Welcome: "welcome",
    Task: "task",
    Update: "update",
    Receipt: "receipt",
    Refusal: "refusal",
    State: "state",
    Bye: "bye",
    Finished: "finished",
    Want: "want",
}


def place_of(message: Message) -> Place:
    match message:
        case Task(round, phase) | Receipt(round, phase):
            return Place(round, phase)
        case Hello() | Update():
            return Place(message.round, message.phase, message.base)
        case Finished(rounds):
            return Place(rounds)
    return Place()


def encode(message: Message, attachment: Attachment = None) -> bytes:
    packed: bytes = msgpack.packb(_fields(message, attachment), use_bin_type=True)
    return packed


def _fields(message: Message, attachment: Attachment) -> Fields:
    match message:
        case Hello():
            return {
                "classes": message.classes,
                "examples": message.examples,
                "domain": message.domain,
                "software": message.software,
                "protocol": list(message.protocol),
                "plan": message.plan,
                "counts": list(message.counts),
                "holds": b"".join(message.holds),
            }
        case Task():
            return {"broadcast": _manifest_fields(message.broadcast), "seconds": message.seconds}
        case Update():
            body = attachment if isinstance(attachment, bytes) else _manifest_fields(attachment)
            return {"examples": message.examples, "metrics": dict(message.metrics), "arrays": body}
        case Welcome():
            return {"plan": message.plan}
        case Receipt():
            return {"verdict": message.verdict, "reason": _cut(message.reason)}
        case Refusal(reason, boot) if boot:
            return {"reason": _cut(reason), "boot": boot}
        case Refusal(reason) | Bye(reason):
            return {"reason": _cut(reason)}
        case State():
            return {"online": message.online, "reason": _cut(message.reason)}
        case Finished():
            return {}
        case Want():
            flat = [n for pair in message.ranges for n in pair]
            return {"object": message.object, "ranges": flat, "again": message.again}


def decode(kind: str, payload: bytes, sender: str, place: Place) -> tuple[Message, Attachment]:
    """The message and what is attached to it, or Rejected. `sender` and `place` come from the header."""
    decoder = DECODERS.get(kind)
    if decoder is None:
        raise Rejected(Reason.MALFORMED, f"there is no message kind {kind[:32]!r}")
    if len(payload) > MAX_PAYLOAD:
        raise Rejected(Reason.TOO_LARGE, f"a payload of {len(payload)} bytes, over {MAX_PAYLOAD}")
    _judge_place(place)
    try:
        fields = msgpack.unpackb(
            payload, max_array_len=MAX_COUNTS, max_map_len=MAX_METRICS, max_ext_len=0, max_str_len=MAX_TEXT
        )
        return decoder(_typed(fields, dict), sender, place)
    except Rejected:
        raise
    except (ValueError, TypeError, KeyError, msgpack.UnpackException, RecursionError) as error:
        raise Rejected(Reason.MALFORMED, f"{kind}: {type(error).__name__} {str(error)[:80]}") from None


def _judge_place(place: Place) -> None:
    """The header's types are right; here are its limits, as others' databases and headers repeat them."""
    if place.round > MAX_ROUND or len(place.phase.encode()) > MAX_PHASE or len(place.base) not in (0, HASH):
        raise Rejected(Reason.MALFORMED, f"round {place.round}, phase or base are out of bounds")


def _hello(fields: Fields, sender: str, place: Place) -> tuple[Message, Attachment]:
    low, high = (_whole(v) for v in _typed(fields["protocol"], list))
    plan, holds = _typed(fields.get("plan", b""), bytes), _typed(fields.get("holds", b""), bytes)
    if len(holds) % HASH or len(holds) > MAX_HOLDS * HASH:
        raise TypeError(f"{len(holds)} bytes are not at most {MAX_HOLDS} SHA-256s")
    hello = Hello(
        device=sender,
        classes=_whole(fields["classes"]),
        examples=_whole(fields["examples"]),
        domain=_typed(fields.get("domain", ""), str),
        software=_typed(fields.get("software", ""), str),
        protocol=(low, high),
        plan=_hash(plan) if plan else b"",
        counts=tuple(_whole(v) for v in _typed(fields.get("counts", []), list)),
        holds=tuple(holds[i : i + HASH] for i in range(0, len(holds), HASH)),
        round=place.round,
        phase=place.phase,
        base=place.base,
    )
    return hello, None


def _task(fields: Fields, sender: str, place: Place) -> tuple[Message, Attachment]:
    manifest = _manifest(fields["broadcast"])
    return Task(place.round, place.phase, manifest, _number(fields["seconds"])), None


def _update(fields: Fields, sender: str, place: Place) -> tuple[Message, Attachment]:
    metrics = {_typed(k, str): _number(v) for k, v in _typed(fields["metrics"], dict).items()}
    attachment = body if isinstance(body := fields["arrays"], bytes) else _manifest(body)
    examples = _whole(fields["examples"])
    return Update(sender, place.round, place.phase, examples, place.base, {}, metrics), attachment


def _receipt(fields: Fields, sender: str, place: Place) -> tuple[Message, Attachment]:
    said = _typed(fields["verdict"], str), _typed(fields["reason"], str)
    return Receipt(place.round, place.phase, *said), None


def _state(fields: Fields, sender: str, place: Place) -> tuple[Message, Attachment]:
    return State(_typed(fields["online"], bool), _typed(fields.get("reason", ""), str)), None


def _want(fields: Fields, sender: str, place: Place) -> tuple[Message, Attachment]:
    flat = [_whole(v) for v in _typed(fields["ranges"], list)]
    ranges = tuple(zip(flat[::2], flat[1::2], strict=True))
    ascending = all(a < b for a, b in ranges) and flat == sorted(flat)  # so no block is asked for twice
    if len(ranges) > MAX_RANGES or not ascending or max(flat, default=0) > MAX_BLOCKS:
        raise Rejected(Reason.MALFORMED, f"{len(ranges)} ranges: too many, too high or out of order")
    if sum(stop - start for start, stop in ranges) > MAX_ASKED:
        raise Rejected(Reason.MALFORMED, f"a want for more than {MAX_ASKED} blocks")
    return Want(_hash(fields["object"]), ranges, _typed(fields.get("again", False), bool)), None


DECODERS: Final[dict[str, Callable[[Fields, str, Place], tuple[Message, Attachment]]]] = {
    "hello": _hello,
    "welcome": lambda fields, sender, place: (Welcome(_typed(fields["plan"], bytes)), None),
    "task": _task,
    "update": _update,
    "receipt": _receipt,
    "refusal": lambda fields, sender, place: (
        Refusal(_typed(fields["reason"], str), _whole(fields.get("boot", 0))),
        None,
    ),
    "state": _state,
    "bye": lambda fields, sender, place: (Bye(_typed(fields["reason"], str)), None),
    "finished": lambda fields, sender, place: (Finished(place.round), None),
    "want": _want,
}


def _manifest_fields(manifest: Manifest | None) -> list[object] | None:
    if manifest is None:
        return None
    hashes, parts = b"".join(manifest.hashes), [list(part) for part in manifest.parts]
    plain = [manifest.object, manifest.size, manifest.block, hashes, parts]
    return [*plain, manifest.key] if manifest.key else plain


def _manifest(fields: object) -> Manifest | None:
    if fields is None:
        return None
    name, size, block, packed, parts, *more = _typed(fields, list)
    packed, parts = _typed(packed, bytes), [_typed(part, list) for part in _typed(parts, list)]
    hashes = tuple(packed[i : i + SHORT_HASH] for i in range(0, len(packed), SHORT_HASH))
    sizes = tuple((_typed(kind, str), _whole(n)) for kind, n in parts)
    key = _hash(more[0]) if more else b""
    manifest = Manifest(_hash(name), _whole(size), _whole(block), hashes, sizes, key)
    blocks = -(-manifest.size // manifest.block) if manifest.block else 0
    if not 0 < blocks == len(hashes) <= MAX_BLOCKS or len(hashes[-1]) != SHORT_HASH:
        raise Rejected(Reason.MALFORMED, f"{len(hashes)} block hashes for {blocks} blocks of {block}")
    if manifest.block > MAX_BLOCK:
        raise Rejected(Reason.MALFORMED, f"blocks of {manifest.block} bytes, over {MAX_BLOCK}")
    if any(kind != "control" and kind not in arrays.KINDS for kind, _ in manifest.parts):
        raise Rejected(Reason.MALFORMED, "a part of a kind that does not exist")
    if sum(n for _, n in manifest.parts) != manifest.size or len(manifest.parts) > MAX_PARTS:
        raise Rejected(Reason.MALFORMED, f"the parts do not add up to {manifest.size} bytes")
    return manifest


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{str(value)[:40]!r} is not {kind.__name__}")
    return value


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise TypeError(f"{str(value)[:40]!r} is not a whole number from 0")
    return value


def _number(value: object) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{str(value)[:40]!r} is not a number")
    return float(value)  # type: ignore[arg-type]


def _hash(value: object) -> bytes:
    if type(value) is not bytes or len(value) != HASH:
        raise TypeError("not a SHA-256")
    return value


def _cut(reason: str) -> str:
    """Words for a person: better shortened than refused by whom they are meant for."""
    return reason.encode("utf-8", "replace")[:MAX_TEXT].decode("utf-8", "ignore")
