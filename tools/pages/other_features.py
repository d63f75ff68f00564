"""Write the tables "Other images, another layer" of docs/one-message.md: python -m tools.pages.other_features [RUNS].

RUNS is the folder with the runs and with the searches of benchmarks.programs.frozen_sweep. The figures are chosen and
read as in tools.pages.one_message, and written into other_features.json. Without RUNS, only the table is written.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from protofleet.lab.report.measured_one_message import MeasuredRow, read_measured
from protofleet.protocol.link.meter import human_bytes
from tools.pages.generated_table import replace_table
from tools.pages.measured_figures import markdown_table, mean_difference
from tools.pages.one_message import (
    PAGE,
    REFERENCE,
    Row,
    at_default,
    chosen_value,
    global_table,
    origin_table,
    search_table,
    shown,
    write_figures,
)

MODULE: Final = "tools.pages.other_features"
PATH: Final = Path(__file__).with_suffix(".json")
LAST: Final = "six digits domains, the last layer"
FASHION: Final = "Fashion-MNIST in four styles, block 10"
TRAINED: Final = "six digits domains, block 10, methods that train the head in 12 rounds"
HEADS: Final = (
    ("FedNCM, means in 4 bits", "fedncm"),
    ("FedCOF, means in 4 bits", "fedcof"),
    ("FedGram, 24 rows of 8 bits", "fedgram-24"),
    ("Fed3R", "fed3r"),
    ("GH-OFL, linear discriminants", "ghofl-lda"),
)
TRAINERS: Final = (
    ("FedProx", "fedprox"),
    ("FedNova", "fednova"),
    ("SCAFFOLD", "scaffold"),
    ("FedDyn", "feddyn"),
    ("FedAvgM", "fedavgm"),
    ("FedAdam", "fedadam"),
    ("FedYogi", "fedyogi"),
    ("FedAdagrad", "fedadagrad"),
    ("FedGH", "fedgh"),
    ("Ditto", "ditto"),
    ("APFL", "apfl"),
)
ROWS: Final = (
    *(Row(LAST, label, name, "digits-last-layer", "last-layer") for label, name in HEADS),
    *(
        Row(FASHION, label, name, "fashion-frozen", "fashion")
        for label, name in (*HEADS, (REFERENCE, "fedavg"))
    ),
    *(Row(TRAINED, label, name, "digits-frozen-head", "frozen-head") for label, name in TRAINERS),
)


def layer_table(rows: Sequence[MeasuredRow], before: Sequence[MeasuredRow]) -> str:
    """Return the table of the last layer; each row is compared with the row of the same method at block 10."""
    block = {one.label: one for one in before}
    head = (
        "method", "accuracy", "apart from block 10", "value chosen", "at the default value", "arrays up",
        "arrays down", "all messages",
    )  # fmt: skip
    cells = [
        [
            row.label, shown(row.test), compared(row, block.get(row.label)), chosen_value(row), at_default(row),
            *map(human_bytes, (row.arrays_up, row.arrays_down, row.messages)),
        ]
        for row in rows
    ]  # fmt: skip
    return markdown_table(head, cells, (1, 2, 5, 6, 7))


def trained_table(rows: Sequence[MeasuredRow], before: Sequence[MeasuredRow]) -> str:
    """Return the table of heads that are trained in rounds, and the row of FedAvg's head.

    A device's own test images decide. With one global head, the mean over the devices is also the mean over all
    domains.
    """
    reference = next(row for row in before if row.label == REFERENCE)
    head = (
        "method", "model", "own domain", "apart from FedAvg", "all domains", "value chosen", "at the default value",
        "arrays up", "arrays down", "all messages",
    )  # fmt: skip
    cells = [
        [
            row.label, row.reports, shown(row.test), "" if row is reference else compared(row, reference),
            shown(row.every_domain), chosen_value(row), at_default(row),
            *map(human_bytes, (row.arrays_up, row.arrays_down, row.messages)),
        ]
        for row in (reference, *rows)
    ]  # fmt: skip
    return markdown_table(head, cells, (2, 3, 4, 7, 8, 9))


def compared(row: MeasuredRow, block: MeasuredRow | None) -> str:
    """Return the accuracy of a row minus that of another layer, as the mean and the deviation over the draws."""
    if block is None:
        return "not measured"
    return mean_difference(row.test, block.test)


def tables(rows: Sequence[MeasuredRow], before: Sequence[MeasuredRow]) -> str:
    parts = []
    for name in (LAST, FASHION, TRAINED):
        own = [row for row in rows if row.table == name]
        if own:
            parts += [f"**{name}, %**\n", table_of(name, own, before)]
            parts += [f"**The values that were tried: {name}, %**\n", search_table(own)]
    return "\n".join([*parts, "**Where the figures come from**\n", origin_table(rows)])


def table_of(name: str, rows: Sequence[MeasuredRow], before: Sequence[MeasuredRow]) -> str:
    if name == LAST:
        return layer_table(rows, before)
    if name == TRAINED:
        return trained_table(rows, before)
    return global_table(rows, next(row for row in rows if row.label == REFERENCE))


def generate(page: str) -> str:
    return replace_table(page, MODULE, tables(read_measured(PATH), read_measured()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="?", type=Path)
    options = parser.parse_args()
    if options.runs:
        write_figures(options.runs, options.runs, PATH, ROWS)
    PAGE.write_text(generate(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
