"""What is shipped to a device: wheels, or a container's image; and a name for exactly these."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.deploy.errors import RunError
from protofleet.deploy.fleet.settings import Software
from protofleet.deploy.locks.lockfile import HERE, read_lock, read_wheel, with_wheels, write_lock
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime import children

SOURCE: Final = Path(__file__).parents[2]  # of this checkout
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
IMAGE: Final = "image.tar"
LOCKS: Final = ("torch", "cuda", "device")
HOW: Final = "how"  # beside what is shipped: how it is to be installed
DIGITS: Final = 16  # of a release's name


@dataclass(frozen=True, slots=True)
class Release:
    name: str  # of what is in it
    folder: Path  # with the wheels, to be shipped as it is
    words: str
    python: str = ""
    dependencies: str = ""
    image: str = ""  # that the device pulls; where it is shipped, IMAGE
    options: str = ""  # more words for docker run
    container: bool = False

    @property
    def how(self) -> tuple[str, str]:
        """The arguments of the step that installs it."""
        return (self.image, self.options) if self.container else (self.python, self.dependencies)


def make_release(software: Software, folder: Path) -> Release:
    return make_image(software, folder) if software.kind == "container" else make_wheels(software, folder)


def make_image(software: Software, folder: Path) -> Release:
    """By its digest where the device pulls it, else by what is in the archive; and by how it is run."""
    folder.mkdir(parents=True, exist_ok=True)
    options = " ".join(software.options)
    if software.image:
        name = hashlib.sha256(f"{software.image} {options}".encode()).hexdigest()[:DIGITS]
        words = f"image {software.image}"
        return Release(name, folder, words, image=software.image, options=options, container=True)
    archive = Path(software.archive)
    if not archive.is_file():
        raise SettingsError(f"software.archive is {archive}, which is no file; `docker save -o` writes one")
    (folder / IMAGE).symlink_to(archive.absolute())
    words = f"image {archive.name}, {archive.stat().st_size / 1e6:.0f} MB"
    name = hashlib.sha256(f"{content_digest(archive)} {options}".encode()).hexdigest()[:DIGITS]
    return Release(name, folder, words, options=options, container=True)


def make_wheels(software: Software, folder: Path) -> Release:
    """Our own wheel, built of this checkout unless there is one, beside those that the fleet's file names."""
    folder.mkdir(parents=True, exist_ok=True)
    beside = sorted(Path(software.wheels).glob("*.whl")) if software.wheels else []
    if software.wheels and not beside:
        raise SettingsError(f"software.wheels is {software.wheels}, where there is no wheel")
    for wheel in beside:
        (folder / wheel.name).write_bytes(wheel.read_bytes())
    if not any(wheel.name.startswith("protofleet-") for wheel in beside):
        build_wheel(folder)
    if software.dependencies == "index":
        write_locks(beside, folder)
    files = sorted(p for p in folder.iterdir() if p.is_file())
    name = hashlib.sha256(
        "\n".join(
            [software.python, software.dependencies, *(f"{p.name} {content_digest(p)}" for p in files)]
        ).encode()
    ).hexdigest()[:DIGITS]
    size = sum(p.stat().st_size for p in files)
    return Release(
        name, folder, f"{len(files)} files, {size / 1e6:.1f} MB", software.python, software.dependencies
    )


def write_locks(beside: list[Path], folder: Path) -> None:
    """For pip on the device. What is shipped beside them counts in place of what they say."""
    wheels = [wheel for path in beside if (wheel := read_wheel(path))]
    own_torch = any(wheel.name == "torch" for wheel in wheels)
    for name in LOCKS if own_torch else ("cpu", *LOCKS):
        packages = read_lock((HERE / f"{name}.txt").read_text())
        (folder / f"{name}.txt").write_text(write_lock(with_wheels(packages, wheels), name))


def build_wheel(folder: Path) -> None:
    """Built in a copy, so that nothing left over from an earlier build gets in; kept until the source changes."""
    if not (SOURCE / "pyproject.toml").exists():
        raise SettingsError(
            "this protofleet is installed without its source; put its wheel into software.wheels"
        )
    files = sources()
    kept = (
        SOURCE / "build" / "wheels" / hashlib.sha256(b"".join(map(_digest_line, files))).hexdigest()[:DIGITS]
    )
    if not kept.exists():
        with tempfile.TemporaryDirectory() as copy:
            for path in files:
                target = Path(copy) / path.relative_to(SOURCE)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
            _pip_wheel(copy, f"{copy}/wheel")
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(f"{copy}/wheel", part := kept.with_name(f"{kept.name}.{os.getpid()}"))
            try:
                part.rename(kept)
            except OSError:  # somebody else has built the same meanwhile
                if not kept.exists():
                    raise
                shutil.rmtree(part)
    for wheel in kept.glob("*.whl"):
        shutil.copyfile(wheel, folder / wheel.name)


def sources() -> list[Path]:
    found = [SOURCE / name for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE")]
    for package in PACKAGES:
        found += (p for p in (SOURCE / package).rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return sorted(found)


def _digest_line(path: Path) -> bytes:
    return f"{path.relative_to(SOURCE)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()


def _pip_wheel(source: str, target: str) -> None:
    """With the locked setuptools: pip would fetch a build's own tools by name, and run what it is given."""
    with tempfile.TemporaryDirectory() as tools:
        locked = ["install", "--require-hashes", "--only-binary=:all:", "--no-deps", "--target", tools]
        _pip(*locked, "-r", str(HERE / "build.txt"))
        _pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", target, source, tools=tools)


def _pip(job: str, *words: str, tools: str = "") -> None:
    command = children.command("pip", job, "-q", "--disable-pip-version-check", *words)
    environment = {**os.environ, "PYTHONPATH": tools} if tools else None
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RunError(f"our wheel cannot be built: {(done.stderr or done.stdout).strip().splitlines()[-1]}")


def content_digest(path: Path) -> str:
    """Hash of what is in a file; of an archive, of what is in its members, as their dates are when it was packed."""
    if not zipfile.is_zipfile(path):
        return digest_of(path)
    total = hashlib.sha256()
    with zipfile.ZipFile(path) as wheel:
        for name in sorted(wheel.namelist()):
            total.update(f"{name}\0{hashlib.sha256(wheel.read(name)).hexdigest()}\n".encode())
    return total.hexdigest()


def digest_of(path: Path) -> str:
    total = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            total.update(piece)
    return total.hexdigest()
