"""Real nodes of ejabberd on the loopback, with their own epmd, cookie and folders."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from protofleet.federation.brokers.ports import free_port

START_SECONDS: Final = 300.0
STOP_SECONDS: Final = 30.0
SBIN: Final = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
INSTALL: Final = "apt-get install --no-install-recommends ejabberd"
# The Erlang of the test resolves `localhost` without DNS.
INETRC: Final = '{lookup,["file","native"]}.\n{host,{127,0,0,1}, ["localhost"]}.\n'


def demand_ejabberd() -> tuple[str, str]:
    """Return the paths of ejabberdctl and epmd; skip the test if one is missing, or fail with ENGINES=required."""
    found = [shutil.which(name, path=SBIN) for name in ("ejabberdctl", "epmd")]
    if None in found:
        words = f"ejabberd is not installed: {INSTALL}"
        if os.environ.get("ENGINES") == "required":
            pytest.fail(words)
        pytest.skip(words)
    return found[0] or "", found[1] or ""


@dataclass
class Node:
    """A node whose folder `settings` has ejabberd.yml."""

    cluster: Cluster
    name: str
    settings: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def erlang_name(self) -> str:
        return f"{self.name}@localhost"

    def start(self) -> None:
        own = self.cluster.folder / self.name
        for part in ("logs", "spool"):
            (own / part).mkdir(parents=True, exist_ok=True)
        log = (own / "output.log").open("ab")
        with log:
            self.process = subprocess.Popen(
                [self.cluster.control, *self._options(), "foreground"],
                env=self.cluster.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.wait_until_it_listens()

    def wait_until_it_listens(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not listens(self.port):
            output = (self.cluster.folder / self.name / "output.log").read_text()
            assert self.process is not None and self.process.poll() is None, (
                f"{self.name} has ended: {output}"
            )
            assert time.monotonic() < deadline, f"{self.name} does not listen: {output}"
            time.sleep(0.1)

    def ctl(self, *words: str, seconds: float = 60.0) -> str:
        done = subprocess.run(
            [self.cluster.control, *self._options(), *words],
            env=self.cluster.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=seconds,
        )  # fmt: skip
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def kill(self) -> None:
        """Kill the node, and all processes that it has started, as a power failure would."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_SECONDS)
        self.process = None

    def _options(self) -> list[str]:
        own = self.cluster.folder / self.name
        return [
            "--config-dir", str(self.settings), "--spool", str(own / "spool"), "--logs", str(own / "logs"),
            "--node", self.erlang_name,
        ]  # fmt: skip


@dataclass
class Cluster:
    """The nodes of one cluster; they end with the `with` block, and nothing else does."""

    folder: Path
    control: str
    epmd: str
    epmd_port: int
    nodes: list[Node] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "HOME": str(self.folder),  # The file with the cookie is there.
            "INET_DIST_INTERFACE": "127.0.0.1", "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self.epmd_port),
        }  # fmt: skip

    def start(self, settings: Path, port: int) -> Node:
        """Start a node with the ejabberd.yml in a folder; every node after the first one joins the first one."""
        name = f"n{os.getpid()}x{len(self.nodes)}"
        self._write_control(settings, name)
        node = Node(self, name, settings, port)
        self.nodes.append(node)
        node.start()
        if len(self.nodes) > 1:
            node.ctl("join_cluster", self.nodes[0].erlang_name, seconds=START_SECONDS)
            node.wait_until_it_listens()
        return node

    def _write_control(self, settings: Path, name: str) -> None:
        """Write the files of ejabberdctl, which reads its own as shell: Debian's would change to another user."""
        own = self.folder / name
        (settings / "inetrc").write_text(INETRC)
        (settings / "ejabberdctl.cfg").write_text(
            f"EXEC_CMD=as_current_user\nINET_DIST_INTERFACE=127.0.0.1\nERL_EPMD_ADDRESS=127.0.0.1\n"
            f"EJABBERD_PID_PATH={own}/pid\nCONTRIB_MODULES_CONF_DIR={own}/modules\n"
            f"EJABBERD_CONFIG_PATH={settings}/ejabberd.yml\n"
        )


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    control, epmd = demand_ejabberd()
    found = Cluster(folder, control, epmd, free_port())
    daemon = subprocess.Popen(
        [epmd, "-port", str(found.epmd_port), "-address", "127.0.0.1"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield found
    finally:
        for node in found.nodes:
            node.kill()
        daemon.kill()
        daemon.wait(STOP_SECONDS)


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
