"""The record of a round, and the checks of a record or a summary that has no seal.

Earlier versions wrote no seals, and files of other programs have no seals either. A file without a seal is
decoded like settings: a value of a wrong type counts as damage. So such a value cannot raise an error later
in the code that uses the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, Final, Literal

from protofleet.methods.contract.kept import KeptRound
from protofleet.protocol.link.meter import DOWN, UP
from protofleet.protocol.settings.bounds import LARGEST_COUNT, Within
from protofleet.protocol.settings.reader import SettingsError, decode

ByKind = dict[str, dict[str, int]]  # Direction -> kind -> bytes.
ByDevice = dict[str, dict[str, float]]
ByView = dict[str, dict[str, float]]  # View -> domain -> value.
MEAN: Final = "mean"  # Stands for the mean over domains, in place of the name of a domain.
# Largest number of devices of a round that have rows of their own. All other devices share one row, so that
# the lines of a large fleet stay short.
MOST_DEVICES: Final = 64
OTHER: Final = "other"
# The name in the row of broadcasts, because a broadcast is published once for all devices. No device can have
# this name.
ALL: Final = "all devices"

Crossed = Mapping[tuple[str, str, str], int]  # (device, direction, kind) -> bytes.


@dataclass
class PhaseRecord:
    phase: str
    seconds: float = 0.0
    server_seconds: float = 0.0  # Seconds that the server half computed before the task was sent.
    asked: list[str] = field(default_factory=list)
    answered: list[str] = field(default_factory=list)


@dataclass
class EvaluationRecord:
    """The evaluation before a round in which some present devices get no task. All present devices evaluate."""

    seconds: float = 0.0
    asked: list[str] = field(default_factory=list)
    answered: list[str] = field(default_factory=list)
    # Bytes from the task until the end of the phase. They are part of the bytes of the round. If the
    # coordinator was restarted in this phase, only the bytes since the restart are counted.
    payload: ByKind = field(default_factory=dict)
    wire: ByKind = field(default_factory=dict)
    accuracy: ByView = field(default_factory=dict)
    validation: ByView = field(default_factory=dict)
    # Filled only if the run caps weights (policy.weight_cap).
    validation_by_device: ByView = field(default_factory=dict)
    loss: ByView = field(default_factory=dict)
    pooled: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)


@dataclass
class RoundRecord:
    round: int
    attempt: int
    kind: str  # "training" or "evaluation".
    # True if a coordinator died in this round. Then the bytes and seconds of its last minute may be missing.
    resumed: bool = False
    seconds: float = 0.0
    phases: list[PhaseRecord] = field(default_factory=list)
    participants: list[str] = field(default_factory=list)
    # Participant -> age of its task in rounds, for the late updates of a buffered round.
    staleness: dict[str, int] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    payload: ByKind = field(default_factory=dict)
    # The bytes of `payload` before coding. Empty in a run without a codec.
    uncoded: ByKind = field(default_factory=dict)
    wire: ByKind = field(default_factory=dict)
    fedavg: dict[str, int] = field(default_factory=dict)
    accuracy: ByView = field(default_factory=dict)
    validation: ByView = field(default_factory=dict)
    # View -> device -> accuracy. Filled only if the run caps weights (policy.weight_cap), to choose the best point.
    validation_by_device: ByView = field(default_factory=dict)
    loss: ByView = field(default_factory=dict)
    # View -> accuracy over the test samples of all devices together.
    pooled: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    # Device whose accepted update was not used -> the reason.
    aside: dict[str, str] = field(default_factory=dict)
    # Arrays -> rule that has replaced their mean over the devices (policy.robust), for example "weights": "cap".
    robust: dict[str, str] = field(default_factory=dict)
    # In a round of training: the rounds whose answers the plan tells the coordinator to keep (keep.answers).
    keep: list[KeptRound] = field(default_factory=list)
    # Reason why a round of masked sums has no sum, so that the model stayed as it was; otherwise empty.
    without_sum: str = ""
    # Devices whose kept answers hold nothing that the server half can use.
    unused: list[str] = field(default_factory=list)
    # Devices whose kept answers were deleted in this round, because their enrolment has ended.
    removed: list[str] = field(default_factory=list)
    # In the last evaluation: domain -> class -> predicted class -> number of samples.
    confusion: dict[str, list[list[int]]] = field(default_factory=dict)
    # In the last evaluation: description of a machine -> devices that have sent this description.
    machines: dict[str, list[str]] = field(default_factory=dict)
    # Device -> "train" or "send" -> joules, for devices that can measure their energy.
    energy: ByDevice = field(default_factory=dict)
    # Device -> temperature of its hottest thermal zone in degrees Celsius, for devices that have one.
    temperature: dict[str, float] = field(default_factory=dict)
    # View -> number of devices that measured the accuracy ("devices"), that were asked to measure it ("asked"), and
    # that were present ("present").
    measured: dict[str, dict[str, int]] = field(default_factory=dict)
    evaluation: EvaluationRecord | None = None
    # In a run with dp: the largest epsilon that a device has given away so far ("epsilon"), and dp.epsilon ("limit").
    privacy: dict[str, float] = field(default_factory=dict)
    # In a virtual run: the time, and the joules, money and bytes of all boards and lines. Otherwise empty.
    virtual: dict[str, float] = field(default_factory=dict)
    # Reason -> number of frames and updates that were rejected.
    rejected: dict[str, int] = field(default_factory=dict)
    # The bytes of `wire` by device, in the rows that the function `divided` returns.
    by_device: dict[str, ByKind] = field(default_factory=dict)

    def is_of_all(self, view: str) -> bool:
        """Return whether all present devices were asked to measure this view.

        A device that was asked may have sent no update.
        """
        return is_of_all(self.measured.get(view))


def is_of_all(who: Mapping[str, int] | None) -> bool:
    """Return whether all present devices were asked to measure a view.

    If an earlier version wrote the line, `who` is None, and the result is True.
    """
    return who is None or who["asked"] >= who["present"]


def sampled_words(who: Mapping[str, int] | None) -> str:
    """Describe how many of the present devices measured a view; return "" if all of them were asked."""
    return "" if who is None or is_of_all(who) else f"by {who['devices']} of {who['present']} devices"


# Number of rounds. It has a limit, because some code loops over all rounds.
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
    """The fields of summary.json and their types. No field is required, because a comparison needs only a few."""

    name: str = ""
    method: str = ""
    paper: str = ""
    network: str = ""
    # Name of a prediction rule -> description of the rule.
    rules: dict[str, str] = field(default_factory=dict)
    reports: Literal["global", "personal"] = "global"
    rounds: Count = 1
    rounds_done: int = 0
    seed: int = 0
    # The run with whose state this run has started, and the rounds that it had done; empty without one.
    origin: dict[str, Any] = field(default_factory=dict)
    generation: int = 1
    devices: dict[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    ended: str = ""
    stopped: str = ""
    stopped_by: str = ""
    seconds: float = 0.0
    payload: Ways = field(default_factory=lambda: Ways({}, {}))
    uncoded: dict[str, dict[str, int]] = field(default_factory=dict)
    # In a run with dp: its numbers, and the largest epsilon of a device ("spent"). Otherwise empty.
    privacy: dict[str, float] = field(default_factory=dict)
    privacy_unit: str = ""  # dp.unit
    wire: Ways = field(default_factory=lambda: Ways({}, {}))
    fedavg: dict[str, int] = field(default_factory=dict)
    accuracy: Accuracy = field(default_factory=Accuracy)
    views: dict[str, Accuracy] = field(default_factory=dict)
    energy: dict[str, float] = field(default_factory=dict)
    # In a virtual run: the sums of the rounds, and a digest of the profiles. Otherwise empty.
    virtual: dict[str, float] = field(default_factory=dict)
    profiles: str = ""
    broker: str = ""
    security: str = ""
    robust: dict[str, str] = field(default_factory=dict)
    # The settings of masked sums in a run with them; otherwise empty.
    secagg: dict[str, Any] = field(default_factory=dict)
    keep: tuple[KeptRound, ...] = ()  # keep.answers
    versions: dict[str, Any] = field(default_factory=dict)
    experiment: str = ""


def believed_round(table: Mapping[str, Any]) -> dict[str, Any] | None:
    """Check a record without a seal; return it with all fields, or None if it is not a record of a round."""
    try:
        record = decode(RoundRecord, {"attempt": 0, "kind": "training", **table})
    except SettingsError:
        return None
    found = asdict(record)
    # A record without a seal cannot have these fields, because the versions that write them also write a seal.
    for name in ("energy", "measured", "evaluation"):
        del found[name]
    return found if 1 <= record.round <= LARGEST_COUNT else None


def record_of(line: Mapping[str, Any]) -> RoundRecord:
    """Make a record from a line of rounds.jsonl. Lines of other versions may have more or fewer fields."""
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
    """Return each machine description with the devices that sent it.

    This table is shorter than a table of devices, because most fleets have only a few kinds of machines.
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
    """Return what is wrong with a summary that has no seal; "" if nothing is wrong."""
    try:
        decode(Summary, table)
    except SettingsError as error:
        return str(error)
    return ""


def divided(crossed: Crossed, wire: ByKind, most: int = MOST_DEVICES) -> dict[str, ByKind]:
    """Divide `wire` into rows by device.

    At most `most` devices have a row of their own: the devices with the largest numbers of bytes. After these rows
    come the row ALL for broadcasts and the row OTHER for the remaining bytes. The sum of the rows is always `wire`.
    If an earlier process counted a part of `wire`, that part is in OTHER.
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
    """Return the bytes of a record by device.

    If an earlier version wrote the record without rows for devices, all bytes are in the row OTHER.
    """
    return by_device or {OTHER: wire}
