"""device.json: which objects make up a device's state, and what it has answered. It carries a checksum."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from protofleet.protocol.settings.reader import decode
from protofleet.protocol.storage.store import DamagedError, NewerFormatError

HASH_OR_NOTHING: Final = re.compile(r"(?:[0-9a-f]{64})?")
KEPT_ANSWERS: Final = 4  # phases of one round; nobody asks for older ones
FORMAT: Final = 1
# Of a JSON file with other contents than were written.
CONTENT_ERRORS: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Answer:
    question: str
    round: int
    phase: str
    base: str
    object: str
    examples: int
    metrics: Mapping[str, float]


ANSWER_FIELDS: Final = tuple(field.name for field in fields(Answer))


@dataclass
class StateFile:
    """The contents of the JSON file."""

    boot: int = 0
    run: str = ""
    epoch: int = 0  # the highest of a coordinator that was heard: messages of older ones are rejected
    plan: str = ""
    half: str = ""  # object with the half's state
    broadcast: str = ""  # last one that was received completely
    answers: list[Answer] = field(default_factory=list)
    inputs: str = ""  # object with the list of what the round in hand learns from, where data grow
    inputs_round: int = 0
    # The answer after all these, which is lost: it is computed again before all else.
    lost: Answer | None = None


def encode_state_file(saved: StateFile) -> bytes:
    """The lost answer is a key of its own: earlier versions ignore it, and read the rest. So they do where no data
    grow, of which they know nothing."""
    table = {**vars(saved), "answers": [_row(answer) for answer in saved.answers]}
    del table["lost"]
    if not saved.inputs:
        del table["inputs"], table["inputs_round"]
    lost = _row(saved.lost) if saved.lost else None
    lost_row = {"lost": {"seal": checksum(lost), "answer": lost}} if lost else {}
    return json.dumps({"format": FORMAT, "seal": checksum(table), "book": table, **lost_row}).encode()


def _row(answer: Answer) -> dict[str, object]:
    """As `asdict`, which copies deeply: that takes longer than all else of it."""
    return {name: getattr(answer, name) for name in ANSWER_FIELDS} | {"metrics": dict(answer.metrics)}


def checksum(table: object) -> str:
    """JSON does not notice a flipped bit in a number."""
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def read_checked(table: Mapping[str, Any], key: str) -> Any:
    """What stands under the key, beside its checksum; one of CONTENT_ERRORS where it is damaged."""
    if table["seal"] != checksum(table[key]):
        raise ValueError("it is not what was written")
    return table[key]


def read_state_file(text: bytes, path: Path = Path("device.json")) -> StateFile:
    """The contents of the JSON file; DamagedError, or NewerFormatError."""
    try:
        table = json.loads(text)
        found = table.get("format", 0)
        if type(found) is int and found > FORMAT:
            raise NewerFormatError(path, found, FORMAT)
        lost: list[Answer] = []
        if found != 0:  # format 0 was the bare table
            lost = _read_lost(table)
            table = read_checked(table, "book")
        answers = [decode(Answer, row, f"answers[{i}]") for i, row in enumerate(table.pop("answers"))]
        saved = decode(StateFile, table)
        saved.answers, saved.lost = answers, lost[0] if lost else None
        names = [saved.plan, saved.half, saved.broadcast, saved.inputs]
        names += [name for a in (*answers, *lost) for name in (a.question, a.base, a.object)]
        if bad := [name for name in names if not HASH_OR_NOTHING.fullmatch(name)]:
            raise ValueError(f"{bad[0][:40]!r} is no SHA-256")
        if not 0 <= saved.epoch < 1 << 63:
            raise ValueError(f"epoch is {saved.epoch}")
        if not 0 <= saved.boot < 1 << 63 or len(answers) > KEPT_ANSWERS:
            raise ValueError(f"boot is {saved.boot}, and there are {len(answers)} answers")
    except NewerFormatError:
        raise
    except CONTENT_ERRORS as error:
        raise DamagedError(f"{type(error).__name__}: {str(error)[:80]}") from None
    return saved


def _read_lost(table: Mapping[str, Any]) -> list[Answer]:
    """One at most. An unknown key may be a damaged one."""
    if unknown := table.keys() - {"format", "seal", "book", "lost"}:
        raise ValueError(f"it has the unknown key {sorted(unknown)[0][:40]!r}")
    if "lost" not in table:
        return []
    if table["lost"]["seal"] != checksum(table["lost"]["answer"]):
        raise ValueError("the answer that is lost is not what was written")
    return [decode(Answer, table["lost"]["answer"], "lost")]
