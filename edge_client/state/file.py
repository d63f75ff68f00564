"""The file device.json, with the names of the objects of a device's state, the last updates, and a checksum."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from protofleet.edge_client.state.residuals import Residuals, objects_in
from protofleet.protocol.settings.reader import decode
from protofleet.protocol.storage.store import DamagedError, NewerFormatError

HASH_OR_NOTHING: Final = re.compile(r"(?:[0-9a-f]{64})?")
# Largest number of updates of the last round, one for each phase. The coordinator does not need older updates.
KEPT_ANSWERS: Final = 4
FORMAT: Final = 1
# The errors that may occur when a damaged JSON file is read.
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
    took_round: int = 0  # in a run with a codec: round of the last update that the coordinator has used
    took_phase: str = ""


ANSWER_FIELDS: Final = tuple(field.name for field in fields(Answer))


@dataclass
class StateFile:
    """The contents of device.json."""

    boot: int = 0
    run: str = ""
    epoch: int = 0  # highest epoch of a received message; messages with a lower epoch are rejected
    plan: str = ""
    half: str = ""  # object with the half's state
    broadcast: str = ""  # the last broadcast that was received completely
    answers: list[Answer] = field(default_factory=list)
    inputs: str = ""  # object with the list of samples of the current round, if the data grow
    inputs_round: int = 0
    # The residuals (rounding errors) before the updates of the last round, and after each of these updates.
    residuals: list[Residuals] = field(default_factory=list)
    # phase -> its last broadcast, in a run whose broadcasts are sent as deltas
    references: dict[str, str] = field(default_factory=dict)
    # The update that followed the updates in `answers`, if this update is lost. The device computes it again before
    # any other update.
    lost: Answer | None = None


def encode_state_file(saved: StateFile) -> bytes:
    """Encode the contents of device.json.

    Earlier versions must be able to read the file. They do not know the keys for inputs, residuals and references, so
    these keys are left out if their values are empty. They ignore the key `lost`.
    """
    table = {**vars(saved), "answers": [_row(answer) for answer in saved.answers]}
    del table["lost"]
    if not saved.inputs:
        del table["inputs"], table["inputs_round"]
    table["residuals"] = [asdict(one) for one in saved.residuals]
    if not saved.residuals:
        del table["residuals"]
    if not saved.references:
        del table["references"]
    lost = _row(saved.lost) if saved.lost else None
    lost_row = {"lost": {"seal": checksum(lost), "answer": lost}} if lost else {}
    return json.dumps({"format": FORMAT, "seal": checksum(table), "book": table, **lost_row}).encode()


def _row(answer: Answer) -> dict[str, object]:
    """Return the fields of an update as a dict; this is faster than `asdict`, which copies deeply."""
    row = {name: getattr(answer, name) for name in ANSWER_FIELDS} | {"metrics": dict(answer.metrics)}
    if not answer.took_round:  # Earlier versions do not know these keys.
        del row["took_round"], row["took_phase"]
    return row


def checksum(table: object) -> str:
    """Return the SHA-256 of a table, because a flipped bit in a number would otherwise not be noticed."""
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def read_checked(table: Mapping[str, Any], key: str) -> Any:
    """Return the value of the key, or raise one of CONTENT_ERRORS if the checksum is wrong."""
    if table["seal"] != checksum(table[key]):
        raise ValueError("its checksum is wrong")
    return table[key]


def read_state_file(text: bytes, path: Path = Path("device.json")) -> StateFile:
    """Decode device.json, or raise DamagedError or NewerFormatError."""
    try:
        table = json.loads(text)
        found = table.get("format", 0)
        if type(found) is int and found > FORMAT:
            raise NewerFormatError(path, found, FORMAT)
        lost: list[Answer] = []
        if found != 0:  # In format 0, the file was the table itself, without a checksum.
            lost = _read_lost(table)
            table = read_checked(table, "book")
        answers = [decode(Answer, row, f"answers[{i}]") for i, row in enumerate(table.pop("answers"))]
        residuals = [
            decode(Residuals, row, f"residuals[{i}]") for i, row in enumerate(table.pop("residuals", []))
        ]
        saved = decode(StateFile, table)
        saved.residuals = residuals
        saved.answers, saved.lost = answers, lost[0] if lost else None
        names = [saved.plan, saved.half, saved.broadcast, saved.inputs]
        names += [*objects_in(residuals), *saved.references.values()]
        names += [name for a in (*answers, *lost) for name in (a.question, a.base, a.object)]
        if bad := [name for name in names if not HASH_OR_NOTHING.fullmatch(name)]:
            raise ValueError(f"{bad[0][:40]!r} is not a SHA-256")
        if not 0 <= saved.epoch < 1 << 63:
            raise ValueError(f"epoch is {saved.epoch}")
        if not 0 <= saved.boot < 1 << 63 or len(answers) > KEPT_ANSWERS:
            raise ValueError(
                f"the boot {saved.boot} or the number of answers, {len(answers)}, is out of range"
            )
    except NewerFormatError:
        raise
    except CONTENT_ERRORS as error:
        raise DamagedError(f"{type(error).__name__}: {str(error)[:80]}") from None
    return saved


def _read_lost(table: Mapping[str, Any]) -> list[Answer]:
    """Return a list with the lost update, or an empty list if no update is lost.

    Raise ValueError if the table has an unknown key, or if a checksum is wrong.
    """
    if unknown := table.keys() - {"format", "seal", "book", "lost"}:
        raise ValueError(f"it has the unknown key {sorted(unknown)[0][:40]!r}")
    if "lost" not in table:
        return []
    if table["lost"]["seal"] != checksum(table["lost"]["answer"]):
        raise ValueError("the checksum of the lost update is wrong")
    return [decode(Answer, table["lost"]["answer"], "lost")]
