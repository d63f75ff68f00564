"""Run while a Jetson image is built: puts our packages beside the torch that is there, and touches nothing of it.

    beside_torch.py LOCKS WHEELS OURS

Whatever the base already has in a version that will do stays: its numpy is what its torch was built against. The
packages come one layer of needs after the other, each in the version of constraints.txt and without its own needs,
until nobody needs anything more. So pip can never "repair" torch.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement

THEIRS = ("torch", "numpy", "pillow", "torchvision")  # in whatever version the base has them
WORKS = (
    "import protofleet.edge_client.main, finch; "
    "from protofleet.methods.nets.vision import import_torchvision; import_torchvision()"
)


def main(locks: Path, wheels: Path, ours: Path) -> str:
    before = torch_here()
    if not before:
        return "this base has no torch that can be imported; take one with NVIDIA's own (docs/containers.md)"
    pins = exact_versions((locks / "constraints.txt").read_text())
    ours_need = (locks / "requirements.txt").read_text().splitlines()
    found = [Requirement(line) for line in (*ours_need, "torchvision") if line]
    added: list[str] = []
    while missing := sorted({plain(need.name) for need in found if lacking(need)} - {"torch"}):
        named = [f"{name}=={pins[name]}" if name in pins else name for name in missing]
        install("--find-links", str(wheels), *named)
        added += named
        found = [Requirement(text) for name in missing for text in distribution(name).requires or ()]
    install(*map(str, ours.glob("*.whl")))
    if (after := torch_here()) != before:
        return f"torch was {before} and is {after} now; nothing may replace what the base brings"
    subprocess.run([sys.executable, "-W", "ignore", "-c", WORKS], check=True)
    print(f"kept torch {before}; added {', '.join(added)}")
    return ""


def torch_here() -> str:
    words = "import torch; print(torch.__version__, torch.__file__)"
    return subprocess.run([sys.executable, "-c", words], capture_output=True, text=True).stdout.strip()


def exact_versions(text: str) -> dict[str, str]:
    """What constraints.txt says for this Python."""
    lines = (Requirement(line) for line in text.splitlines() if line and not line.startswith("#"))
    here = (pin for pin in lines if pin.marker is None or pin.marker.evaluate())
    return {plain(pin.name): str(pin.specifier).removeprefix("==") for pin in here}


def lacking(need: Requirement) -> bool:
    """Is it for this Python, and not here in a version that will do?"""
    if need.marker is not None and not need.marker.evaluate({"extra": ""}):
        return False
    try:
        here = distribution(need.name).version
    except PackageNotFoundError:
        return True
    return plain(need.name) not in THEIRS and not need.specifier.contains(here, prereleases=True)


def install(*words: str) -> None:
    pip = (sys.executable, "-I", "-m", "pip", "install", "-q", "--no-deps", "--no-cache-dir")
    subprocess.run([*pip, *words], check=True)
    importlib.invalidate_caches()


def plain(name: str) -> str:
    return name.lower().replace("_", "-")


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])) or 0)
