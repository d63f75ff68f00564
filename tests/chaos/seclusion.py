"""Separate processes, mounts and networks for the tests; all of them vanish when the test program ends.

This needs root. Without it, faults are done differently: the proxies cut the lines, and there are no small
disks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from protofleet.runtime.control_socket import CONTROL_SOCKET

MARK = "PROTOFLEET_SECLUDED"
UNSHARE = [
    "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private",
]  # fmt: skip
PART = 36 << 10  # Bytes; a block has 64 KiB.
HUB = "10.77.0.1"  # The address at which every namespace reaches the proxies.


def secluded() -> bool:
    return os.environ.get(MARK) == "yes"


def seclude(module: str, arguments: list[str]) -> None:
    """Start the program again in separate namespaces, or return if that is impossible."""
    if secluded() or shutil.which("unshare") is None or shutil.which("ip") is None:
        return
    probe = "ip link add v0 type veth peer name v00 && mount -t tmpfs none /run && mkdir /run/netns && ip netns add a"
    if subprocess.run([*UNSHARE, "sh", "-c", probe], capture_output=True).returncode != 0:
        return
    os.environ[MARK] = "yes"
    os.execvp("unshare", [*UNSHARE, sys.executable, "-m", module, *arguments])


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Network:
    """A network namespace for each party, joined to the one of the tests by a cable that a test can pull."""

    def __init__(self, names: list[str]) -> None:
        Path("/run/netns").mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "none", "/run/netns"], check=True)
        ip("link", "set", "lo", "up")
        ip("addr", "add", f"{HUB}/32", "dev", "lo")
        self._cables = {name: f"v{i}" for i, name in enumerate(names, 1)}
        for i, name in enumerate(names, 1):
            self._join(name, f"v{i}", f"10.77.{i}.1", f"10.77.{i}.2")

    @staticmethod
    def _join(name: str, cable: str, ours: str, theirs: str) -> None:
        ip("netns", "add", name)
        ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("addr", "add", f"{ours}/30", "dev", cable)
        ip("link", "set", cable, "up")
        ip("-n", name, "addr", "add", f"{theirs}/30", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", name, "link", "set", device, "up")
        ip("-n", name, "route", "add", "default", "via", ours)

    def inside(self, name: str) -> list[str]:
        """Return the beginning of a command line that runs in the namespace of this party."""
        return ["nsenter", f"--net=/run/netns/{name}"]

    def pull(self, name: str) -> None:
        ip("link", "set", self._cables[name], "down")

    def plug(self, name: str) -> None:
        ip("link", "set", self._cables[name], "up")


class SmallDisk:
    """A folder with room for `size` bytes; a test can fill it and free it again."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self._filled = folder, 0
        folder.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], check=True)

    def fill(self) -> None:
        """Fill the disk; leave room for a part of a block every second time, so that a block is written in part."""
        with (self.folder / "full").open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12):
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError:
                    continue
            self._filled += 1
            if self._filled % 2 == 0:
                file.truncate(file.tell() - PART)

    def free(self) -> None:
        (self.folder / "full").unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount the small disk, and keep its files on the disk below it."""
        kept = self.folder.with_name(f"{self.folder.name}.kept")
        # A process that was killed has left its socket, which cannot be copied.
        shutil.copytree(self.folder, kept, symlinks=True, ignore=shutil.ignore_patterns(CONTROL_SOCKET))
        subprocess.run(["umount", str(self.folder)], check=True)
        self.folder.rmdir()
        kept.rename(self.folder)
