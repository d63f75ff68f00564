"""`python -m benchmarks [name ...]`: run them, write one JSON each, print one table."""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path

import torch

NAMES = ("rounds", "transfer", "memory", "sealing", "beside", "wear", "flower")
BY_NAME = ("stack",)  # which needs Docker and images
RESULTS = Path(__file__).parent / "results"


def main(chosen: list[str]) -> int:
    if unknown := set(chosen) - {*NAMES, *BY_NAME}:
        print(
            f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join((*NAMES, *BY_NAME))}",
            file=sys.stderr,
        )
        return 2
    RESULTS.mkdir(exist_ok=True)
    for name in chosen or NAMES:
        print(f"== {name}", flush=True)
        result = {"machine": machine(), **import_module(f"benchmarks.{name}").measure()}
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
        for key, value in flat(result):
            print(f"{key:60} {value}")
    return 0


def machine() -> dict[str, object]:
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def flat(table: dict[str, object], where: str = "") -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for key, value in table.items():
        path = f"{where}.{key}" if where else key
        rows += flat(value, path) if isinstance(value, dict) else [(path, value)]
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
