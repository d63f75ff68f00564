"""Write the table "Rounds with slow devices" of docs/buffered-rounds.md: python -m tools.pages.buffered [FILE ...].

The files are those of `python -m benchmarks.programs.buffered`. Their figures are written into buffered.json. Without
files, only the table is written.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from protofleet.lab.report.comparison_tables import mean_and_deviation
from protofleet.lab.report.numbers import one_place
from protofleet.protocol.link.meter import human_bytes
from tools.pages.generated_table import DOCS, replace_table
from tools.pages.measured_figures import markdown_table, newest_day, write_figures_file

MODULE: Final = "tools.pages.buffered"
PAGE: Final = DOCS / "buffered-rounds.md"
PATH: Final = Path(__file__).with_suffix(".json")
BASELINE: Final = "synchronous"
LABELS: Final = {
    "synchronous": "synchronous, waits for all",
    "straggler_factor": "`straggler_factor` = 2.5",
    "spares": "`cohort` = 7, `spares` = 3",
    "buffered-4": "buffered, `buffer` = 4",
    "buffered-7": "buffered, `buffer` = 7",
}
HEAD: Final = (
    "rounds", "accuracy at the end, %", "seconds to", "bytes to", "bytes in all", "updates of slow devices, %",
    "number of rounds",
)  # fmt: skip


def figures_of(curve: Mapping[str, Any], goal: float, seconds: float) -> dict[str, float]:
    """Return the figures of one run up to this time.

    `goal` is the accuracy to reach. If the run never reaches it, the time and the bytes are those of the whole run.
    """
    points = [
        p for p in zip(curve["seconds"], curve["bytes"], curve["accuracy"], strict=True) if p[0] <= seconds
    ]
    first = next((point for point in points if point[2] >= goal), points[-1])
    return {
        "accuracy": round(100 * points[-1][2], 2), "seconds": first[0], "bytes": first[1], "all_bytes": points[-1][1],
        "reached": float(first[2] >= goal), "slow_share": 100 * curve["slow_share"], "rounds": len(points),
    }  # fmt: skip


def write_figures(files: Sequence[Path], path: Path = PATH) -> None:
    """Compute the figures of each setting and seed; only seeds that all settings have are used."""
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        for setting, by_seed in json.loads(file.read_text(encoding="utf-8")).items():
            found.setdefault(setting, {}).update(by_seed)
    seeds = sorted(set.intersection(*({*found.get(setting, {})} for setting in LABELS)), key=int)
    rows = {}
    for setting in LABELS:
        rows[setting] = {
            seed: figures_of(
                found[setting][seed],
                found[BASELINE][seed]["accuracy"][-1],
                found[BASELINE][seed]["seconds"][-1],
            )
            for seed in seeds
        }
    write_figures_file(path, {"date": newest_day(files), "rows": rows})


def table_of(figures: Mapping[str, Any]) -> str:
    rows = figures["rows"]
    cells = [cells_of(LABELS[setting], [*rows[setting].values()]) for setting in LABELS]
    words = f"Means and sample standard deviations over {len(rows[BASELINE])} seeds, {figures['date']}.\n\n"
    return words + markdown_table(HEAD, cells, range(1, len(HEAD)))


def cells_of(label: str, seeds: Sequence[Mapping[str, float]]) -> list[str]:
    reached = sum(one["reached"] for one in seeds)
    words = "" if reached == len(seeds) else f" ({reached:.0f} of {len(seeds)} seeds)"
    return [
        label,
        mean_and_deviation([one["accuracy"] for one in seeds], one_place),
        mean_and_deviation([one["seconds"] for one in seeds], one_place) + words,
        human_bytes(round(fmean(one["bytes"] for one in seeds))),
        human_bytes(round(fmean(one["all_bytes"] for one in seeds))),
        f"{fmean(one['slow_share'] for one in seeds):.0f}",
        f"{fmean(one['rounds'] for one in seeds):.0f}",
    ]


def main(files: Sequence[Path]) -> None:
    if files:
        write_figures(files)
    table = table_of(json.loads(PATH.read_text(encoding="utf-8")))
    PAGE.write_text(replace_table(PAGE.read_text(encoding="utf-8"), MODULE, table), encoding="utf-8")


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
