"""Read a finished run from its files. Damaged lines are left out, and the report mentions them."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from protofleet.coordinator.observe.rounds_file import copy_of, finite, whole_lines
from protofleet.coordinator.observe.summary_file import read_summary
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.wire.name_list import first_names
from protofleet.runtime.command.errors import RunError

SUMMARY: Final = "summary.json"
BEGUN: Final = ("experiment.toml", "rounds.jsonl", "coordinator")  # Any of them shows that a run has begun.
Rounds = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class FinishedRun:
    folder: Path
    rounds: Rounds
    summary: Mapping[str, Any]
    faults: str = ""  # A description of the damaged or missing lines of rounds.jsonl; "" if there are none.


def read_run(folder: Path) -> FinishedRun:
    require_finished([folder])
    path = folder / SUMMARY
    try:
        summary = finite(read_summary(path))
    except DamagedError as error:
        raise RunError(str(error)) from None
    path = folder / "rounds.jsonl"
    found, damaged = whole_lines(path)
    lines = {line["round"]: line for _, line in found}
    copies = {line["round"]: line for _, line in whole_lines(copy_of(path))[0]}
    last = max(lines | copies, default=0)
    if summary.get("ended", "finished") == "finished":
        # A run that an operator has stopped ends without an evaluation.
        evaluation = summary.get("stopped_by") != "operator"
        last = max(last, summary.get("rounds_done" if summary.get("stopped") else "rounds", 0) + evaluation)
    missing = {number for number in range(1, last + 1) if number not in lines}
    restored, lost = sorted(missing & copies.keys()), sorted(missing - copies.keys())
    lines |= {number: copies[number] for number in restored}
    faults = describe_faults(path, damaged, restored, lost)
    return FinishedRun(folder, [lines[number] for number in sorted(lines)], summary, faults)


def require_finished(folders: Sequence[Path]) -> None:
    """Raise RunError if a folder holds no finished run. The message names all such folders and says what to do."""
    found = [folder for folder in folders if not (folder / SUMMARY).exists()]
    if not found:
        return
    missing = [folder for folder in found if not folder.exists()]
    begun = [folder for folder in found if any((folder / name).exists() for name in BEGUN)]
    other = [folder for folder in found if folder not in missing and folder not in begun]
    earlier = [path for folder in found for path in earlier_runs(folder)]
    words = [
        _sentence(missing, "does not exist", "do not exist"),
        _sentence(begun, f"holds no finished run: there is no {SUMMARY} in it; finish it first",
                  f"hold no finished run: there is no {SUMMARY} in them; finish them first"),
        _sentence(other, f"holds no run: there is no {SUMMARY} in it",
                  f"hold no run: there is no {SUMMARY} in them"),
        f"earlier runs are in {', '.join(map(str, earlier))}" if earlier else "",
        f"name only the other {len(folders) - len(found)}" if len(folders) > len(found) else "",
    ]  # fmt: skip
    raise RunError("; ".join(filter(None, words)))


def _sentence(folders: Sequence[Path], one: str, several: str) -> str:
    return f"{', '.join(map(str, folders))} {one if len(folders) == 1 else several}" if folders else ""


def earlier_runs(folder: Path) -> list[Path]:
    """Return the folders of earlier finished runs with this name. A later start has renamed these folders."""
    renamed = folder.parent.glob(f"{glob.escape(folder.name)}.*") if folder.name else ()
    return sorted(path for path in renamed if path.suffix[1:].isdigit() and (path / SUMMARY).exists())


def require_keys(folder: Path, summary: Mapping[str, Any], required: Sequence[str]) -> None:
    if missing := [name for name in required if name not in summary]:
        raise RunError(
            f"{folder / 'summary.json'} has no {missing[0]!r}: this file is not the summary of a finished run"
        )


def describe_faults(path: Path, damaged: int, restored: Sequence[int], lost: Sequence[int]) -> str:
    """Describe the damaged and missing lines.

    Lines can be missing because the run was continued from an older checkpoint.
    """
    parts = [f"damaged lines of {path}, left out: {damaged}"] if damaged else []
    if restored:
        parts.append(f"rounds {listed(restored)} are taken from {copy_of(path).name}")
    if lost:
        parts.append(f"nothing is known of rounds {listed(lost)}: no figure has them in it")
    return "; ".join(parts)


def listed(rounds: Sequence[int]) -> str:
    return first_names(list(map(str, rounds)), 10)
