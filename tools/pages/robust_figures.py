"""Write the tables of docs/robust.md from benchmarks/results/poisoning.jsonl: python -m tools.pages.robust_figures.

A cell is the accuracy that a rule costs against the plain mean without a liar, in points: the mean and the sample
standard deviation of the differences, seed by seed. A cell that has not been measured stays empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Final, TypeAlias

from tools.pages.generated_table import DOCS, replace_table

PAGE: Final = DOCS / "robust.md"
MODULE: Final = "tools.pages.robust_figures"
RESULTS: Final = Path(__file__).parents[2] / "benchmarks" / "results" / "poisoning.jsonl"
RULES: Final = ("mean", "cap", "clip_median", "trimmed", "median", "geometric", "multikrum")
ATTACKS: Final = (
    "nobody", "sign flip", "scaling", "ALIE", "label flip", "constant", "reversed mean", "drift",
)  # fmt: skip
TITLES: Final = {"fedavg": "weights (FedAvg)", "fedproto": "prototypes (FedProto)"}
Key: TypeAlias = tuple[str, str, str, str]  # Method, rule, attack, domains.
Line: TypeAlias = Mapping[str, object]
Found: TypeAlias = Mapping[Key, Mapping[int, Line]]


def read(path: Path = RESULTS) -> Found:
    found: dict[Key, dict[int, Line]] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        key = (line["method"], line["rule"], line["attack"], line["domains"])
        found.setdefault(key, {})[line["seed"]] = line
    return found


def accuracy(line: Line, device: str = "") -> float:
    value = line["devices"] if device else line["accuracy"]
    if isinstance(value, Mapping):
        value = fmean(number for name, number in value.items() if name.startswith(f"{device}-"))
    assert isinstance(value, float | int)
    return float(value)


def words(numbers: Sequence[float]) -> str:
    """Return the mean and the deviation of numbers, with their count if it is not five."""
    if not numbers:
        return ""
    more = f" ± {stdev(numbers):.1f}" if len(numbers) > 1 else ""
    seeds = "" if len(numbers) == 5 else f" ({len(numbers)})"
    return f"{fmean(numbers):.1f}{more}{seeds}"


def costs(found: Found, method: str, rule: str, attack: str) -> str:
    plain = found.get((method, "mean", "nobody", "six"), {})
    runs = found.get((method, rule, attack, "six"), {})
    return words([accuracy(plain[s]) - accuracy(runs[s]) for s in sorted(plain.keys() & runs.keys())])


def costs_table(found: Found, method: str) -> str:
    attacks = [a for a in ATTACKS if method == "fedproto" or a != "drift"]
    head = ["rule", "nobody lies", *attacks[1:]]
    rows = [[f"`{rule}`", *(costs(found, method, rule, attack) for attack in attacks)] for rule in RULES]
    plain = [accuracy(line) for line in found.get((method, "mean", "nobody", "six"), {}).values()]
    title = f"Cost in points on {TITLES[method]}; the plain mean without a liar reaches {words(plain)} %."
    return f"{title}\n\n{table(head, [row for row in rows if any(row[1:])])}"


def minority_table(found: Found) -> str:
    rows = []
    for method, title in TITLES.items():
        for rule in RULES:
            lines = [*found.get((method, rule, "nobody", "minority"), {}).values()]
            if lines:
                cells = [
                    words([accuracy(one, domain) for one in lines]) for domain in ("mnist", "synth", "street")
                ]
                rows.append([title, f"`{rule}`", *cells])
    head = ["arrays", "rule", "mnist (4 devices)", "synth (1 device)", "street (1 device)"]
    title = "Accuracy in percent without a liar, if four of six devices have one domain."
    return f"{title}\n\n{table(head, rows)}"


def origin(found: Found) -> str:
    lines = [line for runs in found.values() for line in runs.values()]
    commits = ", ".join(sorted({str(line["commit"]) for line in lines}))
    seconds = sum(float(str(line["cpu_seconds"])) for line in lines)
    return f"{len(lines)} runs, {seconds:,.0f} CPU seconds, at the commits {commits}."


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main() -> None:
    found = read()
    parts = [*(costs_table(found, method) for method in TITLES), minority_table(found), origin(found) + "\n"]
    page = replace_table(PAGE.read_text(encoding="utf-8"), MODULE, "\n".join(parts))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
