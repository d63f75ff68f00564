"""Read how many seconds a piece of work took on real devices: from a metrics page, or from the updates of a run."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.names import EVALUATE

WORK: Final = "protofleet_device_work_seconds_total"
ANSWERS: Final = "protofleet_device_answers_total"


@dataclass(frozen=True, slots=True)
class MeasuredWork:
    """The mean seconds of work for an update that real devices have measured."""

    training: float
    evaluation: float  # The last evaluation, and other evaluations of all devices.


def seconds_of_page(path: Path, key: str) -> MeasuredWork:
    """Return the mean seconds of work for an update, from the saved metrics page of one or more devices.

    The page does not say which updates were evaluations, so both kinds have the same mean.
    """
    try:
        samples = [
            one for family in text_string_to_metric_families(path.read_text()) for one in family.samples
        ]
    except OSError as error:
        raise SettingsError(f"{key}: {path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise SettingsError(f"{key}: {path} is not a metrics page") from None
    sums = {name: sum(one.value for one in samples if one.name == name) for name in (WORK, ANSWERS)}
    if not sums[ANSWERS] or not sums[WORK]:
        raise SettingsError(
            f"{key}: {path} has no updates of a device ({WORK} and {ANSWERS} must be above 0)"
        )
    mean = sums[WORK] / sums[ANSWERS]
    return MeasuredWork(mean, mean)


def seconds_of_run(run: Path) -> MeasuredWork | None:
    """Return the mean seconds of the last work of each device of a run on this machine; None if none is known."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for path in sorted((run / "devices").glob("*/device.json")):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            for one in json.loads(path.read_text())["book"]["runs"]:
                for answer in one["answers"]:
                    found[answer["phase"] == EVALUATE].append(float(answer["metrics"]["seconds.work"]))
    if not any(found[False]):
        return None
    training = fmean(found[False])
    return MeasuredWork(training, fmean(found[True]) if found[True] else training)
