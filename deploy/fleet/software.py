"""Make the releases of a fleet from wheels or container images. The name of a release is a digest of its files."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from protofleet.deploy.fleet.device import shipped_template
from protofleet.deploy.fleet.device.roles import HOST_PACKAGES, ROLES
from protofleet.deploy.fleet.device.shipped_plugins import put_beside_wheels
from protofleet.deploy.fleet.settings import Fleet, Software, naming_file, plugin_files, template_files
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import Disk
from protofleet.runtime import children
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.installation.checkout import (
    ROOT,
    build_folder,
    copy_sources,
    is_checkout,
    source_files,
)
from protofleet.runtime.installation.installed import installed_wheel
from protofleet.runtime.locks.lockfile import LOCKS_FOLDER, read_lock, read_wheel, with_wheels, write_lock

IMAGE: Final = "image.tar"
LOCKS: Final = ("torch", "cuda", "device")
# The lock of the packages with the bundled data. These packages are installed without their dependencies.
DATA_LOCK: Final = "data"
# The name of a shipped file with the arguments of the step that installs the release.
INSTALL_FILE: Final = "how"
NAME_DIGITS: Final = 16  # Number of hexadecimal digits in a release's name.


@dataclass(frozen=True, slots=True)
class Release:
    name: str  # A digest of the release's content.
    folder: Path  # The folder that is shipped, with the wheels or the image.
    description: str
    python: str = ""
    dependencies: str = ""
    image: str = ""  # The image that the device pulls; "" if the image is shipped as the file IMAGE.
    options: str = ""  # Options of `docker run`.
    container: bool = False

    @property
    def install_arguments(self) -> tuple[str, str]:
        """Return the arguments of the step that installs the release."""
        return (self.image, self.options) if self.container else (self.python, self.dependencies)


class Releases:
    """The releases of a fleet's hosts.

    A release is made when it is first needed. Hosts with the same software share a release.
    """

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self._fleet, self._folder, self._lock = fleet, folder, threading.Lock()
        self._made: dict[tuple[Software, tuple[str, ...], tuple[str, ...], bool], Release] = {}

    def of(self, name: str) -> Release:
        if not ROLES[self._fleet.hosts[name].role].runs_our_release:
            return Release(HOST_PACKAGES, self._folder, "of the host's packages")
        software, plugins = self._fleet.software_of(name), plugin_files(self._fleet, name)
        template = template_files(self._fleet, name)
        wanted = (software, plugins, template, self._fleet.reads_bundled_data(name))
        with self._lock, naming_file(self._fleet):
            if wanted not in self._made:
                folder = self._folder / str(len(self._made))
                self._made[wanted] = make_release(software, folder, plugins, template, bundled=wanted[3])
            return self._made[wanted]


def make_release(
    software: Software,
    folder: Path,
    plugins: Sequence[str] = (),
    template: tuple[str, ...] = (),
    bundled: bool = False,
) -> Release:
    """Make a release of this software in the folder.

    `plugins` and `template` are files that are shipped next to the software. The name of the release also depends
    on the content of these files. If `bundled` is true and packages come from an index, the packages with the
    bundled data are included.
    """
    shipped_template.put_beside_wheels(template, folder)
    put_beside_wheels(plugins, folder)
    digests = tuple(content_digest(folder / Path(one).name) for one in (*plugins, *template))
    if software.kind == "container":
        made = make_image(software, folder)
        if digests:
            together = hashlib.sha256(" ".join((made.name, *digests)).encode()).hexdigest()
            made = replace(made, name=together[:NAME_DIGITS])
        return made
    return make_wheels(software, folder, (*LOCKS, DATA_LOCK) if bundled else LOCKS)


def make_image(software: Software, folder: Path) -> Release:
    """Make a release that is a container image.

    The name of the release is a digest of the image and of the options for `docker run`. If the device pulls the
    image, the image's name is used for the digest, because this name contains a digest of the image. If the image
    is an archive, the content of the archive is used.
    """
    folder.mkdir(parents=True, exist_ok=True)
    options = " ".join(software.options)
    if software.image:
        name = hashlib.sha256(f"{software.image} {options}".encode()).hexdigest()[:NAME_DIGITS]
        return Release(
            name, folder, f"image {software.image}", image=software.image, options=options, container=True
        )
    archive = Path(software.archive)
    if not archive.is_file():
        raise SettingsError(
            f"software.archive is {archive}, but there is no such file; write an archive with `docker save -o`"
        )
    (folder / IMAGE).symlink_to(archive.absolute())
    description = f"image {archive.name}, {archive.stat().st_size / 1e6:.0f} MB"
    name = hashlib.sha256(f"{content_digest(archive)} {options}".encode()).hexdigest()[:NAME_DIGITS]
    return Release(name, folder, description, options=options, container=True)


def make_wheels(software: Software, folder: Path, locks: Sequence[str] = LOCKS) -> Release:
    """Make a release of the wheels that the fleet's file names.

    If the fleet's file names no protofleet wheel, the wheel is built from this checkout.
    """
    folder.mkdir(parents=True, exist_ok=True)
    given = sorted(Path(software.wheels).glob("*.whl")) if software.wheels else []
    if software.wheels and not given:
        raise SettingsError(
            f"software.wheels is {software.wheels}, but this folder contains no wheel (*.whl)"
        )
    for wheel in given:
        (folder / wheel.name).write_bytes(wheel.read_bytes())
    if not any(wheel.name.startswith("protofleet-") for wheel in given):
        build_wheel(folder)
    if software.dependencies == "index":
        write_locks(given, folder, locks)
    files = sorted(p for p in folder.iterdir() if p.is_file())
    name = hashlib.sha256(
        "\n".join(
            [software.python, software.dependencies, *(f"{p.name} {content_digest(p)}" for p in files)]
        ).encode()
    ).hexdigest()[:NAME_DIGITS]
    description = f"{len(files)} files, {sum(p.stat().st_size for p in files) / 1e6:.1f} MB"
    if software.dependencies == "index":
        description += "; the host fetches torch and the other packages, which takes minutes"
    return Release(name, folder, description, software.python, software.dependencies)


def write_locks(given: list[Path], folder: Path, locks: Sequence[str]) -> None:
    """Write the lock files for pip on the device; a shipped wheel replaces the locked version of its package."""
    wheels = [wheel for path in given if (wheel := read_wheel(path))]
    own_torch = any(wheel.name == "torch" for wheel in wheels)
    for name in locks if own_torch else ("cpu", *locks):
        packages = read_lock((LOCKS_FOLDER / f"{name}.txt").read_text())
        (folder / f"{name}.txt").write_text(write_lock(with_wheels(packages, wheels), name))


def build_wheel(folder: Path) -> None:
    """Copy our wheel into the folder. The wheel is built again only after the source has changed.

    Without a checkout of the source, the wheel is made from the files of the installed package.
    """
    if not is_checkout():
        installed_wheel(folder)
        return
    digest = hashlib.sha256(b"".join(map(_digest_line, source_files()))).hexdigest()
    cache = build_folder() / "wheels" / digest[:NAME_DIGITS]
    if not cache.exists():
        _build_into(cache)
    for wheel in cache.glob("*.whl"):
        shutil.copyfile(wheel, folder / wheel.name)


def _build_into(cache: Path) -> None:
    """Build the wheel in a temporary folder, and rename this folder to `cache`.

    Therefore `cache` is always complete, even if several commands build the wheel at the same time.
    """
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent, prefix=".") as name:
        copy, built = Path(name) / "source", Path(name) / "wheel"
        copy_sources(copy)
        _pip_wheel(str(copy), str(built))
        try:
            Disk().place(built, cache, durable=False)
        # Another command has built the same wheel in the meantime.
        except OSError:
            if not cache.exists():
                raise


def _digest_line(path: Path) -> bytes:
    return f"{path.relative_to(ROOT)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()


def _pip_wheel(source: str, target: str) -> None:
    """Build a wheel with the locked setuptools.

    Without the lock, pip would fetch build tools by their names alone and run them without a check.
    """
    with tempfile.TemporaryDirectory() as tools:
        locked = ["install", "--require-hashes", "--only-binary=:all:", "--no-deps", "--target", tools]
        _pip(*locked, "-r", str(LOCKS_FOLDER / "build.txt"))
        _pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", target, source, tools=tools)


def _pip(command: str, *arguments: str, tools: str = "") -> None:
    process = children.command("pip", command, "-q", "--disable-pip-version-check", *arguments)
    environment = {**os.environ, "PYTHONPATH": tools} if tools else None
    done = subprocess.run(process, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RunError(
            f"the protofleet wheel cannot be built: {(done.stderr or done.stdout).strip().splitlines()[-1]}"
        )


def content_digest(path: Path) -> str:
    """Return the digest of a file. For a zip archive, digest the names and contents of its members.

    The digest ignores the dates of the members, because the dates change with each build.
    """
    if not zipfile.is_zipfile(path):
        return file_digest(path)
    total = hashlib.sha256()
    with zipfile.ZipFile(path) as wheel:
        for name in sorted(wheel.namelist()):
            total.update(f"{name}\0{hashlib.sha256(wheel.read(name)).hexdigest()}\n".encode())
    return total.hexdigest()


def file_digest(path: Path) -> str:
    total = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            total.update(piece)
    return total.hexdigest()
