"""The record of a round, and the checks of a record or a summary without a seal.

Earlier versions wrote no seals, and files of other programs have no seals either. So a file without a seal
is decoded like settings. A value of a wrong type then counts as damage, and cannot raise an error later in
the code that uses the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, Final, Literal

from protofleet.protocol.link.meter import DOWN, UP
from protofleet.protocol.settings.bounds import LARGEST_COUNT, Within
from protofleet.protocol.settings.reader import SettingsError, decode

ByKind = dict[str, dict[str, int]]  # direction -> kind -> bytes
ByDevice = dict[str, dict[str, float]]
ByView = dict[str, dict[str, float]]  # view -> domain -> value
MEAN: Final = "mean"  # used in place of a domain, for the mean over domains
MOST_DEVICES: Final = (
    64  # named devices of a round; the others share one name, so that the lines of a large fleet stay short
)
OTHER: Final = "other"
# For broadcasts, which are published once for all devices; no device can have this name.
ALL: Final = "all devices"

Crossed = Mapping[tuple[str, str, str], int]  # (device, direction, kind) -> bytes


@dataclass
class PhaseRecord:
    phase: str
    seconds: float = 0.0
    server_seconds: float = 0.0  # time that the server half computed before the task was sent
    asked: list[str] = field(default_factory=list)
    answered: list[str] = field(default_factory=list)


@dataclass
class EvaluationRecord:
    """The evaluation by all present devices, at the beginning of a round that leaves devices out."""

    seconds: float = 0.0
    asked: list[str] = field(default_factory=list)
    answered: list[str] = field(default_factory=list)
    # Bytes from the task until the phase was closed, a part of the bytes of the round. Only the process that
    # closed the phase counts them.
    payload: ByKind = field(default_factory=dict)
    wire: ByKind = field(default_factory=dict)
    accuracy: ByView = field(default_factory=dict)
    validation: ByView = field(default_factory=dict)
    validation_by_device: ByView = field(default_factory=dict)  # if the run caps weights
    loss: ByView = field(default_factory=dict)
    pooled: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)


@dataclass
class RoundRecord:
    round: int
    attempt: int
    kind: str  # training, evaluation
    # A coordinator died in this round: up to a minute of bytes and seconds may be missing.
    resumed: bool = False
    seconds: float = 0.0
    phases: list[PhaseRecord] = field(default_factory=list)
    participants: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    payload: ByKind = field(default_factory=dict)
    wire: ByKind = field(default_factory=dict)
    fedavg: dict[str, int] = field(default_factory=dict)
    accuracy: ByView = field(default_factory=dict)
    validation: ByView = field(default_factory=dict)
    # By view and device, if the run caps weights (policy.weight_cap): the best point is chosen by these
    # values.
    validation_by_device: ByView = field(default_factory=dict)
    loss: ByView = field(default_factory=dict)
    pooled: dict[str, float] = field(default_factory=dict)  # view -> accuracy over all test samples
    figures: dict[str, float] = field(default_factory=dict)
    aside: dict[str, str] = field(default_factory=dict)  # device whose accepted update was not used -> why
    # In the last evaluation: domain -> class -> predicted class -> number of samples.
    confusion: dict[str, list[list[int]]] = field(default_factory=dict)
    # In the last evaluation: machine -> devices that run on this machine, as they describe it.
    machines: dict[str, list[str]] = field(default_factory=dict)
    # Device -> "train" and "send" -> joules, for devices whose boards measure them.
    energy: ByDevice = field(default_factory=dict)
    # View -> numbers of devices: "devices" measured the accuracy of the line, "asked" were asked to measure
    # it, and "present" were present.
    measured: dict[str, dict[str, int]] = field(default_factory=dict)
    evaluation: EvaluationRecord | None = None
    # Reason -> number of rejected frames and of rejected contents.
    rejected: dict[str, int] = field(default_factory=dict)
    # The bytes of `wire` by device, from divided().
    by_device: dict[str, ByKind] = field(default_factory=dict)

    def is_of_all(self, view: str) -> bool:
        """Return whether all present devices were asked to measure this view; some may have sent no update."""
        return is_of_all(self.measured.get(view))


def is_of_all(who: Mapping[str, int] | None) -> bool:
    """Return whether all present devices were asked; None, from a line of an earlier version, counts as yes."""
    return who is None or who["asked"] >= who["present"]


def sampled_words(who: Mapping[str, int] | None) -> str:
    """Return how many of the present devices measured; "" if all were asked."""
    return "" if who is None or is_of_all(who) else f"by {who['devices']} of {who['present']} devices"


# Number of rounds; bounded because readers loop over the rounds.
Count = Annotated[int, Within(1, LARGEST_COUNT)]


@dataclass(frozen=True)
class Ways:
    up: dict[str, int]
    down: dict[str, int]


@dataclass(frozen=True)
class Accuracy:
    start: dict[str, float] = field(default_factory=dict)
    final: dict[str, float] = field(default_factory=dict)
    pooled: float | None = None
    best_by_validation: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary:
    """The fields and types of a summary.json; no field is required, because a comparison needs only a few."""

    name: str = ""
    method: str = ""
    paper: str = ""
    network: str = ""
    rules: dict[str, str] = field(default_factory=dict)  # way to predict -> its description
    reports: Literal["global", "personal"] = "global"
    rounds: Count = 1
    rounds_done: int = 0
    seed: int = 0
    devices: dict[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    ended: str = ""
    stopped: str = ""
    seconds: float = 0.0
    payload: Ways = field(default_factory=lambda: Ways({}, {}))
    wire: Ways = field(default_factory=lambda: Ways({}, {}))
    fedavg: dict[str, int] = field(default_factory=dict)
    accuracy: Accuracy = field(default_factory=Accuracy)
    views: dict[str, Accuracy] = field(default_factory=dict)
    energy: dict[str, float] = field(default_factory=dict)
    broker: str = ""
    security: str = ""
    versions: dict[str, Any] = field(default_factory=dict)
    experiment: str = ""


def believed_round(table: Mapping[str, Any]) -> dict[str, Any] | None:
    """Check a record without a seal, and return it with all fields; None if it is no record."""
    try:
        record = decode(RoundRecord, {"attempt": 0, "kind": "training", **table})
    except SettingsError:
        return None
    found = asdict(record)
    for name in (
        "energy",
        "measured",
        "evaluation",
    ):  # every version that wrote these wrote a seal too
        del found[name]
    return found if 1 <= record.round <= LARGEST_COUNT else None


def record_of(line: Mapping[str, Any]) -> RoundRecord:
    """Make a record from a line of rounds.jsonl; other versions may have more or fewer fields."""
    record = RoundRecord(line["round"], line.get("attempt", 0), line.get("kind", "training"))
    known = {field.name for field in fields(RoundRecord)}
    for name, value in line.items():
        if name in known:
            setattr(record, name, value)
    record.phases = [_phase_of(phase) for phase in line.get("phases", [])]
    record.evaluation = _evaluation_of(line["evaluation"]) if line.get("evaluation") else None
    return record


def _phase_of(table: Mapping[str, Any]) -> PhaseRecord:
    known = {field.name for field in fields(PhaseRecord)}
    return PhaseRecord(**{name: value for name, value in table.items() if name in known})


def _evaluation_of(table: Mapping[str, Any]) -> EvaluationRecord:
    known = {field.name for field in fields(EvaluationRecord)}
    return EvaluationRecord(**{name: value for name, value in table.items() if name in known})


def by_machine(said: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the devices by the machine that they run on, as they describe it.

    Most fleets have only a few kinds of machines.
    """
    found: dict[str, list[str]] = {}
    for device, words in sorted(said.items()):
        if words:
            found.setdefault(words, []).append(device)
    return found


def machines_in(lines: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the machine of each device, from the lines of rounds.jsonl."""
    return {
        device: words
        for line in lines
        for words, devices in line.get("machines", {}).items()
        for device in devices
    }


def odd_summary(table: Mapping[str, Any]) -> str:
    """Return what is wrong with a summary without a seal; "" if nothing."""
    try:
        decode(Summary, table)
    except SettingsError as error:
        return str(error)
    return ""


def divided(crossed: Crossed, wire: ByKind, most: int = MOST_DEVICES) -> dict[str, ByKind]:
    """Divide `wire` into rows: the `most` devices with the most bytes, then ALL, then OTHER with the rest.

    The sum of the rows is always `wire`, even if an earlier process counted a part of it.
    """
    totals: Counter[str] = Counter()
    for (device, _, _), size in crossed.items():
        totals[device] += size
    del totals[""]
    named = sorted((name for name in totals if totals[name]), key=lambda name: (-totals[name], name))[:most]
    found: dict[str, ByKind] = {name: {UP: {}, DOWN: {}} for name in (*named, ALL, OTHER)}
    left = {(way, kind): size for way, kinds in wire.items() for kind, size in kinds.items()}
    for (device, way, kind), size in sorted(crossed.items()):
        name = ALL if (device, way) == ("", DOWN) else device
        if size and name in found:
            found[name][way][kind] = found[name][way].get(kind, 0) + size
            left[way, kind] -= size
    for (way, kind), size in left.items():
        if size:
            found[OTHER][way][kind] = found[OTHER][way].get(kind, 0) + size
    return {name: ways for name, ways in found.items() if any(ways.values())}


def rows_of(by_device: Mapping[str, ByKind], wire: ByKind) -> Mapping[str, ByKind]:
    """Return the bytes of a record by device; if an earlier version did not divide them, all count as OTHER."""
    return by_device or {OTHER: wire}
