"""Measure what an answer of each method gives away: python -m tools.pages.leakage_figures METHOD ... [--rounds N].

Each method is run in this process on the bundled digits, with six devices. The attacks are those of
`protofleet leakage --replay` with the attacker A3. The figures of these methods in lab/report/measured_leakage.json
are replaced. A method that is there already is left out, unless `--again` is given, so an interrupted measurement
goes on with the next method. Without METHOD, only the page is written. `all` names all methods.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from protofleet.lab.leakage.measure import LeakageQuery, measured
from protofleet.lab.leakage.repeated import repeated
from protofleet.lab.leakage.rows import file_of
from protofleet.lab.local.experiment import Experiment, read_experiment
from protofleet.lab.report.leakage_file import control_words, interval
from protofleet.lab.report.measured_leakage import PATH, MeasuredLeakage, read_measured_leakage
from protofleet.methods.contract import catalog
from tools.pages.generated_table import DOCS, replace_table
from tools.pages.measured_figures import markdown_table

PAGE: Final = DOCS / "leakage.md"
EXPERIMENTS: Final = DOCS.parent / "experiments"
MODULE: Final = "tools.pages.leakage_figures"
ROUNDS: Final = 3
HEAD: Final = ("attack", "on", "attacker", "worst device", "figure [95 %]", "without", "control [99 %]")
STRUCK: Final = "struck out: the control is off"


def experiment_of(method: str, rounds: int) -> tuple[Experiment, str]:
    """Return the experiment of a method on the bundled digits, and the path of its file."""
    paths = [EXPERIMENTS / "digits" / f"{method}.toml", EXPERIMENTS / method / f"{method}-digits.toml"]
    path = next(path for path in paths if path.exists())
    experiment = replace(read_experiment(path, [f"rounds={rounds}"]), codec=None)
    return experiment, str(path.relative_to(DOCS.parent))


def measure_method(method: str, rounds: int) -> dict[str, Any]:
    """Return the figures of one method, as they are stored."""
    experiment, path = experiment_of(method, rounds)
    observed = repeated(experiment, [1, rounds]).observed
    found = file_of(observed, measured(observed, LeakageQuery(observed.devices, "A3")))
    table = asdict(found)
    del table["devices"]
    return {"experiment": path, "planned_rounds": rounds, "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "commit": commit(), **table}  # fmt: skip


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=DOCS.parent, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def write_method(method: str, table: dict[str, Any], path: Path = PATH) -> None:
    """Replace the figures of one method in the file."""
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    stored[method] = table
    text = json.dumps(dict(sorted(stored.items())), indent=1, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def generate(page: str, methods: Mapping[str, MeasuredLeakage] | None = None) -> str:
    found = read_measured_leakage() if methods is None else methods
    sections = "".join(section_of(name, one) for name, one in sorted(found.items()))
    return replace_table(page, MODULE, f"\n{not_measured(found)}\n{sections}")


def not_measured(found: Mapping[str, MeasuredLeakage]) -> str:
    """Return a line with the methods that have no figures."""
    names = catalog.names()
    missing = ", ".join(f"`{name}`" for name in names if name not in found)
    return f"Measured: {len(found)} of {len(names)} methods. Not measured: {missing or 'none'}."


def section_of(name: str, one: MeasuredLeakage) -> str:
    """Return the heading, the table and the attacks without a figure of one method."""
    rounds = "1 round" if one.rounds == (1,) else f"{one.planned_rounds} rounds"
    head = f"\n**`{name}`** (`{one.experiment}`, {rounds}, {one.date}, commit {one.commit})\n\n"
    rows = [
        [
            row.attack, row.kind, row.attacker, row.device, f"{row.measure} {interval(row)}" if row.sound else STRUCK,
            "" if row.baseline is None else f"{row.baseline:.3g}", control_words(row),
        ]
        for row in one.worst
    ]  # fmt: skip
    table = markdown_table(HEAD, rows, ()) if rows else "No attack gave a figure.\n"
    tried = sorted({f"{row.attack} on `{row.kind}`: {row.unmeasured}" for row in one.missing})
    return head + table + "".join(f"\nNo figure: {words}.\n" for words in tried)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure what the answers of methods give away.")
    parser.add_argument("methods", nargs="*")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args(arguments)
    wanted = catalog.names() if options.methods == ["all"] else options.methods
    done = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    for method in wanted:
        if method not in done or options.again:
            try:
                write_method(method, measure_method(method, options.rounds))
            except Exception as error:  # noqa: BLE001 - the other methods are measured all the same
                print(f"{method} is not measured: {type(error).__name__}: {error}", flush=True)
            else:
                print(method, time.strftime("%H:%M:%S"), flush=True)
    PAGE.write_text(generate(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
