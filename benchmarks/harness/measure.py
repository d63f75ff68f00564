"""The parts of a measure: its name, the work that it runs, and its figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from benchmarks.harness.trees import Tree

Better = Literal["lower", "higher"]


class MeasureError(Exception):
    """The error for a run that has failed. There is no figure, and the message is the reason."""


@dataclass(frozen=True, slots=True)
class Figure:
    unit: str
    better: Better = "lower"
    # True for counts, bytes and ratios within one run. Other work on the machine hardly changes such figures.
    steady: bool = False


class Measure(Protocol):
    """A measure. The method `take` runs it once in an empty folder, with the code of a tree.

    If `take` cannot be sure of a figure, it raises MeasureError.
    """

    @property
    def name(self) -> str: ...
    @property
    def what(self) -> str:
        """Return a description of the measure in one line."""

    @property
    def figures(self) -> dict[str, Figure]: ...
    def take(self, tree: Tree, folder: Path) -> dict[str, float]: ...
