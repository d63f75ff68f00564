"""The measured cost of the named codecs: bytes and accuracy, compared with runs of the same seeds with codec off.

`measured_codecs.json` has the figures. `python -m tools.pages.codec_figures` writes them from finished runs, and
writes the tables in docs/codecs.md from them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.protocol.settings.reader import decode

PATH: Final = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class MeasuredCodec:
    """The runs of a codec, compared with the runs of the same seeds with codec off."""

    codec: str
    seeds: tuple[int, ...]
    arrays: float  # Bytes of arrays in a run, in both directions; the mean over the seeds.
    wire: float  # The same with all other bytes of messages.
    times_arrays: (
        float  # Bytes with codec off, divided by the bytes with this codec; the mean over the seeds.
    )
    times_wire: float
    difference: float  # Difference in accuracy in percentage points; the mean over the seeds.
    error: float | None = None  # Standard error of the difference; None if there is only one seed.

    @property
    def points(self) -> str:
        """Return the difference in accuracy, such as "+0.7 ± 0.6"."""
        return f"{self.difference:+.1f}" + ("" if self.error is None else f" ± {self.error:.1f}")


@dataclass(frozen=True)
class MeasuredMethod:
    """An experiment that was run with several codecs."""

    name: str  # First part of the names of the runs; a method may be measured with several settings.
    method: str
    experiment: str  # Arguments of `protofleet run`, without the codec and the seed.
    rounds: int
    date: str
    commit: str
    seeds: tuple[int, ...]  # Seeds of the runs with codec off.
    accuracy: float  # Accuracy with codec off in percent; the mean over the seeds.
    arrays: float  # Bytes of arrays with codec off.
    codecs: tuple[MeasuredCodec, ...]


def read_measured(path: Path = PATH) -> list[MeasuredMethod]:
    tables = json.loads(path.read_text(encoding="utf-8"))["methods"]
    return [decode(MeasuredMethod, table, f"methods[{place}]") for place, table in enumerate(tables)]


def seed_text(seeds: Sequence[int]) -> str:
    """Return the seeds in words, such as "seeds 1 to 5"."""
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    if list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seeds {', '.join(map(str, seeds))}"
