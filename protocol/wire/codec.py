"""Convert a message to the payload of an envelope and back.

The payload is a msgpack map of the message's scalars, and it is decoded strictly. `round`, `phase` and `base`
are in the header. Tensors are an attachment. If the body with the tensors fits into one packet, the attachment is
this body. Otherwise the attachment is the manifest of an object, and the object is fetched in blocks. Unknown keys
are ignored, because a later minor version may add keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgpack

from protofleet.protocol.wire import arrays, tables
from protofleet.protocol.wire.messages import (
    MOST_ARGS,
    MOST_BY,
    MOST_NEWS,
    MOST_PERSONAL,
    MOST_STATE,
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
    Offer,
    Probe,
    Receipt,
    Refusal,
    State,
    StepDown,
    Task,
    Update,
    Welcome,
)
from protofleet.protocol.wire.printable import printable
from protofleet.protocol.wire.reasons import Reason, Rejected
from protofleet.protocol.wire.tables import number, typed, whole

MAX_PAYLOAD: Final = 1 << 20
MAX_TEXT: Final = 512
MAX_RANGES: Final = 64
MAX_BLOCKS: Final = 4096
# Largest number of bytes in one block. A receiver checks each block in memory.
MAX_BLOCK: Final = 1 << 20
MAX_ASKED: Final = 64  # largest number of blocks in one request; no receiver has more blocks in flight
MAX_ROUND: Final = (1 << 31) - 1
MAX_PHASE: Final = 64  # bytes in the name of a phase
MAX_METRICS: Final = 256
MAX_COUNTS: Final = 4096
MAX_HOLDS: Final = 64
MAX_PARTS: Final = 32
HASH: Final = 32
SHORT_HASH: Final = 16
COMMAND_ID: Final = 16  # bytes of the id of a command

Attachment: TypeAlias = bytes | Offer | None
Fields: TypeAlias = dict[str, Any]
Ranges: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TaskId:
    """The round, phase and base of a message, from the header."""

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
    BlockRequest: "want",
    CommandRequest: "command",
    CommandOutcome: "result",
    Probe: "probe",
    StepDown: "step_down",
    News: "news",
}


def task_id_of(message: Message) -> TaskId:
    match message:
        case Task(round, phase) | Receipt(round, phase):
            return TaskId(round, phase)
        case Hello() | Update():
            return TaskId(message.round, message.phase, message.base)
        case Finished(rounds):
            return TaskId(rounds)
    return TaskId()


def encode(message: Message, attachment: Attachment = None, metrics: Sequence[str] = ()) -> bytes:
    """Return the payload of a message.

    `metrics` is the list of metric names. The payload contains an index in this list instead of a name.
    """
    packed: bytes = msgpack.packb(_fields(message, attachment, metrics), use_bin_type=True)
    return packed


def _fields(message: Message, attachment: Attachment, metrics: Sequence[str]) -> Fields:
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
                **_said(can=list(message.can), names=list(message.names), names_hash=message.names_hash),
                **_said(capacity=message.capacity, working=message.working, answered=message.answered),
                **_said(last_state=message.last_state),
            }
        case Task():
            took = list(message.took or ())
            delta = _delta_fields(message.delta) if message.delta else None
            more = _said(
                wants=tables.wanted_rows(message.wants), credit=message.credit, took=took, delta=delta,
                personal=message.personal,
            )  # fmt: skip
            if message.follows and isinstance(message.broadcast, Manifest):
                following = _following("broadcast", message.broadcast)
                return {**following, "seconds": _short(message.seconds), **more}
            return {**_offered("broadcast", message.broadcast), "seconds": message.seconds, **more}
        case Update():
            said: Fields = {"examples": message.examples, **_measured(message.metrics, metrics)}
            if isinstance(attachment, bytes):
                return said | {"arrays": attachment}
            if message.follows and isinstance(attachment, Manifest):
                return said | _following("arrays", attachment)
            return said | _offered("arrays", attachment)
        case Welcome(plan, about, instead, keep):
            return {"plan": plan, **_said(about=tables.about_fields(about), instead=instead, keep=keep)}
        case Receipt():
            return {"verdict": message.verdict, "reason": _cut(message.reason)}
        case Refusal(reason, boot, answers):
            return {"reason": _cut(reason), **_said(boot=boot, answers=list(answers))}
        case Bye(reason):
            return {"reason": _cut(reason)}
        case State(online, reason, who, now, runs):
            more = _said(who=_cut(who), now=tables.now_fields(now) if now else None)
            # An empty list says that the coordinator could lead several runs, but leads none at the moment.
            active = {} if runs is None else {"runs": list(runs)}
            return {"online": online, "reason": _cut(reason), **more, **active}
        case Finished() | Probe():
            return {}
        case BlockRequest():
            others = [[name, _flat(ranges)] for name, ranges in message.more]
            first = {"object": message.object, "ranges": _flat(message.ranges), "again": message.again}
            return {**first, **_said(more=others)}
        case CommandRequest():
            return {"id": message.id, "verb": message.verb, "args": message.args}
        case CommandOutcome():
            words = _cut(message.words)
            return {"id": message.id, "verdict": message.verdict, "words": words, "data": message.data}
        case StepDown():
            return {"epoch": message.epoch, "by": printable(message.by)[:MOST_BY]}
        case News():
            return {"from": message.first, "lines": [*map(_cut, message.lines)], "over": message.over}


def _said(**fields: Any) -> Fields:
    """Return the fields that are set.

    The arguments are fields that later minor versions added. If none of them is set, the message has the same
    bytes as in earlier versions.
    """
    return {key: value for key, value in fields.items() if value}


def _flat(ranges: Ranges) -> list[int]:
    return [n for pair in ranges for n in pair]


def _offered(key: str, what: Offer | None) -> Fields:
    if isinstance(what, IndirectManifest):
        return {key: None, "manifest": [what.object, what.size, what.key, manifest_fields(what.manifest)]}
    return {key: None if what is None else manifest_fields(what)}


def _delta_fields(delta: Delta) -> Fields:
    said = (_following if delta.follows else _offered)("object", delta.manifest)
    return {"from": delta.reference, **said}


def _following(key: str, one: Manifest) -> Fields:
    """Return the fields of a manifest of one block; they contain no block hash and no parts.

    The hash of the block is the hash of the object, and the body describes the parts.
    """
    return {key: None, "follows": [one.object, one.size, *([one.key] if one.key else [])]}


def _short(value: float) -> float:
    """Return the number as an integer if this takes fewer bytes.

    An integer of 2**32 or more takes as many bytes as a float, or does not fit into msgpack.
    """
    return int(value) if value.is_integer() and abs(value) < 1 << 32 else value


def _measured(metrics: Mapping[str, float], known: Sequence[str]) -> Fields:
    if not known:
        return {"metrics": dict(metrics)}
    places = {name: place for place, name in enumerate(known)}
    return {
        "metrics": {},
        "numbers": {places[name]: _short(v) for name, v in metrics.items() if name in places},
    }


def decode(
    kind: str, payload: bytes, sender: str, place: TaskId, metrics: Sequence[str] = ()
) -> tuple[Message, Attachment]:
    """Return the message and its attachment, or raise Rejected.

    `sender` and `place` come from the header. `metrics` is the list of metric names. The payload may contain
    an index in this list instead of a name.
    """
    decoder = DECODERS.get(kind)
    if decoder is None:
        raise Rejected(Reason.MALFORMED, f"there is no message kind {kind[:32]!r}")
    if len(payload) > MAX_PAYLOAD:
        raise Rejected(
            Reason.TOO_LARGE, f"the payload has {len(payload)} bytes, but the limit is {MAX_PAYLOAD}"
        )
    _judge_place(place)
    try:
        fields = msgpack.unpackb(
            payload, max_array_len=MAX_COUNTS, max_map_len=MAX_METRICS, max_ext_len=0, max_str_len=MAX_TEXT,
            strict_map_key=False,  # the keys of `numbers` are integers
        )  # fmt: skip
        if any(type(key) is not str for key in typed(fields, dict)):
            raise TypeError("a key of the map is not a string")
        if kind == "update":
            fields = _named(fields, metrics)
        return decoder(fields, sender, place)
    except Rejected:
        raise
    except (ValueError, TypeError, KeyError, msgpack.UnpackException, RecursionError) as error:
        raise Rejected(Reason.MALFORMED, f"{kind}: {_message_of(error)}") from None


def _message_of(error: Exception) -> str:
    """Return the error as a text for the programmer of the client that sent the message."""
    if isinstance(error, KeyError):
        return f"the key {str(error)[:80]} is missing"
    return str(error)[:120] or "the payload is no msgpack that ends where it should"


def _judge_place(place: TaskId) -> None:
    """Raise Rejected if a field of the header is outside its limits; the types are checked already.

    These limits matter because the values are copied into databases and into later headers.
    """
    if place.round > MAX_ROUND or len(place.phase.encode()) > MAX_PHASE or len(place.base) not in (0, HASH):
        raise Rejected(
            Reason.MALFORMED, f"the round {place.round}, the phase or the base is outside the limits"
        )


def _named(fields: Fields, known: Sequence[str]) -> Fields:
    """Return the fields with each number under the name of its metric instead of an index.

    A number with an unknown index is left out.
    """
    try:
        numbers = {whole(k): number(v) for k, v in typed(fields.get("numbers", {}), dict).items()}
    except TypeError as error:
        raise TypeError(
            f"numbers: {error}; the keys must be indices in about.metrics, and the values must be numbers"
        ) from None
    named = {known[place]: value for place, value in numbers.items() if place < len(known)}
    return {**fields, "metrics": {**typed(fields["metrics"], dict), **named}}


def _hello(fields: Fields, sender: str, place: TaskId) -> tuple[Message, Attachment]:
    low, high = (whole(v) for v in typed(fields["protocol"], list))
    plan, holds = typed(fields.get("plan", b""), bytes), typed(fields.get("holds", b""), bytes)
    called = typed(fields.get("names_hash", b""), bytes)
    if len(holds) % HASH or len(holds) > MAX_HOLDS * HASH:
        raise TypeError(f"`holds` has {len(holds)} bytes; it may contain at most {MAX_HOLDS} whole SHA-256s")
    hello = Hello(
        device=sender,
        classes=whole(fields["classes"]),
        examples=whole(fields["examples"]),
        domain=typed(fields.get("domain", ""), str),
        software=typed(fields.get("software", ""), str),
        protocol=(low, high),
        plan=_hash(plan) if plan else b"",
        counts=tuple(whole(v) for v in typed(fields.get("counts", []), list)),
        holds=tuple(holds[i : i + HASH] for i in range(0, len(holds), HASH)),
        round=place.round,
        phase=place.phase,
        base=place.base,
        can=tables.forms(fields.get("can", [])),
        names=tables.class_names(fields.get("names", [])),
        names_hash=_hash(called) if called else b"",
        capacity=tables.within(fields.get("capacity", 0), tables.MAX_CAPACITY),
        working=tables.run_name(fields.get("working", "")),
        answered=tables.within(fields.get("answered", 0), MAX_ROUND),
        last_state=_last_state(fields.get("last_state", b"")),
    )
    return hello, None


def _last_state(value: object) -> bytes:
    frame: bytes = typed(value, bytes)
    if len(frame) > MOST_STATE:
        raise TypeError(f"`last_state` has {len(frame)} bytes; the limit is {MOST_STATE}")
    return frame


def _welcome(fields: Fields, sender: str, place: TaskId) -> tuple[Message, Attachment]:
    about = tables.read_about(fields.get("about", {}))
    named = (tables.run_name(fields.get(key, "")) for key in ("instead", "keep"))
    return Welcome(typed(fields["plan"], bytes), about, *named), None


def _task(fields: Fields, sender: str, place: TaskId) -> tuple[Message, Attachment]:
    follows = fields.get("follows")
    manifest = _indirect(fields) or _manifest(fields["broadcast"]) if follows is None else _follower(follows)
    wants = tables.read_wanted(fields.get("wants", []))
    credit = whole(fields.get("credit", 0))
    seconds, took = number(fields["seconds"]), _took(fields.get("took", []))
    delta = _delta(typed(fields["delta"], dict)) if "delta" in fields else None
    personal = _personal(fields.get("personal", b""))
    follow = follows is not None
    return Task(
        place.round, place.phase, manifest, seconds, wants, follow, credit, took, delta, personal
    ), None


def _personal(value: object) -> bytes:
    sent: bytes = typed(value, bytes)
    if len(sent) > MOST_PERSONAL:
        raise TypeError(f"`personal` has {len(sent)} bytes; the limit is {MOST_PERSONAL}")
    return sent


def _delta(fields: Fields) -> Delta:
    follows = fields.get("follows")
    manifest = _manifest(fields["object"]) if follows is None else _follower(follows)
    if manifest is None:
        raise TypeError("a delta has no object")
    reference = typed(fields["from"], bytes)
    return Delta(_hash(reference) if reference else b"", manifest, follows is not None)


def _took(value: object) -> tuple[int, str] | None:
    if not (told := typed(value, list)):
        return None
    number, phase, *_ = told
    found = TaskId(whole(number), typed(phase, str))
    _judge_place(found)
    return found.round, found.phase


def _follower(value: object) -> Manifest:
    if len(told := typed(value, list)) < 2:
        raise TypeError("`follows` must be an array of a SHA-256, a size and, if the block is sealed, a key")
    name, size, *key = told
    name, size = _hash(name), whole(size)
    if key and len(typed(key[0], bytes)) != HASH:
        raise TypeError(f"the key in `follows` has {len(key[0])} bytes, but a key must have {HASH}")
    if not 0 < size <= MAX_BLOCK:
        raise Rejected(
            Reason.MALFORMED, f"a block of {size} bytes follows, but a block must have 1 to {MAX_BLOCK} bytes"
        )
    return Manifest(name, size, size, (name[:SHORT_HASH],), (), key[0] if key else b"")


def _update(fields: Fields, sender: str, place: TaskId) -> tuple[Message, Attachment]:
    metrics = {typed(k, str): number(v) for k, v in typed(fields["metrics"], dict).items()}
    examples, follows = whole(fields["examples"]), fields.get("follows")
    attachment: Attachment = _indirect(fields) if follows is None else _follower(follows)
    if attachment is None:
        attachment = body if isinstance(body := fields["arrays"], bytes) else _manifest(body)
    base, comes = place.base, follows is not None
    return Update(sender, place.round, place.phase, examples, base, {}, metrics, comes), attachment


def _receipt(fields: Fields, sender: str, place: TaskId) -> tuple[Message, Attachment]:
    said = typed(fields["verdict"], str), typed(fields["reason"], str)
    return Receipt(place.round, place.phase, *said), None


def _state(fields: Fields, sender: str, place: TaskId) -> tuple[Message, Attachment]:
    who = typed(fields.get("who", ""), str)
    now = tables.read_now(fields["now"]) if "now" in fields else None
    runs = tables.run_names(fields["runs"]) if "runs" in fields else None
    said = typed(fields["online"], bool), typed(fields.get("reason", ""), str)
    return State(*said, who, now, runs), None


def _refusal(fields: Fields) -> Refusal:
    answers = tuple(whole(v) for v in typed(fields.get("answers", []), list))
    if len(answers) not in (0, 2):
        raise TypeError(f"`answers` has {len(answers)} numbers; it must contain a boot and a sequence number")
    return Refusal(typed(fields["reason"], str), whole(fields.get("boot", 0)), answers)


def _want(fields: Fields, sender: str, place: TaskId) -> tuple[Message, Attachment]:
    more = [typed(item, list) for item in typed(fields.get("more", []), list)]
    if len(more) > MAX_ASKED:  # reading an object takes time, even an object without ranges
        raise Rejected(
            Reason.MALFORMED,
            f"a request for blocks names {len(more)} further objects; the limit is {MAX_ASKED}",
        )
    others = tuple((_hash(name), _ranges(asked)) for name, asked, *_ in more)
    ranges, again = _ranges(fields["ranges"]), typed(fields.get("again", False), bool)
    if sum(stop - start for asked in (ranges, *(r for _, r in others)) for start, stop in asked) > MAX_ASKED:
        raise Rejected(Reason.MALFORMED, f"a request names more than {MAX_ASKED} blocks")
    return BlockRequest(_hash(fields["object"]), ranges, again, others), None


def _ranges(value: object) -> Ranges:
    flat = [whole(v) for v in typed(value, list)]
    ranges = tuple(zip(flat[::2], flat[1::2], strict=True))
    # Ascending ranges request no block twice.
    ascending = all(a < b for a, b in ranges) and flat == sorted(flat)
    if len(ranges) > MAX_RANGES or not ascending or max(flat, default=0) > MAX_BLOCKS:
        raise Rejected(
            Reason.MALFORMED, f"the {len(ranges)} ranges of a request are too many, too high or out of order"
        )
    return ranges


def _command(fields: Fields, sender: str, place: TaskId) -> tuple[Message, Attachment]:
    verb, args = typed(fields["verb"], str), typed(fields["args"], bytes)
    if len(verb) > tables.MAX_FORM or len(args) > MOST_ARGS:
        raise Rejected(
            Reason.MALFORMED,
            f"a command has a verb of {len(verb)} letters and {len(args)} bytes of arguments; the limits are "
            f"{tables.MAX_FORM} and {MOST_ARGS}",
        )
    return CommandRequest(_command_id(fields), verb, args), None


def _result(fields: Fields, sender: str, place: TaskId) -> tuple[Message, Attachment]:
    verdict, words = typed(fields["verdict"], str), typed(fields["words"], str)
    return CommandOutcome(_command_id(fields), verdict, words, typed(fields["data"], bytes)), None


def _step_down(fields: Fields, sender: str, place: TaskId) -> tuple[Message, Attachment]:
    epoch, by = whole(fields["epoch"]), typed(fields["by"], str)
    if len(by) > MOST_BY or not by.isprintable():
        raise TypeError(f"`by` must have at most {MOST_BY} printable letters")
    return StepDown(epoch, by), None


def _news(fields: Fields) -> Message:
    lines = [typed(line, str) for line in typed(fields["lines"], list)]
    if len(lines) > MOST_NEWS:
        raise Rejected(Reason.MALFORMED, f"news have {len(lines)} lines; the limit is {MOST_NEWS}")
    return News(whole(fields["from"]), tuple(lines), typed(fields["over"], str))


def _command_id(fields: Fields) -> bytes:
    found: bytes = typed(fields["id"], bytes)
    if len(found) != COMMAND_ID:
        raise TypeError(f"the id of a command has {len(found)} bytes, but must have {COMMAND_ID}")
    return found


DECODERS: Final[dict[str, Callable[[Fields, str, TaskId], tuple[Message, Attachment]]]] = {
    "hello": _hello,
    "welcome": _welcome,
    "task": _task,
    "update": _update,
    "receipt": _receipt,
    "refusal": lambda fields, sender, place: (_refusal(fields), None),
    "state": _state,
    "bye": lambda fields, sender, place: (Bye(typed(fields["reason"], str)), None),
    "finished": lambda fields, sender, place: (Finished(place.round), None),
    "want": _want,
    "command": _command,
    "result": _result,
    "probe": lambda fields, sender, place: (Probe(), None),
    "step_down": _step_down,
    "news": lambda fields, sender, place: (_news(fields), None),
}


def manifest_fields(manifest: Manifest, key: bool = True) -> list[object]:
    hashes, parts = b"".join(manifest.hashes), [list(part) for part in manifest.parts]
    plain = [manifest.object, manifest.size, manifest.block, hashes, parts]
    return [*plain, manifest.key] if key and manifest.key else plain


def _indirect(fields: Fields) -> IndirectManifest | None:
    if (value := fields.get("manifest")) is None:
        return None
    name, size, key, packed, *_ = typed(value, list)
    if not isinstance(inside := _manifest(packed), Manifest):
        raise TypeError("a manifest is sent as an object, but the manifest of this object is missing")
    return IndirectManifest(_hash(name), whole(size), _hash(key) if key else b"", inside)


def read_manifest(packed: bytes) -> Manifest:
    """Return the manifest in these bytes; raise Rejected if they contain no manifest."""
    try:
        found = _manifest(msgpack.unpackb(packed, max_array_len=MAX_PARTS, max_map_len=0, max_ext_len=0))
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise Rejected(
            Reason.MALFORMED, f"these bytes are not a manifest: {type(error).__name__} {str(error)[:80]}"
        ) from None
    if found is None:
        raise Rejected(Reason.MALFORMED, "no manifest")
    return found


def _manifest(fields: object) -> Manifest | None:
    if fields is None:
        return None
    name, size, block, packed, parts, *more = typed(fields, list)
    packed, parts = typed(packed, bytes), [typed(part, list) for part in typed(parts, list)]
    hashes = tuple(packed[i : i + SHORT_HASH] for i in range(0, len(packed), SHORT_HASH))
    sizes = tuple((typed(kind, str), whole(n)) for kind, n in parts)
    key = _hash(more[0]) if more else b""
    manifest = Manifest(_hash(name), whole(size), whole(block), hashes, sizes, key)
    blocks = -(-manifest.size // manifest.block) if manifest.block else 0
    if not 0 < blocks == len(hashes) <= MAX_BLOCKS or len(hashes[-1]) != SHORT_HASH:
        raise Rejected(
            Reason.MALFORMED,
            f"the manifest has {len(hashes)} block hashes for {blocks} blocks of {block} bytes",
        )
    if manifest.block > MAX_BLOCK:
        raise Rejected(
            Reason.MALFORMED, f"a manifest has blocks of {manifest.block} bytes; the limit is {MAX_BLOCK}"
        )
    if any(kind != "control" and kind not in arrays.KINDS for kind, _ in manifest.parts):
        raise Rejected(Reason.MALFORMED, "the manifest has a part of an unknown kind")
    if sum(n for _, n in manifest.parts) != manifest.size or len(manifest.parts) > MAX_PARTS:
        raise Rejected(
            Reason.MALFORMED, f"the manifest has too many parts, or their sum is not {manifest.size} bytes"
        )
    return manifest


def _hash(value: object) -> bytes:
    if type(value) is not bytes or len(value) != HASH:
        raise TypeError("not a SHA-256")
    return value


def _cut(reason: str) -> str:
    """Return a text for people, shortened so that the receiver does not reject the message."""
    return reason.encode("utf-8", "replace")[:MAX_TEXT].decode("utf-8", "ignore")
