"""Run a measure several times with two trees in turn, and compare the values of the trees."""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.history import Entry, entry
from benchmarks.harness.measure import Figure, Measure, MeasureError
from benchmarks.harness.pairs import Spread, Verdict, apart, ratios, spread, verdict
from benchmarks.harness.trees import Tree

Tell = Callable[[str], None]


def taken(measure: Measure, this: Tree, other: Tree | None, times: int, tell: Tell) -> Entry:
    """Return `times` values of each figure.

    If there is another tree, the values are pairs. The trees run in the order A B, B A, A B ...
    """
    before = os.getloadavg()[0]
    series = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    sides = [(this, series[0])] + ([(other, series[1])] if other else [])
    for number in range(times):
        for tree, into in sides if number % 2 == 0 else sides[::-1]:
            values = once(measure, tree)
            tell(
                f"{measure.name}, {number + 1} of {times}, {tree.label}: {words_for(values, measure.figures)}"
            )
            for name, value in values.items():
                into[name].append(value)
    load = (before, os.getloadavg()[0])
    return entry(measure.name, this.commit, load, series[0], other.commit if other else "", series[1])


def once(measure: Measure, tree: Tree) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        values = measure.take(tree, Path(place))
    if values.keys() != measure.figures.keys():
        raise MeasureError(
            f"{measure.name} gave {sorted(values)}, but its figures must be {sorted(measure.figures)}"
        )
    return values


def words_for(values: Mapping[str, float], figures: Mapping[str, Figure]) -> str:
    return ", ".join(f"{name} {value:.4g} {figures[name].unit}".rstrip() for name, value in values.items())


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of an entry, as it is printed."""

    measure: str
    name: str
    figure: Figure
    this: Spread
    other: Spread | None = None
    ratio: Spread | None = None

    @property
    def verdict(self) -> Verdict | None:
        return verdict(self.ratio, self.figure.better) if self.ratio else None

    def __str__(self) -> str:
        unit = f" {self.figure.unit}" if self.figure.unit else ""
        line = f"{self.measure:14} {self.name:34} {self.this.median:.4g}{unit}"
        if self.ratio is None or self.other is None:
            s = self.this
            return (
                f"{line} ({s.low:.4g} to {s.high:.4g}; quartiles {s.first:.4g}, {s.third:.4g}; {s.n} times)"
            )
        r = self.ratio
        return (
            f"{line} beside {self.other.median:.4g}: ratio {r.median:.3g} ({r.low:.3g} to {r.high:.3g}; "
            f"quartiles {r.first:.3g}, {r.third:.3g}; {r.n} pairs) {self.verdict.value if self.verdict else ''}"
        )


def rows(entry: Entry, figures: Mapping[str, Figure]) -> list[Row]:
    return [row_of(entry, name, figures[name]) for name in entry.this if name in figures]


def row_of(entry: Entry, name: str, figure: Figure) -> Row:
    these, others = entry.this[name], entry.other.get(name)
    if not others:
        return Row(entry.measure, name, figure, spread(these))
    return Row(entry.measure, name, figure, spread(these), spread(others), spread(ratios(these, others)))


def worse(new: Entry, landed: Entry, figures: Mapping[str, Figure]) -> dict[str, str]:
    """Return a line for each figure that is worse than the stored figure by more than the noise.

    If the new entry was measured in pairs with the commit of the stored figures, the two values of each pair are
    compared. Otherwise only steady figures of the same machine are compared with the stored figures, because
    seconds that were measured at different times cannot be compared.
    """
    found = {}
    for row in rows(new, figures):
        if row.ratio and new.against == landed.commit:
            if row.verdict is Verdict.WORSE:
                found[row.name] = str(row)
        elif row.figure.steady and row.name in landed.this and new.machine == landed.machine:
            before = spread(landed.this[row.name])
            if apart(row.this, before, row.figure.better) is Verdict.WORSE:
                found[row.name] = f"{row}; it was {before.median:.4g} ({before.low:.4g} to {before.high:.4g})"
    return found
