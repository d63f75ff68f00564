"""The images that everything is built on; where no registry can be reached, made here of Debian's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.containers.engine import Engine

DEBIAN: Final = "debian:bookworm-slim"
PYTHON: Final = "python:3.11-slim-bookworm"
LOCAL: Final = "protofleet-local/"  # never under a public name: others build on this machine too
PULL_SECONDS: Final = 180
# What the public slim images leave out as well, so that sizes can be compared.
LEFT_OUT: Final = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/cache/apt",
    "var/lib/apt/lists",
)

# The certificates of a machine whose network looks into TLS belong here, and in no image of ours.
DOCKERFILE: Final = f"""\
FROM {LOCAL}{DEBIAN}
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv python3-pip \\
    && rm -rf /var/lib/apt/lists/* /usr/lib/python3*/EXTERNALLY-MANAGED \\
    && ln -s python3 /usr/bin/python
"""
CERTIFICATES: Final = """\
COPY ca.crt /etc/ssl/certs/ca-certificates.crt
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
"""


def debian_base(engine: Engine, folder: Path) -> str:
    if _there(engine, DEBIAN):
        return DEBIAN
    if not engine.has_image(LOCAL + DEBIAN):
        with tempfile.TemporaryDirectory(dir=folder) as rootfs:
            _debootstrap(engine, Path(rootfs))
    return LOCAL + DEBIAN


def python_base(engine: Engine, folder: Path) -> str:
    if _there(engine, PYTHON):
        return PYTHON
    if not engine.has_image(LOCAL + PYTHON):
        with tempfile.TemporaryDirectory(dir=folder) as context:
            text = DOCKERFILE.replace(LOCAL + DEBIAN, engine.debian)
            if (trusted := os.environ.get("SSL_CERT_FILE")) and Path(trusted).is_file():
                shutil.copy(trusted, Path(context) / "ca.crt")
                text += CERTIFICATES
            (Path(context) / "Dockerfile").write_text(text)
            engine.docker("build", "-t", LOCAL + PYTHON, context)
    return LOCAL + PYTHON


def _there(engine: Engine, name: str) -> bool:
    if engine.has_image(name):
        return True
    try:
        return engine.run("pull", "-q", name, seconds=PULL_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _debootstrap(engine: Engine, rootfs: Path) -> None:
    from tests.containers.engine import INSTALL, NoEngine

    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
    if (program := shutil.which("debootstrap", path=path)) is None:
        raise NoEngine(f"{DEBIAN} can neither be pulled nor made, as there is no debootstrap; {INSTALL}")
    try:
        command = [program, "--variant=minbase", "--include=ca-certificates", "bookworm", str(rootfs)]
        done = subprocess.run(
            command, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=600
        )
        if done.returncode:
            raise NoEngine(f"debootstrap failed: {done.stdout.strip()[-300:]}")
        for name in LEFT_OUT:
            shutil.rmtree(rootfs / name, ignore_errors=True)
        (rootfs / "var/lib/apt/lists/partial").mkdir(parents=True)
        (rootfs / "var/cache/apt/archives/partial").mkdir(parents=True)
        tar = subprocess.Popen(["tar", "-C", str(rootfs), "-c", "."], stdout=subprocess.PIPE)
        subprocess.run(
            ["docker", "import", "-", LOCAL + DEBIAN],
            env=engine.environment,
            stdin=tar.stdout,
            check=True,
            capture_output=True,
        )
        if tar.wait():
            raise NoEngine("tar could not read what debootstrap made")
    finally:
        for child in rootfs.iterdir():
            shutil.rmtree(
                child, ignore_errors=True
            ) if child.is_dir() and not child.is_symlink() else child.unlink()
