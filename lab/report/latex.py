"""Write tables for LaTeX. Each name is escaped, so that every letter is printed and no letter acts as a command.

pdfLaTeX stops at a letter that is in none of its fonts, and other engines leave out the letter. Therefore the
letter is written with commands for accents, or as a mathematical symbol, or as U+ with the letter's number.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Final

from protofleet.lab.report.comparison_tables import Table
from protofleet.lab.report.numbers import NONE

PREAMBLE: Final = "% The preamble needs \\usepackage{booktabs,graphicx}."
COMMANDS: Final = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    # [ and * are escaped, because LaTeX would read them as an argument of the \\ at the end of the row above.
    "|": r"\textbar{}", "[": "{[}", "*": "{*}",
    "`": "{}`", '"': r"\char34{}", "\u2010": "-", "\u2011": "-", "\u2013": r"\textendash{}",
    "\u2014": r"\textemdash{}", "\u2018": r"\textquoteleft{}", "\u2019": r"\textquoteright{}",
    "\u201c": r"\textquotedblleft{}", "\u201d": r"\textquotedblright{}",
    "\u2026": r"\ldots{}", "\u2212": "$-$", "±": r"$\pm$", "\u00d7": r"$\times$",
    "·": r"$\cdot$", "°": r"$^\circ$", "µ": r"$\mu$", "≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$",
    "→": r"$\to$", "∞": r"$\infty$", "ß": r"\ss{}", "æ": r"\ae{}", "Æ": r"\AE{}", "œ": r"\oe{}", "Œ": r"\OE{}",
    "ø": r"\o{}", "Ø": r"\O{}", "ł": r"\l{}", "Ł": r"\L{}", "\u0131": r"\i{}",
}  # fmt: skip
# Places between two marks that LaTeX would otherwise join into one.
TWO_MARKS: Final = re.compile(r"(?<=-)(?=-)|(?<=')(?=')")
ACCENTS: Final = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0304": "=", "\u0306": "u", "\u0307": ".",
    "\u0308": '"', "\u030a": "r", "\u030b": "H", "\u030c": "v", "\u0323": "d", "\u0327": "c",
}  # fmt: skip
# Greek letters that look like Latin letters are missing here, because LaTeX has no command for them.
GREEK: Final = frozenset((
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu", "xi",
    "pi", "rho", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega", "Gamma", "Delta", "Theta", "Lambda", "Xi",
    "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega",
))  # fmt: skip


def as_latex(tables: Sequence[Table]) -> str:
    return "\n\n".join([PREAMBLE, *map(latex_table, tables)]) + "\n"


def latex_table(table: Table) -> str:
    """Make a LaTeX table. If it is wider than the column of the paper, LaTeX scales it down.

    For example, a table with many domains and deviations is too wide.
    """
    rows = [
        [
            rf"\textbf{{{cell}}}" if (i, j) in table.best else cell
            for j, cell in enumerate(map(latex_cell, row))
        ]
        for i, row in enumerate(table.rows)
    ]
    label = re.sub(r"[^a-z0-9]+", "-", table.title.lower()).strip("-")
    note = [rf"\par\smallskip\footnotesize {latex_text(table.legend)}"] if table.legend else []
    columns = "".join("l" if i in table.words else "r" for i in range(len(table.head)))
    head = latex_row(list(map(latex_text, table.head)))
    return "\n".join([
        r"\begin{table}", r"\centering", rf"\caption{{{latex_text(table.title)}}}", rf"\label{{tab:{label}}}",
        r"\setlength{\tabcolsep}{4pt}", r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head,
        r"\midrule", *map(latex_row, rows), r"\bottomrule", r"\end{tabular}}", *note, r"\end{table}",
    ])  # fmt: skip


def latex_row(cells: Sequence[str]) -> str:
    return rf"{' & '.join(cells)} \\"


def latex_cell(text: str) -> str:
    """Write a cell. In a deviation, the space around the plus-minus sign is small."""
    return "--" if text == NONE else latex_text(text).replace(r" $\pm$ ", r"\,$\pm$\,")


def latex_text(text: str) -> str:
    whole = unicodedata.normalize("NFC", " ".join(text.split()))
    return TWO_MARKS.sub("{}", "".join(map(latex_letter, whole)))


def latex_letter(letter: str) -> str:
    if letter in COMMANDS:
        return COMMANDS[letter]
    if " " <= letter <= "~":
        return letter
    base, *accents = list(unicodedata.normalize("NFD", letter))
    if base.isascii() and base.isalpha() and len(accents) == 1 and accents[0] in ACCENTS:
        # An accent above i or j replaces the dot of the letter.
        on = rf"\{base}" if base in "ij" and accents[0] not in "\u0323\u0327" else base
        return rf"\{ACCENTS[accents[0]]}{{{on}}}"
    return greek(letter) or rf"\texttt{{U+{ord(letter):04X}}}"


def greek(letter: str) -> str:
    size, _, name = unicodedata.name(letter, "").removeprefix("GREEK ").partition(" LETTER ")
    name = {"LAMDA": "LAMBDA"}.get(name, name)
    command = name.lower() if size == "SMALL" else name.capitalize()
    return rf"$\{command}$" if command in GREEK else ""
