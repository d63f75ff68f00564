"""Read the answers that a coordinator has kept after their rounds (keep.answers)."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

from protofleet.coordinator.spool.kept_rounds import (
    ABOUT_FILE,
    ANSWER,
    BROADCAST_FILE,
    KEPT,
    PLAN_FILE,
    kept_folders,
    number_of,
)
from protofleet.lab.leakage.observed import Exchange, Observed
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.settings.reader import SettingsError, decode
from protofleet.protocol.wire.arrays import Body
from protofleet.protocol.wire.messages import Arrays
from protofleet.protocol.wire.reasons import Rejected
from protofleet.runtime.command.errors import RunError

log = logging.getLogger("protofleet")


def kept_folder(run: Path) -> Path | None:
    """Return the folder of the kept answers of a run; None if the coordinator has kept none."""
    places = (run / KEPT, run / "coordinator" / KEPT)
    return next((place for place in places if (place / PLAN_FILE).is_file()), None)


def read_kept(folder: Path) -> Observed:
    """Return what the coordinator has kept; there is no ground truth.

    Raise RunError if a file cannot be read.
    """
    exchanges, counts = list[Exchange](), dict[str, tuple[int, ...]]()
    try:
        plan = plan_in(folder / PLAN_FILE)
        for place in _rounds(folder):
            about = json.loads((place / ABOUT_FILE).read_text(encoding="utf-8"))
            counts |= {device: tuple(numbers) for device, numbers in about.get("counts", {}).items()}
            exchanges += _exchanges(place, about["examples"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, Rejected) as error:
        raise RunError(
            f"the kept answers in {folder} cannot be read ({' '.join(str(error).split())[:120]}); restore the folder "
            "from a backup, or repeat the run with --replay"
        ) from None
    if not exchanges:
        raise RunError(f"{folder} has no kept answers yet: a round with an answer must end first")
    return Observed(plan, "kept", exchanges, counts)


def plan_in(path: Path) -> Plan:
    """Read a plan from a JSON file; raise SettingsError if the file is no plan."""
    try:
        return decode(Plan, json.loads(path.read_text(encoding="utf-8")))
    except (SettingsError, LookupError, ValueError, OSError) as error:
        raise SettingsError(
            f"{path} is not the plan of a run: {' '.join(str(error).split())[:160]}"
        ) from None


def _rounds(folder: Path) -> list[Path]:
    """Return the folders of rounds and phases; phases of one round are in the order in which they were written."""
    return sorted(kept_folders(folder), key=lambda path: (number_of(path), path.stat().st_mtime))


def _exchanges(place: Path, examples: dict[str, int]) -> Iterator[Exchange]:
    number, phase = number_of(place), place.name.partition(".")[2]
    broadcast = arrays_in(place / BROADCAST_FILE)
    for device in sorted(examples):
        path = place / f"{device}{ANSWER}"
        if not path.is_file():  # The coordinator deletes the answer of a device first, and then its name.
            log.warning("%s is missing, so this answer of %s is not measured", path, device)
            continue
        yield Exchange(device, number, phase, broadcast, arrays_in(path), examples[device])


def arrays_in(path: Path) -> Arrays:
    """Read the arrays of a body into memory."""
    data = path.read_bytes()
    return dict(Body(lambda start, stop: data[start:stop], len(data)))
