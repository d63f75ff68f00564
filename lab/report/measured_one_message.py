"""The measured accuracy and bytes of methods on the features of a frozen backbone, for docs/one-message.md.

`measured_one_message.json` has the figures. `python -m tools.pages.one_message` writes them from finished runs and
from sweeps, and writes the tables of the page from them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.protocol.settings.reader import decode

PATH: Final = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class TriedValue:
    """A value of the setting that was searched. The accuracies are means over the domains, one for each draw."""

    value: str
    validation: tuple[float, ...]
    test: tuple[float, ...]


@dataclass(frozen=True)
class MeasuredRow:
    """A method on frozen features: an accuracy for each draw of the images, and the bytes of a run."""

    table: str  # Name of the table of the page to which the row belongs.
    label: str
    experiment: str  # Path of the experiment file.
    reports: str  # View of the method: "global", or "personal" if each device has a model of its own.
    rounds: int
    setting: str  # Setting that was searched, such as "method.lam"; "" if there is none.
    default: str  # Its value in the file's base, or else its default; "" if the server chooses the value.
    chosen: str  # Value with the highest mean validation accuracy.
    tried: tuple[TriedValue, ...]
    draws: tuple[int, ...]  # Values of data.seed.
    test: tuple[float, ...]  # Test accuracy in percent at the chosen value, mean over the domains.
    test_at_default: tuple[float, ...]
    every_domain: tuple[float, ...]  # The same, but each model is measured on the test images of all domains.
    arrays_up: float  # Bytes of a run, means over the draws.
    arrays_down: float
    messages: float  # Bytes of all messages in both directions: arrays, envelopes and control.
    date: str
    commit: str
    sources: str
    digests: tuple[str, ...]  # Digest of the experiment for each draw.

    @property
    def search_up(self) -> float:
        """Return the bytes of arrays that a search with one run for each value sends up."""
        return self.arrays_up * max(1, len(self.tried))

    @property
    def is_end(self) -> bool:
        """Return whether the chosen value is the first or the last value of its grid."""
        return len(self.tried) > 2 and self.chosen in (self.tried[0].value, self.tried[-1].value)


def read_measured(path: Path = PATH) -> list[MeasuredRow]:
    tables = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [decode(MeasuredRow, table, f"rows[{place}]") for place, table in enumerate(tables)]
