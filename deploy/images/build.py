"""A build context with what an image is made of and nothing else, the build itself, and what the image weighs."""

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

from protofleet.deploy.errors import RunError
from protofleet.deploy.images.image_ids import IDS_FILE, PINNED, SOURCE, save_id
from protofleet.deploy.locks.lockfile import HERE as LOCKS
from protofleet.deploy.locks.lockfile import normal, read_lock, read_wheel, with_wheels, write_lock
from protofleet.protocol.settings.reader import read_toml

HERE: Final = Path(__file__).parent
PACKAGES: Final = (
    "protofleet",
    "protocol",
    "runtime",
    "methods",
    "edge_client",
    "coordinator",
    "deploy",
    "experiments",
)
FILES: Final = ("pyproject.toml", "README.md", "LICENSE", "NOTICE")
SCRIPTS: Final = ("trim.sh", "compile.sh", "beside_torch.py")
TARGETS: Final = ("edge", "coordinator", "demo", "edge-jetson")
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Build:
    target: str
    base: str = ""  # "": as the Dockerfile says
    torch_index: str | None = None
    wheels: tuple[Path, ...] = ()
    pins: tuple[tuple[str, str], ...] = ()  # (package, version) in place of those of constraints.txt
    platform: str = ""
    name: str = ""  # of the image; "": protofleet/<target>

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
        raise RunError("edge-jetson has no base of its own: say --base with an image that has NVIDIA's torch")
    with build_context(wanted.wheels, wanted.pins) as context:
        done = subprocess.run(
            wanted.command(context), env={**os.environ, **(environment or {}), "DOCKER_BUILDKIT": "1"}
        )
    if done.returncode:
        raise RunError(f"docker could not build {wanted.tag}; what it said stands above")
    save_id(wanted.tag, built, environment)


@contextmanager
def build_context(wheels: Sequence[Path] = (), pins: Sequence[tuple[str, str]] = ()) -> Iterator[Path]:
    """A folder with our sources, the locks and the Dockerfiles: no key, no run, no cache can slip into an image."""
    if not (SOURCE / "pyproject.toml").exists():
        raise RunError("images are built from a checkout of protofleet; this is an installed package")
    with tempfile.TemporaryDirectory(prefix="protofleet-images-") as name:
        context = Path(name)
        for package in PACKAGES:
            shutil.copytree(
                SOURCE / package, context / "source" / package, ignore=shutil.ignore_patterns("__pycache__")
            )
        for file in FILES:
            shutil.copy(SOURCE / file, context / "source")
        (context / "locks").mkdir()
        for path in (
            *(HERE / s for s in SCRIPTS),
            *(HERE.parent / n for n in ("constraints.txt", "requirements-data.txt")),
        ):
            shutil.copy(path, context / "locks")
        (context / "locks" / "requirements.txt").write_text("\n".join(requirements()) + "\n")
        locks = context / "locks" / "constraints.txt"
        locks.write_text(pinned(locks.read_text(), pins))
        _write_locks(context / "locks", wheels, pins)
        (context / "wheels").mkdir()
        for folder in wheels:
            for wheel in folder.glob("*.whl"):
                _link(wheel, context / "wheels" / wheel.name)
        for path in HERE.glob("*Dockerfile"):
            shutil.copy(path, context)
        yield context


def _write_locks(folder: Path, wheels: Sequence[Path], pins: Sequence[tuple[str, str]]) -> None:
    """Hashes of all but what is pinned elsewhere: nobody here knows the files of other versions."""
    other = {normal(name): version for name, version in pins if name not in ("torch", "torchvision")}
    brought = [wheel for place in wheels for path in place.glob("*.whl") if (wheel := read_wheel(path))]
    for name in ("build", "device", "data"):
        packages = with_wheels(read_lock((LOCKS / f"{name}.txt").read_text()), brought)
        known = [package for package in packages if package.name not in other]
        (folder / f"{name}.txt").write_text(write_lock(known, name))
    (folder / "pins.txt").write_text("".join(f"{name}=={version}\n" for name, version in other.items()))


def base_of(wanted: Build) -> str:
    """What is built upon."""
    return wanted.base or re.findall(r"(?m)^ARG BASE=(\S+)", (HERE / "Dockerfile").read_text())[0]


def unpinned(images: Iterable[str]) -> str:
    """A word on names that may mean something else tomorrow; "" where all are fixed."""
    loose = sorted({image for image in images if not PINNED.search(image)})
    if not loose:
        return ""
    words = "a tag, which may be moved" if len(loose) == 1 else "tags, which may be moved"
    return f"{', '.join(loose)}: {words}; name@sha256:... fixes what is used (docs/containers.md, Pinning)"


def _link(source: Path, target: Path) -> None:
    """Wheels weigh much: a second name for them where the file system has that."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


def pinned(text: str, pins: Sequence[tuple[str, str]]) -> str:
    """constraints.txt with other versions of some packages: an older driver, say, wants an older torch."""
    for name, version in pins:
        text, found = re.subn(rf"(?m)^{re.escape(name)}==[^;\n]*", f"{name}=={version}", text)
        if not found:
            raise RunError(
                f"there is no package {name!r} in deploy/constraints.txt whose version could be another"
            )
    return text


def requirements() -> list[str]:
    """What we need beside torch, which an image has in a layer, or from a vendor, of its own."""
    project = read_toml(SOURCE / "pyproject.toml")["project"]
    return [line for line in project["dependencies"] if not re.match(r"torch(vision)?\b", line)]


def sizes(image: str) -> dict[str, int]:
    """Bytes by layer: the base, torch, the other packages, ours."""
    done = subprocess.run(
        ["docker", "history", "--no-trunc", "--human=false", "--format", "{{.Size}}\t{{.CreatedBy}}", image],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise RunError(f"{image}: {done.stderr.strip()}")
    found = dict.fromkeys(("base", "torch", "packages", "protofleet", "data"), 0)
    for line in done.stdout.splitlines():
        size, _, made_by = line.partition("\t")
        found[_layer(made_by)] += int(size)
    return found


def _layer(made_by: str) -> str:
    for mark, name in (
        ("/locks/data.txt", "data"), ("protofleet data", "data"), ("/locks/device.txt", "packages"),
        ("/wheel/*.whl", "protofleet"), ("beside_torch.py", "packages"), ("torch torchvision", "torch"),
    ):  # fmt: skip
        if mark in made_by:
            return name
    return "base"


def table(images: Sequence[str]) -> str:
    lines = [f"{'image':24} {'whole':>9} {'base':>9} {'torch':>9} {'without torch, above the base':>30}"]
    for image in images:
        s = sizes(image)
        ours = s["packages"] + s["protofleet"] + s["data"]
        cells = (sum(s.values()), s["base"], s["torch"])
        lines.append(
            f"{image:24} " + " ".join(f"{c / MIB:5.0f} MiB" for c in cells) + f" {ours / MIB:26.0f} MiB"
        )
    return "\n".join(lines)
