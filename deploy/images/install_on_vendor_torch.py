"""Install our packages in a Jetson image while it is built, and keep the vendor's torch.

    install_on_vendor_torch.py LOCKS WHEELS OURS

If the base image has a package in a version that we can use, the package stays. For example, the
vendor's torch needs the numpy for which it was built. Missing packages are installed without their
dependencies, in the versions of constraints.txt. Then the missing dependencies of these packages are installed,
and so on. In this way pip never replaces torch.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement

# For these packages, any version in the base image is used.
VENDOR_PACKAGES = ("torch", "numpy", "pillow", "torchvision")
IMPORT_CHECK = (
    "import protofleet.edge_client.main, finch; "
    "from protofleet.methods.nets.torchvision_import import import_torchvision; import_torchvision()"
)


def main(locks: Path, wheels: Path, ours: Path) -> str:
    before = installed_torch()
    if not before:
        return "the base image has no torch that can be imported; use one with NVIDIA's torch (docs/containers.md)"
    added = install_missing(locks, wheels)
    install(*map(str, ours.glob("*.whl")))
    if (after := installed_torch()) != before:
        return f"torch was {before} and is {after} now; nothing may replace the torch of the base image"
    subprocess.run([sys.executable, "-W", "ignore", "-c", IMPORT_CHECK], check=True)
    print(f"kept torch {before}; added {', '.join(added)}")
    return ""


def install_missing(locks: Path, wheels: Path) -> list[str]:
    """Install the missing packages that we need, and their dependencies; return the installed packages."""
    pins = pinned_versions((locks / "constraints.txt").read_text())
    lines = (locks / "requirements.txt").read_text().splitlines()
    needed = [Requirement(line) for line in (*lines, "torchvision") if line]
    added: list[str] = []
    while missing := missing_names(needed):
        named = [f"{name}=={pins[name]}" if name in pins else name for name in missing]
        install("--find-links", str(wheels), *named)
        added += named
        needed = [Requirement(text) for name in missing for text in distribution(name).requires or ()]
    return added


def missing_names(needed: list[Requirement]) -> list[str]:
    return sorted({normalized_name(need.name) for need in needed if is_missing(need)} - {"torch"})


def installed_torch() -> str:
    code = "import torch; print(torch.__version__, torch.__file__)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()


def pinned_versions(text: str) -> dict[str, str]:
    """Return the version of each package in constraints.txt, from the lines that apply to this Python."""
    lines = (Requirement(line) for line in text.splitlines() if line and not line.startswith("#"))
    matching = (pin for pin in lines if pin.marker is None or pin.marker.evaluate())
    return {normalized_name(pin.name): str(pin.specifier).removeprefix("==") for pin in matching}


def is_missing(requirement: Requirement) -> bool:
    """Return whether the requirement applies to this Python and no installed version satisfies it."""
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return False
    try:
        version = distribution(requirement.name).version
    except PackageNotFoundError:
        return True
    return normalized_name(requirement.name) not in VENDOR_PACKAGES and not requirement.specifier.contains(
        version, prereleases=True
    )


def install(*arguments: str) -> None:
    pip = (sys.executable, "-I", "-m", "pip", "install", "-q", "--no-deps", "--no-cache-dir")
    subprocess.run([*pip, *arguments], check=True)
    importlib.invalidate_caches()


def normalized_name(name: str) -> str:
    return name.lower().replace("_", "-")


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])) or 0)
