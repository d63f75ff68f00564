"""Fake devices: containers with a real systemd, a real sshd and a real rsync, reached over real SSH."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.containers.engine import Engine, NoEngine

IMAGE: Final = "protofleet-local/device"
HERE: Final = Path(__file__).parent / "device"
BOOT_SECONDS: Final = 60.0
# A systemd in a container needs these; an engine inside a sandbox often cannot give --privileged.
FLAGS: Final = (
    "--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined",
    "--tmpfs", "/run", "--tmpfs", "/run/lock", "--cgroupns=private",
)  # fmt: skip


# An engine inside of such a container also needs control groups that it may write, and a real disk.
NESTED: Final = (
    "--cap-add", "NET_ADMIN", "--cgroupns=host", "-v", "/sys/fs/cgroup:/sys/fs/cgroup:rw", "-v", "/var/lib/docker",
)  # fmt: skip


class Bench:
    """One image, one pair of keys, and the devices that were started from the image."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.key, self.known_hosts = folder / "id_ed25519", folder / "known_hosts"
        for name in ("id_ed25519", "host_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        self.image = f"{IMAGE}-{uuid.uuid4().hex[:8]}"
        context = folder / "context"
        context.mkdir()
        shutil.copy(HERE / "Dockerfile", context)
        shutil.copy(folder / "host_key", context)
        shutil.copy(folder / "id_ed25519.pub", context / "authorized_keys")
        engine.docker("build", "-t", self.image, "--build-arg", f"BASE={engine.debian}", str(context))
        self._names: list[str] = []
        self.known_hosts.touch()

    def with_engine(self) -> str:
        """Return the image of a device that has docker."""
        name = f"{self.image}-docker"
        if not self.engine.has_image(name):
            text = (HERE / "docker.Dockerfile").read_text()
            self.engine.docker("build", "-t", name, "--build-arg", f"BASE={self.image}", "-", stdin=text)
        return name

    def with_mosquitto(self) -> str:
        """Return the image of a host for broker and coordinator."""
        name = f"{self.image}-hub"
        if not self.engine.has_image(name):
            text = (HERE / "hub.Dockerfile").read_text()
            self.engine.docker("build", "-t", name, "--build-arg", f"BASE={self.image}", "-", stdin=text)
        return name

    def edge_archive(self, wheels: Path) -> Path:
        """Return a container's image as `docker save` writes it."""
        name, archive = f"{self.image}-edge", self.folder / "edge.tar"
        shutil.copy(HERE / "edge.Dockerfile", wheels / "Dockerfile")
        self.engine.docker("build", "-t", name, "--build-arg", f"BASE={self.engine.base}", str(wheels))
        self.engine.docker("save", "-o", str(archive), name)
        self.engine.run("rmi", "-f", name)
        return archive

    def start(self, *more: str, known: bool = True, image: str = "", from_vendor: bool = True) -> FakeDevice:
        name = f"pf-{uuid.uuid4().hex[:10]}"
        vendor = ("-v", f"{vendored()}:/opt/vendor:ro") if from_vendor else ()
        self.engine.docker("run", "-d", "--name", name, *FLAGS, *vendor, *more, image or self.image)
        self._names.append(name)
        device = FakeDevice(self.engine, name)
        if known:
            host_key = " ".join((self.folder / "host_key.pub").read_text().split()[:2])
            with self.known_hosts.open("a") as file:
                file.write(f"{device.address} {host_key}\n")
        return device

    def stop(self, device: FakeDevice) -> None:
        self.engine.run("rm", "-f", "-v", device.name)
        self._names.remove(device.name)

    def close(self) -> None:
        for name in self._names:
            self.engine.run("rm", "-f", "-v", name)
        for image in (f"{self.image}-docker", f"{self.image}-hub", self.image):
            self.engine.run("rmi", "-f", image)


@contextlib.contextmanager
def bench_on(engine: Engine, folder: Path) -> Iterator[Bench]:
    """Yield a bench and close it at the end; skip the tests, with the reason, if its devices cannot start."""
    bench = None
    try:
        bench = Bench(engine, folder)
        yield bench
    except NoEngine as error:
        pytest.skip(str(error))
    finally:
        if bench is not None:
            bench.close()


class FakeDevice:
    def __init__(self, engine: Engine, name: str) -> None:
        self.engine, self.name = engine, name
        self.address = self.network("IPAddress")

    def network(self, what: str) -> str:
        shown = f"{{{{range .NetworkSettings.Networks}}}}{{{{.{what}}}}}{{{{end}}}}"
        return self.engine.docker("inspect", "-f", shown, self.name)

    def do(self, *words: str, check: bool = True) -> str:
        return self.engine.docker("exec", self.name, *words, check=check)

    def sh(self, text: str, check: bool = True) -> str:
        return self.do("sh", "-c", text, check=check)

    def booted(self) -> FakeDevice:
        deadline = time.monotonic() + BOOT_SECONDS
        while (state := self.do("systemctl", "is-system-running", check=False)) not in (
            "running",
            "degraded",
        ):
            if time.monotonic() > deadline:
                raise NoEngine(f"systemd does not come up in a container here (it is {state!r})")
            time.sleep(0.2)
        return self


def vendored() -> str:
    """Return the folder of this interpreter's packages, which represent the packages of the vendor.

    They must fit the Python of the device.
    """
    if sys.version_info[:2] != (3, 11):
        raise NoEngine(
            f"the fake devices have Python 3.11, this one is {sys.version_info[0]}.{sys.version_info[1]}"
        )
    import torch

    return str(Path(os.fspath(torch.__file__)).parents[1])
