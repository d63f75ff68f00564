"""`make gpu`: run the tests that need a GPU, and run each method with 100 devices that share a part of the GPU.

Each run is also made on the CPU, at the same time: accuracies must not be further apart than `--tolerance`. Then a
round of some networks is timed on the GPU, in a plain loop there and on the CPU. All results are kept as JSON,
and the times of the rounds also as a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from protofleet.methods.contract.catalog import names
from tests.gpu.pays import NETWORKS, Row, row_of, write_table
from tests.gpu.runs import Run, Wanted, report, run_of
from tests.gpu.small_part import small_part

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Pair:
    """The runs of one method: on the tested device, and on the CPU."""

    method: str
    there: Run
    cpu: Run
    problems: list[str]


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    if not torch.cuda.is_available():
        print(f"no GPU: torch {torch.__version__} sees no CUDA device here, so nothing was run")
        return 0
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "gpu", "-rs", str(ROOT / "tests")], check=False
    )
    wanted = Wanted(options.devices, options.rounds, "cuda")
    with small_part(options.leave * 1_000_000) as gpu:
        print(gpu, flush=True)
        pairs = [pair(name, wanted, options.tolerance, gpu.used_bytes) for name in options.methods]
    rows = when_it_pays(options.networks, Wanted(options.busy, options.rounds, "cuda"))
    seen = {"gpu": str(gpu), "tests": tests.returncode, "when it pays": [asdict(row) for row in rows]}
    keep(options.json, seen, wanted, pairs)
    print(write_table(rows, options.json))
    problems = [problem for one in (*pairs, *rows) for problem in one.problems]
    for problem in problems:
        print(f"failed: {problem}")
    return 1 if problems or tests.returncode else 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    found.add_argument("--methods", nargs="*", default=names(), help="all, if none is named")
    found.add_argument("--devices", type=int, default=100)
    found.add_argument("--rounds", type=int, default=2)
    found.add_argument(
        "--networks",
        nargs="*",
        default=NETWORKS,
        help="of the table that says when a GPU pays",
    )
    found.add_argument("--busy", type=int, default=24, metavar="DEVICES", help="of that table")
    found.add_argument(
        "--leave", type=int, default=4000, metavar="MB",
        help="of the GPU's memory to the runs; the rest is filled",
    )  # fmt: skip
    found.add_argument("--tolerance", type=float, default=0.05, help="of the accuracies, from 0 to 1")
    found.add_argument("--json", type=Path, default=Path("gpu.json"), help="where what was seen is kept")
    return found


def when_it_pays(networks: Sequence[str], wanted: Wanted) -> list[Row]:
    folder = Path(tempfile.mkdtemp(prefix="gpu-pays-"))
    return [row_of(network, wanted, folder / network) for network in networks]


def pair(method: str, wanted: Wanted, tolerance: float, used_bytes: Callable[[], int]) -> Pair:
    folder = Path(tempfile.mkdtemp(prefix=f"gpu-{method}-"))
    on_cpu = Wanted(wanted.devices, wanted.rounds, "cpu")
    for part in ("there", "cpu"):
        (folder / part).mkdir()
    with ThreadPoolExecutor(2) as pool:
        found = pool.submit(run_of, method, wanted, folder / "there", used_bytes)
        beside = pool.submit(run_of, method, on_cpu, folder / "cpu", lambda: 0)
    there, cpu = found.result(), beside.result()
    problems = [
        *there.problems,
        *(f"on the CPU: {problem}" for problem in cpu.problems),
        *apart(there, cpu, tolerance),
    ]
    print(report(there), flush=True)
    print(report(cpu), flush=True)
    return Pair(method, there, cpu, [f"{method}: {problem}; kept: {folder}" for problem in problems])


def apart(there: Run, cpu: Run, tolerance: float) -> list[str]:
    if there.accuracy is None or cpu.accuracy is None:
        return ["it has no accuracy"]
    if abs(there.accuracy - cpu.accuracy) <= tolerance:
        return []
    return [
        f"accuracy {there.accuracy:.3f}, and {cpu.accuracy:.3f} on the CPU, further apart than {tolerance}"
    ]


def keep(file: Path, seen: dict[str, Any], wanted: Wanted, pairs: list[Pair]) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    common = {
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"), "commit": commit.stdout.strip(),
        "torch": torch.__version__, "cores": os.cpu_count(), "wanted": asdict(wanted),
    }  # fmt: skip
    file.write_text(
        json.dumps({**common, **seen, "methods": [asdict(one) for one in pairs]}, indent=1) + "\n"
    )
    print(f"kept: {file}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
