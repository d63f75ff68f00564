"""`make gpu`: what needs a GPU is tested on one, and each method runs with 100 devices that share a part of it."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from protofleet.methods.contract.catalog import names
from tests.gpu.runs import Wanted, report, run_of
from tests.gpu.small_part import Gpu, small_part

ROOT = Path(__file__).parents[2]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    parser.add_argument("--methods", nargs="*", default=names(), help="all, if none is named")
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--leave",
        type=int,
        default=4000,
        metavar="MB",
        help="of the GPU's memory to the runs; the rest is filled",
    )
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print(f"no GPU: torch {torch.__version__} sees no CUDA device here, so nothing was run")
        return 0
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "gpu", "-rs", str(ROOT / "tests")], check=False
    )
    wanted = Wanted(options.devices, options.rounds, "cuda")
    with small_part(options.leave * 1_000_000) as gpu:
        print(gpu, flush=True)
        problems = [problem for method in options.methods for problem in tried(method, wanted, gpu)]
    for problem in problems:
        print(f"failed: {problem}")
    return 1 if problems or tests.returncode else 0


def tried(method: str, wanted: Wanted, gpu: Gpu) -> list[str]:
    folder = Path(tempfile.mkdtemp(prefix=f"gpu-{method}-"))
    run = run_of(method, wanted, folder, gpu.used_bytes)
    print(report(run), flush=True)
    return [f"{method}: {problem}; kept: {folder}" for problem in run.problems]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
