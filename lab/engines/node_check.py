"""Check a node with a first task: it sees the folder, the locks of files hold, and it has the same protofleet.

The command holds a lock while the task runs. If the task gets the lock too, locks do not hold between the machines.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from protofleet.lab.engines.engine import Engine, EngineAwayError, EngineJob
from protofleet.lab.engines.mount import mount_of
from protofleet.lab.engines.queue_watch import SAY_AGAIN_SECONDS, end_job
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import Disk
from protofleet.runtime.children import command
from protofleet.runtime.installation.version import installed_version

LOCK: Final = "check.lock"
ANSWER: Final = "check.json"
MINUTES: Final = 5  # Time that the test asks for, so that it finds a place soon.
POLL_SECONDS: Final = 1.0
WAIT_SECONDS: Final = 5.0  # After this time in the queue, the command says that the test waits.
SETTLE_SECONDS: Final = (
    10.0  # A network file system may show a new file of another machine some seconds later.
)


@dataclass(frozen=True)
class NodeAnswer:
    """The state of a node, as the first task has found it."""

    word: str
    node: str
    version: str
    lock_holds: bool
    mount: str


def answer_on_node(folder: Path, word: str) -> NodeAnswer:
    """Look at the folder, its lock and the version, and write the answer into the folder; the first task calls it."""
    lock = folder / LOCK
    try:
        seen = lock.read_text()
    except OSError as error:
        raise SettingsError(f"this node does not see {lock}: {error.strerror}") from None
    if seen != word:
        raise SettingsError(f"this node sees another {folder} than the machine of the command")
    with lock.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            holds = False
        except OSError:
            holds = True
    answer = NodeAnswer(word, socket.gethostname(), installed_version(), holds, mount_of(folder))
    Disk().replace(folder / ANSWER, json.dumps(asdict(answer), allow_nan=False).encode())
    return answer


@dataclass
class NodeCheck:
    """A test of a node, which is a job of its own and may wait in the queue."""

    engine: Engine
    folder: Path
    setup: tuple[str, ...]
    options: Mapping[str, str]
    say: Callable[[str], None]
    trust_locks: bool = False
    settle_seconds: float = SETTLE_SECONDS
    wait_seconds: float = WAIT_SECONDS

    def run(self) -> NodeAnswer:
        """Return what the node has answered; raise SettingsError if trials cannot run there."""
        word = secrets.token_hex(8)
        with held_lock(self.folder / LOCK, word):
            job = self.job(word)
            (self.folder / ANSWER).unlink(missing_ok=True)
            job.log_of(0).unlink(missing_ok=True)
            self.engine.preflight(job)
            job_id = self.engine.submit(job)
            self.say(
                f"job {job_id} tests a node first: the folder, its locks and the version; the trials are "
                "submitted after the test has passed"
            )
            try:
                answer = self._wait(job_id, word)
            except BaseException:
                end_job(self.engine, job_id, self.say)
                raise
        if answer is None:
            raise SettingsError(self._silence(job))
        self._demand(answer)
        return answer

    def job(self, word: str) -> EngineJob:
        task = command("protofleet", "node-check", str(self.folder), word)
        return EngineJob(
            "protofleet-check", self.folder, 1, tuple(task), setup=self.setup, options=self.options,
            minutes=MINUTES, script="check.sh", log="check.log",
        )  # fmt: skip

    def _wait(self, job_id: str, word: str) -> NodeAnswer | None:
        """Return the answer; None if the job has ended without one."""
        gone_at, say_at = float("inf"), time.monotonic() + self.wait_seconds
        while True:
            if (answer := read_answer(self.folder)) and answer.word == word:
                return answer
            now = time.monotonic()
            try:
                left = [one for one in self.engine.states(job_id) if one.state != "cancelled"]
                if not left:
                    gone_at = min(gone_at, now)
                elif left[0].state == "refused":
                    raise SettingsError(self.engine.refusal(left[0].reason))
                elif left[0].state != "runs" and now >= say_at:
                    self.say(f"job {job_id} waits in the queue ({left[0].reason})")
                    say_at = now + SAY_AGAIN_SECONDS
            except EngineAwayError as error:
                self.say(f"{self.engine.name} does not answer: {error}; it is asked again")
            if now - gone_at >= self.settle_seconds:
                return None
            time.sleep(POLL_SECONDS)

    def _silence(self, job: EngineJob) -> str:
        log = job.log_of(0)
        if not log.exists():
            return (
                f"a node does not see {self.folder}: the first task left nothing there; choose a folder that this "
                f"machine and all nodes share with --runs (here it is on {mount_of(self.folder)})"
            )
        return (
            f"the first task has ended without an answer: {job.last_line(0) or 'it printed nothing'}; see {log}, "
            "and name what it needs on the node in setup of the table [engine]"
        )

    def _demand(self, answer: NodeAnswer) -> None:
        if answer.version != installed_version():
            raise SettingsError(
                f"node {answer.node} has protofleet {answer.version}, and this machine has {installed_version()}; "
                "install the same version, for example in a folder that all nodes share"
            )
        if not answer.lock_holds and not self.trust_locks:
            raise SettingsError(
                f"a lock on {self.folder / LOCK} does not hold on node {answer.node}, so two tasks could write one "
                f"run (there it is on {answer.mount}); choose a folder whose locks hold with --runs, have it mounted "
                "with flock, or give --trust-locks"
            )


@contextlib.contextmanager
def held_lock(path: Path, word: str) -> Iterator[None]:
    """Hold the lock of a file that contains the word."""
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SettingsError(
                f"{path} cannot be locked: {error.strerror}; choose another folder with --runs"
            ) from None
        file.truncate(0)
        file.write(word)
        file.flush()
        yield


def read_answer(folder: Path) -> NodeAnswer | None:
    try:
        return NodeAnswer(**json.loads((folder / ANSWER).read_text()))
    except (OSError, ValueError, TypeError):
        return None
