"""A protofleet installed from its wheel, that sees the packages of this interpreter but not this checkout.

`python -m tests.support.installed FOLDER` makes an environment that sees these packages and has no protofleet.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

from protofleet.deploy.fleet.software import build_wheel
from protofleet.runtime.children import command


def wheel_in(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    build_wheel(folder)
    (made,) = folder.glob("*.whl")
    return made


def make_environment(folder: Path) -> None:
    """Make a virtual environment that sees the packages of this interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    (library,) = folder.glob("lib/python3*/site-packages")
    # Python does not read the .pth files of a folder that a .pth line adds, so the editable install is not seen.
    places = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
    (library / "theirs.pth").write_text("\n".join(places))


def installed_in(folder: Path, wheel: Path) -> Path:
    """Install a wheel into a new virtual environment and return the folder of its programs."""
    make_environment(folder)
    done = subprocess.run(
        [*command("pip"), "--python", str(folder / "bin" / "python"), "install", "-q", "--no-deps",
         "--no-index", "--ignore-installed", str(wheel)], capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def own_environment() -> dict[str, str]:
    """Return the environment without PYTHON... variables, because PYTHONPATH may name this checkout."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


if __name__ == "__main__":
    make_environment(Path(sys.argv[1]))
