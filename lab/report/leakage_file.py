"""The file leakage.json in the folder of a run: what `protofleet leakage` has measured, for comparisons of runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from protofleet.protocol.settings.reader import SettingsError, decode
from protofleet.protocol.storage.disk import Disk
from protofleet.runtime.command.errors import RunError

FILE: Final = "leakage.json"
FORMAT: Final = 1


@dataclass(frozen=True)
class LeakageRow:
    """One figure, or the reason why there is none. Numbers that were not measured are None."""

    attack: str
    kind: str
    measure: str
    attacker: str
    device: str  # "" means all devices together.
    value: float | None = None
    low: float | None = None
    high: float | None = None
    baseline: float | None = None  # The figure of an attacker who has not seen the upload.
    control: float | None = None
    control_low: float | None = None
    control_high: float | None = None
    control_name: str = ""
    sound: bool = True  # False if the control is not where it must be; then the figure says nothing.
    gates: bool = False  # Whether the figure is reliable enough to stop a release.
    note: str = ""
    unmeasured: str = ""


@dataclass(frozen=True)
class LeakageFile:
    """The result of one measurement of a run."""

    method: str
    source: str  # Where the answers come from: "kept", "repeated" or "device".
    attacker: str  # The strongest attacker that was tried.
    rounds: tuple[int, ...]  # Rounds whose answers were there.
    worst: tuple[LeakageRow, ...]  # The worst device of each attack.
    together: tuple[LeakageRow, ...]  # All devices together.
    devices: tuple[LeakageRow, ...]  # Each device.
    missing: tuple[LeakageRow, ...]  # Attacks that gave no figure.

    @property
    def headline(self) -> LeakageRow | None:
        """Return the largest sound membership AUC of a single device; None if there is none."""
        found = [row for row in self.worst if row.measure == "AUC" and row.sound and row.value is not None]
        return max(found, key=lambda row: row.value or 0.0, default=None)


def write_leakage(folder: Path, found: LeakageFile) -> Path:
    path = folder / FILE
    text = json.dumps({"format": FORMAT, **asdict(found)}, indent=1, allow_nan=False)
    Disk(durable=False).replace(path, (text + "\n").encode())
    return path


def read_leakage(folder: Path) -> LeakageFile | None:
    """Return what was measured of the run in this folder; None if nothing was measured."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        if (form := table.pop("format")) != FORMAT:
            raise RunError(
                f"{path} has the format {form}, and this version knows {FORMAT}: run leakage again"
            )
        return decode(LeakageFile, table)
    except (ValueError, KeyError, TypeError, AttributeError, SettingsError) as error:
        raise RunError(f"{path} cannot be read ({str(error)[:80]}): run protofleet leakage again") from None


def interval(row: LeakageRow) -> str:
    """Return the figure with its interval, such as "0.66 [0.62, 0.70]"; "" if it was not measured."""
    if row.value is None:
        return ""
    ends = "" if row.low is None or row.high is None else f" [{row.low:.3g}, {row.high:.3g}]"
    return f"{row.value:.3g}{ends}"


def control_words(row: LeakageRow) -> str:
    """Return the control with its interval; "" if the attack has no control."""
    if row.control is None:
        return ""
    ends = "" if row.control_low is None else f" [{row.control_low:.3g}, {row.control_high:.3g}]"
    return f"{row.control:.3g}{ends}"


def named(rows: Sequence[LeakageRow], device: str) -> list[LeakageRow]:
    """Return the rows of one device."""
    return [row for row in rows if row.device == device]
