"""The file device.json, with a checksum: the last updates of each run, and the names of the objects of its state.

Formats 0 and 1 had one run. They are read, and written again as format 2.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from protofleet.edge_client.state.masked import MaskedState
from protofleet.edge_client.state.residuals import Residuals, objects_in
from protofleet.protocol.privacy.ledger import PrivateRelease
from protofleet.protocol.settings.reader import decode
from protofleet.protocol.storage.store import DamagedError, NewerFormatError

HASH_OR_NOTHING: Final = re.compile(r"(?:[0-9a-f]{64})?")
# Largest number of updates of the last round, one for each phase or step of a masked sum. The coordinator does not
# need older updates.
KEPT_ANSWERS: Final = 12
FORMAT: Final = 2
KEPT_RUNS: Final = (
    8  # largest number of runs in the file; a coordinator has at most this number of active runs
)
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
class RunEntry:
    """The part of device.json that belongs to one run."""

    run: str = ""
    epoch: int = 0  # epoch of the coordinator at the last write of this entry
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
    masked: MaskedState | None = None  # the newest attempt to add an update to a masked sum
    over: bool = False  # whether the run is over; its entry stays until another run needs the place

    @property
    def last_round(self) -> int:
        """Return the last round of this run for which there is an update; 0 if there is no update."""
        return max((answer.round for answer in self.answers), default=0)

    def objects(self) -> set[str]:
        """Return the names of all objects that this entry needs."""
        names = {
            self.half, self.broadcast, self.inputs, *(a.object for a in self.answers), *objects_in(self.residuals),
            *self.references.values(), self.lost.base if self.lost else "",
            *(self.masked.objects() if self.masked else ()),
        }  # fmt: skip
        return names - {""}

    def objects_for_return(self) -> set[str]:
        """Return the names of the objects that are needed to compute the next update again."""
        return {self.half, self.inputs, *objects_in(self.residuals)} - {""}


@dataclass
class StateFile:
    """The contents of device.json."""

    boot: int = 0
    epoch: int = 0  # highest epoch of a received message; messages with a lower epoch are rejected
    # Whether the coordinator led several runs when a run was begun last.
    several: bool = False
    runs: list[RunEntry] = field(default_factory=list)  # the run that was begun last is at the end
    # All releases with noise of this device in all runs. No release is ever removed, because it cannot be undone.
    releases: list[PrivateRelease] = field(default_factory=list)

    def entry(self, run: str) -> RunEntry:
        """Return the entry of a run; if there is none, return an empty entry."""
        return next((entry for entry in self.runs if entry.run == run), RunEntry())

    def with_entry(self, changed: RunEntry) -> StateFile:
        """Return a copy in which this entry has replaced the entry of the same run."""
        return replace(self, runs=[changed if entry.run == changed.run else entry for entry in self.runs])

    @property
    def newest_run(self) -> str:
        return self.runs[-1].run if self.runs else ""


# The keys of an entry that are left out if their value is empty.
OPTIONAL: Final = ("inputs", "inputs_round", "residuals", "references", "lost", "masked", "over")


def encode_state_file(saved: StateFile) -> bytes:
    """Encode the contents of device.json."""
    table: dict[str, object] = {"boot": saved.boot, "epoch": saved.epoch}
    if saved.several:
        table["several"] = True
    table["runs"] = [_entry_row(entry) for entry in saved.runs]
    if saved.releases:
        table["releases"] = [asdict(one) for one in saved.releases]
    return json.dumps({"format": FORMAT, "seal": checksum(table), "book": table}).encode()


def _entry_row(entry: RunEntry) -> dict[str, object]:
    table = {
        **vars(entry),
        "answers": [_row(answer) for answer in entry.answers],
        "residuals": [asdict(one) for one in entry.residuals],
        "lost": _row(entry.lost) if entry.lost else None,
        "masked": asdict(entry.masked) if entry.masked else None,
    }
    return {key: value for key, value in table.items() if value or key not in OPTIONAL}


def _row(answer: Answer) -> dict[str, object]:
    """Return the fields of an update as a dict; this is faster than `asdict`, which copies deeply."""
    row = {name: getattr(answer, name) for name in ANSWER_FIELDS} | {"metrics": dict(answer.metrics)}
    if not answer.took_round:
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
        saved = _read_runs(table) if found == FORMAT else _read_one_run(table, found)
        _require_bounds(saved)
    except NewerFormatError:
        raise
    except CONTENT_ERRORS as error:
        raise DamagedError(f"{type(error).__name__}: {str(error)[:80]}") from None
    return saved


def _read_runs(table: Mapping[str, Any]) -> StateFile:
    _refuse_other_keys(table, "format", "seal", "book")
    book = read_checked(table, "book")
    entries = [_read_entry(row) for row in book.pop("runs")]
    releases = [
        decode(PrivateRelease, row, f"releases[{i}]") for i, row in enumerate(book.pop("releases", []))
    ]
    saved = decode(StateFile, book)
    saved.runs, saved.releases = entries, releases
    return saved


def _read_one_run(table: Mapping[str, Any], found: object) -> StateFile:
    """Read format 0 or 1, whose table has one run, or none yet."""
    lost: dict[str, Any] = {}
    if found != 0:  # In format 0, the file was the table itself, without a checksum.
        _refuse_other_keys(table, "format", "seal", "book", "lost")
        if "lost" in table:
            if table["lost"]["seal"] != checksum(table["lost"]["answer"]):
                raise ValueError("the checksum of the lost update is wrong")
            lost = {"lost": table["lost"]["answer"]}
        table = read_checked(table, "book")
    row = dict(table)
    boot, epoch = row.pop("boot", 0), row.get("epoch", 0)
    entry = _read_entry(row | lost)
    saved = decode(StateFile, {"boot": boot, "epoch": epoch})
    return replace(saved, runs=[entry] if entry.run else [])


def _refuse_other_keys(table: Mapping[str, Any], *known: str) -> None:
    if unknown := table.keys() - set(known):
        raise ValueError(f"it has the unknown key {sorted(unknown)[0][:40]!r}")


def _read_entry(row: dict[str, Any]) -> RunEntry:
    answers = [decode(Answer, one, f"answers[{i}]") for i, one in enumerate(row.pop("answers"))]
    residuals = [decode(Residuals, one, f"residuals[{i}]") for i, one in enumerate(row.pop("residuals", []))]
    lost, masked = row.pop("lost", None), row.pop("masked", None)
    entry = decode(RunEntry, row)
    entry.answers, entry.residuals = answers, residuals
    entry.lost = decode(Answer, lost, "lost") if lost is not None else None
    entry.masked = decode(MaskedState, masked, "masked") if masked is not None else None
    return entry


def _require_bounds(saved: StateFile) -> None:
    """Raise ValueError if a value is out of range, or if a name of an object is not a SHA-256."""
    runs = [entry.run for entry in saved.runs]
    if len(runs) > KEPT_RUNS or len(set(runs)) < len(runs) or "" in runs:
        raise ValueError(
            f"it has {len(runs)} runs, but at most {KEPT_RUNS} runs of different names are allowed"
        )
    numbers = {"boot": saved.boot, "epoch": saved.epoch, **{entry.run: entry.epoch for entry in saved.runs}}
    if bad := [f"{name} is {value}" for name, value in numbers.items() if not 0 <= value < 1 << 63]:
        raise ValueError(bad[0])
    for entry in saved.runs:
        if len(entry.answers) > KEPT_ANSWERS:
            raise ValueError(f"the number of answers, {len(entry.answers)}, is out of range")
        kept = [*entry.answers, *([entry.lost] if entry.lost else [])]
        names = [
            entry.plan,
            *entry.objects(),
            *(name for a in kept for name in (a.question, a.base, a.object)),
        ]
        if wrong := [name for name in names if not HASH_OR_NOTHING.fullmatch(name)]:
            raise ValueError(f"{wrong[0][:40]!r} is not a SHA-256")
