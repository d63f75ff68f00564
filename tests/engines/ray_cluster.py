"""A Ray cluster of several nodes on this machine for the tests, which ends with them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from protofleet.federation.brokers.ports import free_port
from tests.engines.slurm_cluster import wait_for
from tests.support.started_processes import VARIABLE

NODES = ("n1", "n2")
START_SECONDS = 180.0
# A node ends by itself if its daemons have not started after a time, 30 s by default. Workers get a niceness of 15 by
# default, with which they would hardly run while other tests use the cores.
SETTINGS = {
    "RAY_raylet_start_wait_time_s": "170",
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
NODE, OF_COMMAND = "RAY_TEST_NODE", "RAY_TEST_COMMAND"
# Waits until the nodes with these names are alive. The first arguments are the address and the seconds.
WAIT = """
import sys, time
from ray._raylet import GcsClient
names, end = set(sys.argv[3:]), time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    try:
        found = GcsClient(address=sys.argv[1]).get_all_node_info(timeout=10)
        if names <= {one.node_name for one in found.values() if one.state == 0}:
            sys.exit(0)
    except Exception as error:
        print(error)
    time.sleep(0.5)
sys.exit("not all nodes are alive: " + " ".join(names))
"""


class NoRay(Exception):
    """The reason why no Ray can run here, in one line."""


@dataclass
class LocalRay:
    folder: Path
    port: int
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "RAY_ADDRESS": self.address, OF_COMMAND: str(self.folder)}

    def start_head(self) -> None:
        self._start(
            "head", "--head", f"--port={self.port}", "--num-cpus=0", "--include-dashboard=false",
            f"--temp-dir={self.folder}", "--node-name=head", f"--ray-client-server-port={free_port('127.0.0.1')}",
            f"--dashboard-port={free_port('127.0.0.1')}",
        )  # fmt: skip
        self.wait("head")

    def start_node(self, name: str, hidden: Path | None = None) -> None:
        """Start a node with one CPU; it sees an empty folder in place of `hidden`.

        Two nodes that start at the same time may choose the same socket, and one of them ends.
        """
        self._start(name, f"--address={self.address}", "--num-cpus=1", f"--node-name={name}", hidden=hidden)
        self.wait(name)

    def wait(self, *names: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", WAIT, self.address, str(START_SECONDS), *names],
            capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            logs = {path.name: path.read_text()[-300:] for path in self.folder.glob("*.log")}
            raise NoRay(f"{done.stderr.strip()[-200:]}; {logs}")

    def kill(self, *names: str) -> None:
        """End nodes as a power cut does, but not the processes of their tasks: those must end by themselves."""
        for name in names:
            # Ray overwrites the environment of some of its processes with their titles.
            family = descendants(self.running[name].pid) if name in self.running else set()
            for process in {*family, *self._processes(f"{NODE}={self.folder}/{name}")} - set(self.left()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            if name in self.running:
                self.running.pop(name).wait()

    def left(self) -> list[int]:
        """Return the processes of commands and of their tasks."""
        return self._processes(f"{OF_COMMAND}={self.folder}")

    def tasks_on(self, name: str) -> list[int]:
        """Return the processes that the workers of a node have started for tasks."""
        workers = self._processes(f"{NODE}={self.folder}/{name}")
        return [process for process in self.left() if parent(process) in workers]

    def restore(self) -> None:
        """End all commands and tasks, and start what a test has ended."""
        for process in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if "head" not in self.running or self.running["head"].poll() is not None:
            self.kill(*NODES, "n3", "head")
            self.start_head()
        self.kill("n3")
        for name in NODES:
            if name not in self.running or self.running[name].poll() is not None:
                self.kill(name)
                self.start_node(name)
        wait_for(lambda: not self.left(), 30, "no process of a task is left")

    def stop(self) -> None:
        self.kill(*self.running)
        for process in self._processes(f"{NODE}={self.folder}/"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _start(self, name: str, *words: str, hidden: Path | None = None) -> None:
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *words, "--node-ip-address=127.0.0.1",
            "--object-store-memory=80000000", "--min-worker-port=0", "--max-worker-port=0", "--disable-usage-stats",
            "--include-log-monitor=false",
        ]  # fmt: skip
        if hidden is not None:
            command = [
                "unshare",
                "-m",
                "sh",
                "-c",
                f"mount -t tmpfs none '{hidden}' && exec \"$@\"",
                "sh",
                *command,
            ]
        with (self.folder / f"{name}.log").open("w") as log:
            self.running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self._environment(name), start_new_session=True,
            )  # fmt: skip

    def _environment(self, name: str) -> Mapping[str, str]:
        """Return the environment of a node. The node outlives the test that starts it again."""
        kept = {key: value for key, value in os.environ.items() if key != VARIABLE}
        return {**kept, **SETTINGS, NODE: f"{self.folder}/{name}"}

    def _processes(self, begin: str) -> list[int]:
        """Return the processes whose environment has a variable that begins so."""
        return [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/environ")
            if any(one.startswith(begin) for one in variables(path))
        ]


def descendants(root: int) -> set[int]:
    """Return the process and its children, their children, and so on."""
    parents = {int(path.name): parent(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    found, last = {root}, {root}
    while last:
        last = {process for process, above in parents.items() if above in last} - found
        found |= last
    return found


def parent(process: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def variables(path: Path) -> Sequence[str]:
    with contextlib.suppress(OSError):
        return path.read_bytes().decode(errors="replace").split("\0")
    return []


@contextlib.contextmanager
def running_ray() -> Iterator[LocalRay]:
    """Yield a Ray with two nodes of one CPU; raise NoRay with the reason if it cannot run here."""
    if importlib.util.find_spec("ray") is None:
        raise NoRay("the package ray is missing; make test-engines installs it")
    # Ray's sockets are in this folder, and the path of a socket is short.
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    cluster = LocalRay(folder, free_port("127.0.0.1"))
    try:
        cluster.start_head()
        for name in NODES:
            cluster.start_node(name)
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
