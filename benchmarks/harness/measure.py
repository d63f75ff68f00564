"""The parts of a measure: its name, the work that it runs, and its figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from benchmarks.harness.trees import Tree

Better = Literal["lower", "higher"]


class MeasureError(Exception):
    """An error for a run that went wrong: there is no figure, and the message states the reason."""


@dataclass(frozen=True, slots=True)
class Figure:
    unit: str
    better: Better = "lower"
    # True for counts, bytes and ratios within one run, because other work on the machine hardly changes them.
    steady: bool = False


class Measure(Protocol):
    """A measure, whose `take` runs it once with the code of a tree, in an empty folder.

    `take` raises MeasureError if it cannot be sure of a figure.
    """

    @property
    def name(self) -> str: ...
    @property
    def what(self) -> str:
        """Return a description in one line."""

    @property
    def figures(self) -> dict[str, Figure]: ...
    def take(self, tree: Tree, folder: Path) -> dict[str, float]: ...
