"""A Slurm of four nodes on this machine for the tests, which ends with them (slurm.sh)."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.started_processes import VARIABLE

SCRIPT = Path(__file__).with_name("slurm.sh")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
WHERE = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
NODES = 4


class NoSlurm(Exception):
    """The reason why no Slurm can run here, in one line."""


@dataclass
class SlurmCluster:
    folder: Path
    touched: set[str] = field(default_factory=set)  # Nodes that a test has ended.

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            **os.environ,
            "PATH": WHERE,
            "SLURM_TEST": str(self.folder),
            "SLURM_CONF": f"{self.folder}/slurm.conf",
        }

    def script(self, *words: str) -> str:
        """Call slurm.sh. Its output goes to a file, because daemons would keep a pipe open.

        The daemons outlive the test, so they do not get its environment variable.
        """
        if words[0] == "node-kill":
            self.touched.add(words[1])
        around = {key: value for key, value in self.environment.items() if key != VARIABLE}
        with (self.folder / "script.log").open("w+") as log:
            code = subprocess.run(
                [str(SCRIPT), *words],
                env=around,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=120,
            ).returncode
            log.seek(0)
            text = log.read()
        if code:
            raise NoSlurm(f"slurm.sh {' '.join(words)} ended with {code}: {text.strip()[-300:]}")
        return text

    def ask(self, *words: str) -> str:
        return subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=120, check=True
        ).stdout.strip()

    def tasks(self) -> list[str]:
        """Return the jobs in the queue, as <array>_<task> <state> <node>."""
        return self.ask("squeue", "-h", "-r", "-o", "%i %T %N").splitlines()

    def hurry(self) -> None:
        """Let tasks that Slurm has requeued start now. Otherwise Slurm waits 120 s."""
        for line in self.ask("squeue", "-h", "-r", "-t", "pending", "-o", "%i %r").splitlines():
            task, _, reason = line.partition(" ")
            if reason == "BeginTime":
                self._quiet("scontrol", "update", f"jobid={task}", "starttime=now")

    def limit(self, job: str) -> None:
        """Lower the time limit of a running job, so that Slurm's warning comes soon, but 60 s before the limit."""
        seconds = int(self.ask("squeue", "-h", "-j", job, "-O", "TimeUsed").rpartition(":")[2])
        minutes = int(self.ask("squeue", "-h", "-j", job, "-O", "TimeUsed").partition(":")[0])
        self.ask("scontrol", "update", f"jobid={job}", f"timelimit={minutes + 2 + (seconds > 50)}")

    def left(self) -> list[str]:
        """Return the processes of tasks."""
        return self.script("left").split()

    def idle(self) -> bool:
        """Return whether a task can start on each node. For `sinfo -t idle`, a drained node is idle too."""
        return self.ask("sinfo", "-h", "-N", "-p", "all", "-o", "%T").split() == ["idle"] * NODES

    def restore(self) -> None:
        """End all jobs and make all nodes idle, whatever a test has done."""
        (self.folder / "no-start").unlink(missing_ok=True)
        if not is_alive(self.folder / "slurmctld.pid"):
            self.script("head-start")
        wait_for(lambda: self._quiet("scancel", "--user=root") is not None, 60, "the controller answers")
        for node in sorted(self.touched):
            self.script("node-kill", node)
            self.script("node-start", node)
        wait_for(lambda: self._quiet("squeue", "-h") == "", 60, "no job is left")
        if self.touched or not self.idle():
            for state in ("down", "resume"):
                self._quiet("scontrol", "update", f"nodename=n[1-{NODES}]", f"state={state}", "reason=test")
        self.touched.clear()
        wait_for(self.idle, 60, "all nodes are idle")

    def _quiet(self, *words: str) -> str | None:
        """Return what a command prints; None if it fails."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=120)
        return None if done.returncode else done.stdout.strip()


def is_alive(file: Path) -> bool:
    return file.exists() and Path(f"/proc/{file.read_text().strip()}").exists()


def wait_for(condition: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.1)


@contextlib.contextmanager
def running_slurm() -> Iterator[SlurmCluster]:
    """Yield a Slurm with idle nodes; raise NoSlurm with the reason if it cannot run here."""
    if missing := [name for name in PROGRAMS if shutil.which(name, path=WHERE) is None]:
        raise NoSlurm(f"there is no {missing[0]} on this machine; as root, make engine-tools installs it")
    if os.geteuid() != 0:
        raise NoSlurm("only root can start slurmd and munged; run the tests as root")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    cluster = SlurmCluster(folder)
    try:
        cluster.script("start", str(NODES))
        yield cluster
    finally:
        with contextlib.suppress(NoSlurm):
            cluster.script("stop")
        shutil.rmtree(folder, ignore_errors=True)
