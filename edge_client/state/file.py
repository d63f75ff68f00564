"""device.json: which objects make up a device's state, and what it has answered. It carries a checksum."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from protofleet.protocol.settings.reader import decode
from protofleet.protocol.storage.store import DamagedError, NewerFormatError

HASH_OR_NOTHING: Final = re.compile(r"(?:[0-9a-f]{64})?")
KEPT_ANSWERS: Final = 4  # phases of one round; nobody asks for older ones
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Answer:
    question: str
    round: int
    phase: str
    base: str
    object: str
    examples: int
    metrics: Mapping[str, float]


@dataclass
class StateFile:
    """The contents of the JSON file."""

    boot: int = 0
    run: str = ""
    epoch: int = 0  # the highest of a coordinator that was heard: an older one is not listened to
    plan: str = ""
    half: str = ""  # object with the half's state
    broadcast: str = ""  # last one that is here in full
    answers: list[Answer] = field(default_factory=list)
    # Given after all this, and not here any more: it is worked out before all else.
    lost: Answer | None = None


def encode_state_file(saved: StateFile) -> bytes:
    """What is lost stands beside the rest: an earlier version knows nothing of it, and reads the rest."""
    table = asdict(saved)
    lost = table.pop("lost")
    beside = {"lost": {"seal": checksum(lost), "answer": lost}} if lost else {}
    return json.dumps({"format": FORMAT, "seal": checksum(table), "book": table, **beside}).encode()


def checksum(table: object) -> str:
    """A flipped bit in a number is no fault to JSON."""
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def read_state_file(text: bytes, path: Path = Path("device.json")) -> StateFile:
    """The contents of the JSON file; DamagedError, or NewerFormatError."""
    try:
        table = json.loads(text)
        found = table.get("format", 0)
        if type(found) is int and found > FORMAT:
            raise NewerFormatError(path, found, FORMAT)
        lost: list[Answer] = []
        if found != 0:  # format 0 was the bare table
            lost = _lost_in(table)
            if table["seal"] != checksum(table["book"]):
                raise ValueError("it is not what was written")
            table = table["book"]
        answers = [decode(Answer, row, f"answers[{i}]") for i, row in enumerate(table.pop("answers"))]
        saved = decode(StateFile, table)
        saved.answers, saved.lost = answers, lost[0] if lost else None
        names = [saved.plan, saved.half, saved.broadcast]
        names += [name for a in (*answers, *lost) for name in (a.question, a.base, a.object)]
        if bad := [name for name in names if not HASH_OR_NOTHING.fullmatch(name)]:
            raise ValueError(f"{bad[0][:40]!r} is no SHA-256")
        if not 0 <= saved.epoch < 1 << 63:
            raise ValueError(f"epoch is {saved.epoch}")
        if not 0 <= saved.boot < 1 << 63 or len(answers) > KEPT_ANSWERS:
            raise ValueError(f"boot is {saved.boot}, and there are {len(answers)} answers")
    except NewerFormatError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{type(error).__name__}: {str(error)[:80]}") from None
    return saved


def _lost_in(table: Mapping[str, Any]) -> list[Answer]:
    """One at most. A name that is not known may be a damaged one."""
    if odd := table.keys() - {"format", "seal", "book", "lost"}:
        raise ValueError(f"there is {sorted(odd)[0][:40]!r} in it")
    if "lost" not in table:
        return []
    if table["lost"]["seal"] != checksum(table["lost"]["answer"]):
        raise ValueError("the answer that is lost is not what was written")
    return [decode(Answer, table["lost"]["answer"], "lost")]
