"""A measure: its name, what it runs, and the figures that come of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from benchmarks.harness.trees import Tree

Better = Literal["lower", "higher"]


class MeasureError(Exception):
    """The run went wrong: there is no figure, and the message says why."""


@dataclass(frozen=True, slots=True)
class Figure:
    unit: str
    better: Better = "lower"
    # Counts, bytes and ratios within one run: what else the machine does hardly moves them.
    steady: bool = False


class Measure(Protocol):
    """`take` runs it once with the code of a tree, in an empty folder, and raises MeasureError rather than guess."""

    @property
    def name(self) -> str: ...
    @property
    def what(self) -> str:
        """In one line."""

    @property
    def figures(self) -> dict[str, Figure]: ...
    def take(self, tree: Tree, folder: Path) -> dict[str, float]: ...
