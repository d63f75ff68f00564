"""A board inside this machine, with real root, real users and real files, which touches nothing outside.

Its /etc, /opt, /usr, /var and /run lie over those of this machine, in a mount namespace that ends with a process.
Only systemctl and journalctl are replaced.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from protofleet.deploy.fleet.device.scripts import HostRole

ROOT: Final = Path(__file__).parents[3]
LAYERS: Final = ("etc", "opt", "usr", "var", "run")
SECONDS: Final = 60.0
SETUP: Final = """
set -e
mount -t tmpfs tmpfs /mnt
for d in {layers}; do
    mkdir -p /mnt/$d/upper /mnt/$d/work
    mount -t overlay overlay -o lowerdir=/$d,upperdir=/mnt/$d/upper,workdir=/mnt/$d/work /$d
done
printf '#!/bin/sh\\necho "$*" >>/run/systemctl.log\\n' >/usr/local/sbin/systemctl
printf '#!/bin/sh\\n' >/usr/local/sbin/journalctl
chmod 755 /usr/local/sbin/systemctl /usr/local/sbin/journalctl
echo ready
exec sleep infinity
"""


class NoBoardError(RuntimeError):
    """The error that no board can be made on this machine; its message gives the reason."""


class RootBoard:
    def __init__(self) -> None:
        if os.geteuid():
            raise NoBoardError("only root can make a board with users of its own")
        if lacking := [
            tool for tool in ("unshare", "nsenter", "useradd", "setpriv") if not shutil.which(tool)
        ]:
            raise NoBoardError(f"there is no {lacking[0]} on this machine")
        script = SETUP.format(layers=" ".join(LAYERS))
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._holder.stdout is not None and self._holder.stderr is not None
        if self._holder.stdout.readline().strip() != "ready":
            raise NoBoardError(f"no mounts of its own: {self._holder.stderr.read().strip()[-200:]}")

    def run(self, *words: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        path = f"/usr/local/sbin:{os.environ['PATH']}"
        done = subprocess.run(
            ["nsenter", "--mount", "--target", str(self._holder.pid), "--wd=/", *words], input=stdin,
            capture_output=True, text=True, errors="replace", timeout=SECONDS, env={**os.environ, "PATH": path},
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done

    def sh(self, text: str, check: bool = True) -> str:
        """Run a shell line as root and return its output."""
        return self.run("sh", "-c", text, check=check).stdout.strip()

    def as_user(self, text: str, user: str = "protofleet") -> str:
        """Run a shell line as that user, with the rights of the user's processes, and return its output."""
        return self.run(
            "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "sh", "-c", text
        ).stdout

    def step(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a step of a deployment in the same way as `Ssh.run`."""
        return self.run("sh", "-s", "--", *words, stdin=HostRole().steps, check=check)

    def facts(self, how: str = "quick") -> str:
        return self.run(
            "sh", "-s", "--", how, stdin=HostRole(models="/var/lib/protofleet/state/models").facts
        ).stdout

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()
