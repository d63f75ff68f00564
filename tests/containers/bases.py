"""The base images of everything; without a registry, the tests make them from Debian's packages."""

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
LOCAL: Final = "protofleet-local/"  # Not a public name, because others build on this machine too.
PULL_SECONDS: Final = 180
# The public slim images leave these out as well, so sizes can be compared.
LEFT_OUT: Final = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/cache/apt",
    "var/lib/apt/lists",
)

# The certificates of a machine whose network inspects TLS belong here, and in no image of the product.
DOCKERFILE: Final = """\
FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv python3-pip \\
    && rm -rf /var/lib/apt/lists/* /usr/lib/python3*/EXTERNALLY-MANAGED \\
    && ln -s python3 /usr/bin/python
"""
CERTIFICATES: Final = """\
COPY ca.crt /etc/ssl/certs/ca-certificates.crt
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
"""


def debian_base(engine: Engine, folder: Path, suite: str = "bookworm", processor: str = "") -> str:
    """Return a Debian image; for another processor it is emulated, and has the processor in its name."""
    name = f"debian:{suite}-slim" + (f"-{processor}" if processor else "")
    if not processor and _there(engine, name):
        return name
    if not engine.has_image(LOCAL + name):
        with tempfile.TemporaryDirectory(dir=folder) as rootfs:
            _debootstrap(engine, Path(rootfs), suite, LOCAL + name, processor)
    return LOCAL + name


def python_base(engine: Engine, folder: Path, processor: str = "") -> str:
    if not processor and _there(engine, PYTHON):
        return PYTHON
    name = LOCAL + PYTHON + (f"-{processor}" if processor else "")
    if not engine.has_image(name):
        with tempfile.TemporaryDirectory(dir=folder) as context:
            text = DOCKERFILE.format(base=debian_base(engine, folder, processor=processor))
            if (trusted := os.environ.get("SSL_CERT_FILE")) and Path(trusted).is_file():
                shutil.copy(trusted, Path(context) / "ca.crt")
                text += CERTIFICATES
            (Path(context) / "Dockerfile").write_text(text)
            engine.docker("build", "-t", name, context, seconds=1800)
    return name


def _there(engine: Engine, name: str) -> bool:
    if engine.has_image(name):
        return True
    try:
        return engine.run("pull", "-q", name, seconds=PULL_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _debootstrap(engine: Engine, rootfs: Path, suite: str, image: str, processor: str) -> None:
    from tests.containers.engine import INSTALL, NoEngine

    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
    if (program := shutil.which("debootstrap", path=path)) is None:
        raise NoEngine(f"{image} can neither be pulled nor made, as there is no debootstrap; {INSTALL}")
    try:
        command = [program, "--variant=minbase", "--include=ca-certificates", suite, str(rootfs)]
        command[1:1] = [f"--arch={processor}"] if processor else []
        done = subprocess.run(
            command, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=1800
        )
        if done.returncode:
            raise NoEngine(f"debootstrap failed: {done.stdout.strip()[-300:]}")
        for name in LEFT_OUT:
            shutil.rmtree(rootfs / name, ignore_errors=True)
        (rootfs / "var/lib/apt/lists/partial").mkdir(parents=True)
        (rootfs / "var/cache/apt/archives/partial").mkdir(parents=True)
        tar = subprocess.Popen(["tar", "-C", str(rootfs), "-c", "."], stdout=subprocess.PIPE)
        subprocess.run(
            ["docker", "import", "-", image],
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
