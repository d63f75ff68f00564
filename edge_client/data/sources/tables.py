"""Vectors from tables: three UCI tables in scikit-learn's package, and a user's own table, `<root>/<domain>.csv`.

Only the data files of scikit-learn are read; its code is not imported. Each row of a table is a sample: the numbers
are first, and the class is last.
"""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from protofleet.edge_client.data.domain import Domain, ValuesInMemory, select
from protofleet.edge_client.data.errors import DataError, reading
from protofleet.edge_client.data.packages import package_file
from protofleet.edge_client.data.sampling import stratified, without
from protofleet.edge_client.data.scaling import Scale
from protofleet.edge_client.data.sources.source import DataSource
from protofleet.edge_client.data.stable_random import StableRandom
from protofleet.protocol.settings.input_shape import InputShape

WAY_OUT: Final = (
    "rows are looked for in <root>/<domain>.csv, numbers and the class last, and data.root names the root"
)
OTHER_SIGNS: Final = {";": "semicolons", "\t": "tabs", "|": "bars"}  # separators that are not accepted
TEST_PART: Final = 5  # in every class, one of five rows is for the test

CLASSES: Final = {
    "breast_cancer": ("malignant", "benign"),
    "iris": ("setosa", "versicolor", "virginica"),
    "wine": ("class_0", "class_1", "class_2"),
}
FILES: Final = {"breast_cancer": "breast_cancer", "iris": "iris", "wine": "wine_data"}
# The mean and the deviation of each column, over the whole table. The tables have 569, 150 and 178 rows.
SCALES: Final = {
    "breast_cancer": Scale(
        (
            *(14.1, 19.3, 92.0, 655.0, 0.0964, 0.104, 0.0888, 0.0489, 0.181, 0.0628),
            *(0.405, 1.22, 2.87, 40.3, 0.00704, 0.0255, 0.0319, 0.0118, 0.0205, 0.00379),
            *(16.3, 25.7, 107.0, 881.0, 0.132, 0.254, 0.272, 0.115, 0.29, 0.0839),
        ),
        (
            *(3.52, 4.3, 24.3, 352.0, 0.0141, 0.0528, 0.0796, 0.0388, 0.0274, 0.00705),
            *(0.277, 0.551, 2.02, 45.5, 0.003, 0.0179, 0.0302, 0.00616, 0.00826, 0.00264),
            *(4.83, 6.14, 33.6, 569.0, 0.0228, 0.157, 0.208, 0.0657, 0.0618, 0.018),
        ),
    ),
    "iris": Scale((5.84, 3.06, 3.76, 1.2), (0.825, 0.434, 1.76, 0.76)),
    "wine": Scale(
        (13.0, 2.34, 2.37, 19.5, 99.7, 2.3, 2.03, 0.362, 1.59, 5.06, 0.957, 2.61, 747.0),
        (0.81, 1.11, 0.274, 3.33, 14.2, 0.624, 0.996, 0.124, 0.571, 2.31, 0.228, 0.708, 314.0),
    ),
}


class TableRow(NamedTuple):
    cells: list[str]
    line: int  # line number in the file, from 1 on

    @property
    def label(self) -> str:
        return self.cells[-1]

    @property
    def is_numbers_and_a_class(self) -> bool:
        return len(self.cells) > 1 and all(map(_is_number, self.cells[:-1]))


def _of_scikit_learn(name: str, folder: Path, domain: str) -> Domain:
    """Read a table of scikit-learn, in which labels are numbers and the first row is not a sample."""
    path = package_file("sklearn", f"datasets/data/{FILES[name]}.csv")
    rows = _rows(path)[1:]
    with reading(path):
        labels = np.array([int(row.label) for row in rows])
    return _split(path, domain, CLASSES[name], _numbers(path, rows), labels)


def _own(folder: Path, domain: str) -> Domain:
    path = _own_path(folder, domain)
    rows = _own_rows(path)
    classes = _own_classes(rows)
    labels = np.array([classes.index(row.label) for row in rows])
    return _split(path, domain, classes, _numbers(path, rows), labels)


def _own_names(folder: Path, domain: str) -> tuple[str, ...]:
    return _own_classes(_own_rows(_own_path(folder, domain)))


def _own_path(folder: Path, domain: str) -> Path:
    return folder / f"{'data' if domain == 'table' else domain}.csv"


def _own_rows(path: Path) -> list[TableRow]:
    """Return the rows of a user's file; a first row with titles is left out."""
    rows = _rows(path)
    return rows[1:] if rows and not _is_number(rows[0].cells[0]) else rows


def _own_classes(rows: list[TableRow]) -> tuple[str, ...]:
    return tuple(sorted({row.label for row in rows}))


def _rows(path: Path) -> list[TableRow]:
    with reading(path, WAY_OUT), path.open(encoding="utf-8", newline="") as file:
        try:
            reader = csv.reader(file)
            return [TableRow([cell.strip() for cell in row], reader.line_num) for row in reader if row]
        except csv.Error as error:
            raise ValueError(error) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(path: Path, rows: list[TableRow]) -> ValuesInMemory:
    if not rows:
        raise DataError(f"{path} has no rows; {WAY_OUT}")
    width = len(rows[0].cells)
    for row in rows:
        if len(row.cells) != width or not row.is_numbers_and_a_class:
            raise DataError(
                f"{path}: line {row.line} is {', '.join(row.cells)[:60]!r}, {_demand(row, width)}"
            )
    values = np.array([[float(cell) for cell in row.cells[:-1]] for row in rows], np.float32)
    if not np.isfinite(values).all():
        raise DataError(f"{path} has numbers that are not finite; leave out such samples")
    return ValuesInMemory(values, np.zeros(len(rows), np.int64), str(path))


def _demand(row: TableRow, width: int) -> str:
    """Describe the form that the row must have; `width` is the number of cells of the first sample."""
    other = next((name for sign, name in OTHER_SIGNS.items() if sign in row.cells[0]), "")
    if len(row.cells) == 1 and other:
        return (
            f"with {other} between its values; save the table with commas between them and points in numbers"
        )
    many = "numbers" if width < 2 else "1 number" if width == 2 else f"{width - 1} numbers"
    return f"it must be {many} and a class, with commas between them"


def _split(
    path: Path, domain: str, classes: tuple[str, ...], unlabelled: ValuesInMemory, labels: np.ndarray
) -> Domain:
    every = ValuesInMemory(unlabelled.values, labels.astype(np.int64), unlabelled.title)
    test = np.sort(stratified(every.labels, len(labels) // TEST_PART, StableRandom("table", domain)))
    return Domain(domain, classes, select(every, without(len(labels), test)), select(every, test))


def _packaged(name: str) -> DataSource:
    classes, scale = CLASSES[name], SCALES[name]
    return DataSource(
        partial(_of_scikit_learn, name), (name,), class_names=lambda folder, domain: classes, needs_folder=False,
        ranks=(1,), shape=InputShape((len(scale.by),)), scale=scale,
    )  # fmt: skip


BREAST_CANCER: Final = _packaged("breast_cancer")
IRIS: Final = _packaged("iris")
WINE: Final = _packaged("wine")
TABLE: Final = DataSource(_own, (), class_names=_own_names, ranks=(1,))
