"""Make the section with the confusion matrices of each domain at the end of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final, TypeAlias

from protofleet.lab.report.finished_run import FinishedRun
from protofleet.lab.report.html_page import scrolling, section, table, unfolded
from protofleet.lab.report.numbers import NONE
from protofleet.lab.report.sections.accuracy import VIEWS

# A matrix of numbers of samples. The row is the class of the samples, and the column is the predicted class.
Matrix: TypeAlias = Sequence[Sequence[int]]

# Largest number of classes of a shown matrix. With more classes, only the table of pairs is shown.
MOST_CLASSES: Final = 30
MOST_DOMAINS: Final = 20
MOST_PAIRS: Final = 10
ALL: Final = "all domains"


def confusion_section(run: FinishedRun) -> str:
    found = [line["confusion"] for line in run.rounds if line.get("confusion")]
    if not found:
        return ""
    by_domain: Mapping[str, Matrix] = found[-1]
    together, names = summed(list(by_domain.values())), run.summary.get("class_names") or []
    note = (
        f"Of {VIEWS[run.summary['reports']]}, after the last round. A row is a class, a column what its samples were "
        "taken for; the tint is the share of the row."
    )
    return section(
        "Confused classes", pairs_table(by_domain, names), matrices(by_domain, together, names), note=note
    )


def summed(matrices: Sequence[Matrix]) -> Matrix:
    return [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]


def name_of(label: int, names: Sequence[str]) -> str:
    return names[label] if label < len(names) else str(label)


def pairs_table(by_domain: Mapping[str, Matrix], names: Sequence[str]) -> str:
    """Return a table of the most frequent mistakes. A mistake is a pair of the true class and the predicted class.

    The mistakes are sorted by the share of wrong samples among all samples of the true class in the domain.
    """
    found = [
        (wrong / sum(row), wrong, sum(row), domain, i, j)
        for domain, matrix in by_domain.items()
        for i, row in enumerate(matrix)
        for j, wrong in enumerate(row)
        if i != j and wrong
    ]
    rows = [
        [domain, name_of(i, names), name_of(j, names), f"{wrong} of {total}", f"{share:.1%}"]
        for share, wrong, total, domain, i, j in sorted(found, key=lambda p: (-p[0], -p[1], p[3:]))[
            :MOST_PAIRS
        ]
    ]
    head = ["domain", "class", "taken for", "samples", "share"]
    return table("Most confused", head, rows or [[NONE] * len(head)])


def matrices(by_domain: Mapping[str, Matrix], together: Matrix, names: Sequence[str]) -> str:
    if len(together) > MOST_CLASSES:
        return f"<p>All {len(together)} classes are in the last line of rounds.jsonl.</p>"
    several = len(by_domain) > 1
    first = matrix_table(ALL, together, names) if several else ""
    shown = list(by_domain.items())[:MOST_DOMAINS]
    folded = [unfolded(f"Confused classes: {d}", matrix_table(d, matrix, names)) for d, matrix in shown]
    more = len(by_domain) - len(shown)
    rest = f"<p>{more} more domains are in the last line of rounds.jsonl.</p>" if more else ""
    return first + ("".join(folded) if several else matrix_table(*shown[0], names)) + rest


def matrix_table(domain: str, matrix: Matrix, names: Sequence[str]) -> str:
    labels = [escape(name_of(i, names)) for i in range(len(matrix))]
    top = "".join(f'<th scope="col">{label}</th>' for label in ("class", *labels))
    body = "".join(
        f'<tr><th scope="row">{label}</th>{"".join(cell(n, sum(row)) for n in row)}</tr>'
        for label, row in zip(labels, matrix, strict=True)
    )
    caption = f"What was taken for what, {domain}"
    return scrolling(
        caption,
        f'<table class="heat"><caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table>",
    )


def cell(number: int, of_row: int) -> str:
    return f'<td style="--share:{number / of_row:.0%}">{number}</td>' if number else "<td>0</td>"
