"""Run while a Jetson image is built: puts our packages beside the torch that is there, and touches nothing of it.

    beside_torch.py LOCKS WHEELS OURS

Whatever the base already has in a version that will do stays: its numpy is the one that its torch was built against.
Everything else comes without dependencies, in the versions of constraints.txt, so that pip can never "repair" torch.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from pip._vendor.packaging.markers import Marker
from pip._vendor.packaging.requirements import Requirement

# What the others need and nothing else names: the closure of requirements.txt, torch and numpy apart.
ALSO = (
    "cffi",
    "pycparser",
    "markdown-it-py",
    "mdurl",
    "Pygments",
    "scipy",
    "joblib",
    "threadpoolctl",
    "narwhals",
)
ALSO_OLD = ("cloudpickle", "typing_extensions", "exceptiongroup")


def main(locks: Path, wheels: Path, ours: Path) -> str:
    before = torch_here()
    if not before:
        return "this base has no torch that can be imported; take one with NVIDIA's own (docs/deploy.md)"
    missing = [pin for pin in pins(locks) if not satisfied(pin)]
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-cache-dir"]
    for wanted in (
        ["--find-links", str(wheels), *map(str, missing)],
        [str(path) for path in ours.glob("*.whl")],
    ):
        subprocess.run([*install, *wanted], check=True)
    if (after := torch_here()) != before:
        return f"torch was {before} and is {after} now; nothing may replace what the base brings"
    subprocess.run([sys.executable, "-c", "import edge_client.main, finch, torchvision"], check=True)
    print(f"kept torch {before}; added {', '.join(str(pin) for pin in missing)}")
    return ""


def torch_here() -> str:
    told = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.__version__, torch.__file__)"],
        capture_output=True,
        text=True,
    )
    return told.stdout.strip()


def pins(locks: Path) -> Iterator[Requirement]:
    """The exact versions for this Python of all that we need beside torch."""
    wanted = [Requirement(line) for line in (locks / "requirements.txt").read_text().splitlines() if line]
    names = {plain(r.name) for r in wanted if r.marker is None or Marker(str(r.marker)).evaluate()}
    names |= {plain(name) for name in ALSO + (ALSO_OLD if sys.version_info < (3, 11) else ())}
    for line in (locks / "constraints.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pin = Requirement(line)
        if plain(pin.name) in {*names, "torchvision"} and (pin.marker is None or pin.marker.evaluate()):
            pin.marker = None
            yield pin


def satisfied(pin: Requirement) -> bool:
    """numpy, pillow and torchvision in any version, as the base's torch goes with them; the rest as pinned."""
    try:
        here = distribution(pin.name).version
    except PackageNotFoundError:
        return False
    return plain(pin.name) in ("numpy", "pillow", "torchvision") or pin.specifier.contains(here)


def plain(name: str) -> str:
    return name.lower().replace("_", "-")


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])) or 0)
