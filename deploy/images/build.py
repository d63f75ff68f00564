"""Build images from a context that contains only the files that an image needs, and show the sizes of layers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.deploy.images.docker_engine import UNFETCHED
from protofleet.deploy.images.image_ids import FIXED_NAME, IDS_FILE, save_id
from protofleet.protocol.settings.reader import read_toml
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.installation.checkout import ROOT, copy_sources, is_checkout
from protofleet.runtime.installation.installed import installed_wheel, requirements
from protofleet.runtime.locks.lockfile import (
    LOCKS_FOLDER,
    normalized_name,
    read_lock,
    read_wheel,
    with_wheels,
    write_lock,
)

IMAGES_FOLDER: Final = Path(__file__).parent
SCRIPTS: Final = ("index.sh", "trim.sh", "compile.sh", "install_on_vendor_torch.py")
TARGETS: Final = ("edge", "coordinator", "demo", "edge-jetson")
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Build:
    target: str
    base: str = ""  # The base image; "" means the base image in the Dockerfile.
    torch_index: str | None = None
    wheels: tuple[Path, ...] = ()
    # Pairs of a package and its version, which replaces the version in constraints.txt.
    pins: tuple[tuple[str, str], ...] = ()
    platform: str = ""
    name: str = ""  # The name of the image; "" means protofleet/<target>.

    @property
    def tag(self) -> str:
        return self.name or f"protofleet/{self.target}"

    def command(self, context: Path) -> list[str]:
        name = "jetson.Dockerfile" if self.target == "edge-jetson" else "Dockerfile"
        given = {"BASE": self.base or None, "TORCH_INDEX": self.torch_index}
        words = ["docker", "build", "-f", str(context / name), "--target", self.target, "-t", self.tag]
        for key, value in given.items():
            words += [] if value is None else ["--build-arg", f"{key}={value}"]
        words += ["--platform", self.platform] if self.platform else []
        return [*words, str(context)]


def build(wanted: Build, environment: Mapping[str, str] | None = None, built: Path = IDS_FILE) -> None:
    if wanted.target == "edge-jetson" and not wanted.base:
        raise RunError(
            "edge-jetson has no default base image: use --base to name an image that has NVIDIA's torch"
        )
    with build_context(wanted.wheels, wanted.pins) as context:
        done = subprocess.run(
            wanted.command(context), env={**os.environ, **(environment or {}), "DOCKER_BUILDKIT": "1"}
        )
    if done.returncode:
        raise RunError(
            f"docker failed to build {wanted.tag}; its output is above. {UNFETCHED}; BASE=name selects "
            "another base image, and WHEELS=folder adds a folder of packages"
        )
    save_id(wanted.tag, built, environment)


@contextmanager
def build_context(wheels: Sequence[Path] = (), pins: Sequence[tuple[str, str]] = ()) -> Iterator[Path]:
    """Yield a folder with our sources, the locks and the Dockerfiles.

    Other files, such as keys, runs and caches, cannot get into an image.
    """
    with tempfile.TemporaryDirectory(prefix="protofleet-images-") as name:
        context = Path(name)
        _write_ours(context / "source")
        _write_requirements(context / "locks", pins)
        _write_locks(context / "locks", wheels, pins)
        (context / "wheels").mkdir()
        for wheel in (wheel for folder in wheels for wheel in folder.glob("*.whl")):
            _link_or_copy(wheel, context / "wheels" / wheel.name)
        for path in IMAGES_FOLDER.glob("*Dockerfile"):
            shutil.copy(path, context)
        yield context


def _write_ours(folder: Path) -> None:
    """Write our sources; the first stage of an image builds a wheel from them.

    If there is no checkout with sources, write a wheel of the installed package.
    """
    if is_checkout():
        copy_sources(folder)
    else:
        folder.mkdir()
        installed_wheel(folder)


def _write_requirements(folder: Path, pins: Sequence[tuple[str, str]]) -> None:
    """Write the lists of packages and versions, and the scripts that the Dockerfiles run."""
    folder.mkdir()
    for name in SCRIPTS:
        shutil.copy(IMAGES_FOLDER / name, folder)
    shutil.copy(LOCKS_FOLDER.parent / "requirements-data.txt", folder)
    constraints = (LOCKS_FOLDER.parent / "constraints.txt").read_text()
    (folder / "constraints.txt").write_text(with_pins(constraints, pins))
    (folder / "requirements.txt").write_text("\n".join(packages_without_torch()) + "\n")


def _write_locks(folder: Path, wheels: Sequence[Path], pins: Sequence[tuple[str, str]]) -> None:
    """Write the hashes of all packages, except the packages in `pins`.

    A pin chooses another version of a package, and the locks have no hashes for the files of this version.
    """
    others = {
        normalized_name(name): version for name, version in pins if name not in ("torch", "torchvision")
    }
    own = [wheel for place in wheels for path in place.glob("*.whl") if (wheel := read_wheel(path))]
    for name in ("build", "device", "data"):
        packages = with_wheels(read_lock((LOCKS_FOLDER / f"{name}.txt").read_text()), own)
        hashed = [package for package in packages if package.name not in others]
        (folder / f"{name}.txt").write_text(write_lock(hashed, name))
    (folder / "pins.txt").write_text("".join(f"{name}=={version}\n" for name, version in others.items()))


def base_image(wanted: Build) -> str:
    return wanted.base or re.findall(r"(?m)^ARG BASE=(\S+)", (IMAGES_FOLDER / "Dockerfile").read_text())[0]


def unpinned_warning(images: Iterable[str]) -> str:
    """Return a warning about images that are named by a tag; "" if all images are named by a digest.

    A tag may name another image tomorrow.
    """
    tagged = sorted({image for image in images if not FIXED_NAME.search(image)})
    if not tagged:
        return ""
    problem = (
        "a tag, which may name another image later"
        if len(tagged) == 1
        else "tags, which may name other images later"
    )
    return f"{', '.join(tagged)}: {problem}; name@sha256:... names one image for good (docs/containers.md, Pinning)"


def _link_or_copy(source: Path, target: Path) -> None:
    """Make a hard link, because wheels are large; copy the file if the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


def with_pins(text: str, pins: Sequence[tuple[str, str]]) -> str:
    """Return constraints.txt with other versions of some packages.

    For example, an older driver may need an older torch.
    """
    for name, version in pins:
        text, found = re.subn(rf"(?m)^{re.escape(name)}==[^;\n]*", f"{name}=={version}", text)
        if not found:
            raise RunError(
                f"the package {name!r} cannot be pinned to another version, because runtime/constraints.txt does not "
                "contain this package"
            )
    return text


def packages_without_torch() -> list[str]:
    """Return the packages that we need besides torch.

    torch is in another layer of an image, or comes from the vendor's base image.
    """
    return [line for line in _requirements() if not re.match(r"torch(vision)?\b", line)]


def _requirements() -> list[str]:
    """Return the packages that we need, without the packages of extras."""
    if is_checkout():
        return list(read_toml(ROOT / "pyproject.toml")["project"]["dependencies"])
    return requirements()


def layer_sizes(image: str) -> dict[str, int]:
    """Return the bytes of the parts of an image: of its base, torch, other packages, our wheel and data."""
    done = subprocess.run(
        ["docker", "history", "--no-trunc", "--human=false", "--format", "{{.Size}}\t{{.CreatedBy}}", image],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise RunError(f"{image}: {done.stderr.strip()}")
    found = dict.fromkeys(("base", "torch", "packages", "protofleet", "data"), 0)
    for line in done.stdout.splitlines():
        size, _, made_by = line.partition("\t")
        found[_origin(made_by)] += int(size)
    return found


def _origin(made_by: str) -> str:
    for mark, name in (
        ("/locks/data.txt", "data"), ("protofleet data", "data"), ("/locks/device.txt", "packages"),
        ("/wheel/*.whl", "protofleet"), ("install_on_vendor_torch.py", "packages"), ("torch torchvision", "torch"),
    ):  # fmt: skip
        if mark in made_by:
            return name
    return "base"


def size_table(images: Sequence[str]) -> str:
    lines = [f"{'image':24} {'whole':>9} {'base':>9} {'torch':>9} {'without torch, above the base':>30}"]
    for image in images:
        size = layer_sizes(image)
        ours = size["packages"] + size["protofleet"] + size["data"]
        cells = (sum(size.values()), size["base"], size["torch"])
        lines.append(
            f"{image:24} " + " ".join(f"{c / MIB:5.0f} MiB" for c in cells) + f" {ours / MIB:26.0f} MiB"
        )
    return "\n".join(lines)
