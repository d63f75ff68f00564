"""Run the tasks of a job as tasks of Ray. The driver of Ray is a child process (ray_driver.py).

The tasks end with the driver, and the driver ends with this process. So nothing is left of a command that was killed,
and the same command goes on from the folders of the runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Final

from protofleet.lab.engines.engine import EngineAwayError, EngineJob, TaskState
from protofleet.lab.engines.ray_driver import RESOURCES
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.children import PARENT, command
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.installation.extras import missing

AUTO: Final = "auto"
PACKAGE: Final = "ray==2.55.1"  # The extra of pyproject.toml, which an index without protofleet has too.
CONNECT_SECONDS: Final = 120.0  # Ray connects slowly on a busy machine.
REACH_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 10.0
END_SECONDS: Final = 5.0
ENDED: Final = "the Ray cluster has ended; the same command goes on when there is one"
# Ray sends statistics of its use to its makers, unless this says no.
QUIETLY: Final = {"RAY_USAGE_STATS_ENABLED": "0"}


class DriverEndedError(RunError):
    """The error for a driver that has ended, for example because Ray's head has died."""


@dataclass
class Ray:
    """The Ray cluster of the settings, and the driver of this command in it."""

    name: str = "ray"
    cluster: str = ""
    ends_with_command: bool = True
    time_hint: str = ""
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    connect_seconds: float = CONNECT_SECONDS
    answer_seconds: float = ANSWER_SECONDS
    _driver: DriverProcess | None = None
    _jobs: dict[str, EngineJob] = field(default_factory=dict)
    _cancelled: set[str] = field(default_factory=set)
    _bad: Mapping[str, str] = field(default_factory=dict)

    def preflight(self, job: EngineJob) -> None:
        if missing("ray"):
            raise SettingsError(
                f"--on ray needs the extra ray: pip install protofleet[ray], or pip install {PACKAGE}"
            )
        address = self._address(job)
        if address == AUTO or self._driver is not None:
            return
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
        except (OSError, ValueError, OverflowError) as error:
            raise SettingsError(f"no Ray cluster answers at {address} ({error}); {WAY_OUT}") from None

    def find(self, job: EngineJob) -> str:
        """Return the id of a job that this command has submitted from the folder, or ""."""
        for job_id, one in self._jobs.items():
            if (one.folder, one.script) == (job.folder, job.script) and self.states(job_id):
                return job_id
        return ""

    def submit(self, job: EngineJob) -> str:
        if self._driver is None:
            self._driver = connected(self._address(job), self.environment, self.connect_seconds)
        job_id = secrets.token_hex(4)
        claims = {key: float(job.options[key]) for key in RESOURCES if key in job.options}
        what = {
            "folder": str(job.folder), "tasks": job.tasks, "command": job.command, "setup": job.setup, "log": job.log,
            "at_once": job.at_once, "claims": claims, "working_folder": os.getcwd(),  # noqa: PTH109
        }  # fmt: skip
        self._driver.tell({"verb": "submit", "job": job_id, "what": what})
        self._jobs[job_id] = job
        return job_id

    def states(self, job_id: str) -> list[TaskState]:
        if job_id not in self._jobs or self._driver is None:
            return []
        try:
            answer = self._driver.ask({"verb": "states", "job": job_id}, self.answer_seconds)
        except RunError:
            if job_id not in self._cancelled:
                raise
            self._driver.end()  # Its tasks end with it.
            return []
        self._bad = answer["bad"]
        return [TaskState(*one) for one in answer["states"]]

    def has_forgotten(self, job_id: str) -> bool:
        return False

    def cancel(self, job_id: str, kill: bool = False) -> None:
        self._cancelled.add(job_id)
        if self._driver is not None:
            self._driver.tell({"verb": "cancel", "job": job_id, "kill": kill})

    def bad_nodes(self) -> Mapping[str, str]:
        return self._bad

    def refusal(self, reason: str) -> str:
        return f"Ray refuses the task: {reason}; correct it with --ray KEY=VALUE, or in the table [engine]"

    def hold_words(self, job_id: str, task: int) -> str:
        return ""

    def _address(self, job: EngineJob) -> str:
        return job.options.get("address") or self.environment.get("RAY_ADDRESS", "").strip() or AUTO


WAY_OUT: Final = (
    "name another with --ray address=HOST:PORT, start a cluster with `ray start --head`, or leave out --on to run on "
    "this machine; the command must run on a node of the cluster"
)


@dataclass
class DriverProcess:
    """The child process with the driver, and the pipes to it."""

    process: subprocess.Popen[bytes]
    errors: IO[bytes]  # The file with what Ray has printed.
    address: str = ""
    clock: Callable[[], float] = time.monotonic
    _number: int = 0
    _partial: bytes = b""

    def tell(self, request: Mapping[str, Any]) -> None:
        """Send a request. A driver that has ended gets none; the next question reports that."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # ValueError: the pipe is closed.
            self.process.stdin.write((json.dumps(request, allow_nan=False) + "\n").encode())
            self.process.stdin.flush()

    def ask(self, request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """Return the answer to a request. Answers to earlier requests, which came too late, are left out."""
        self._number += 1
        self.tell({**request, "number": self._number})
        deadline = self.clock() + seconds
        while (answer := self.read(deadline)) and answer["number"] != self._number:
            pass
        if answer is None:
            raise EngineAwayError(f"its driver has not answered within {seconds:.0f} s")
        return answer

    def read(self, deadline: float) -> Mapping[str, Any] | None:
        """Return the next line of the driver; None if the deadline passes before."""
        assert self.process.stdout is not None
        pipe = self.process.stdout.fileno()
        while b"\n" not in self._partial:
            if not select.select([pipe], [], [], max(0.0, deadline - self.clock()))[0]:
                return None
            if not (data := os.read(pipe, 1 << 16)):
                raise DriverEndedError(self.end_words())
            self._partial += data
        line, _, self._partial = self._partial.partition(b"\n")
        answer: Mapping[str, Any] = json.loads(line)
        return answer

    def end_words(self) -> str:
        """Return the words for the end of the driver. Ray ends it when the head has died."""
        code = self.process.wait()
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), REACH_SECONDS).close()
        except (OSError, ValueError):
            return ENDED
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        said = self.last_words()
        return f"the driver of Ray {how}{f' ({said})' if said else ''}; the same command goes on from here"

    def last_words(self) -> str:
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").splitlines()
        return next((line.strip()[-300:] for line in reversed(lines) if line.strip()), "")

    def end(self) -> None:
        end_process(self.process)


def end_process(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # A request that was not sent is dropped.
                pipe.close()


def connected(address: str, environment: Mapping[str, str], seconds: float) -> DriverProcess:
    """Start a driver and return it when it has connected; raise SettingsError if it cannot."""
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the driver
    process = subprocess.Popen(
        command("protofleet.lab.engines.ray_driver", address), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=errors, env={**QUIETLY, **environment, PARENT: str(os.getpid())},
        start_new_session=True,  # An interrupt of the terminal must not end the driver before its tasks.
    )  # fmt: skip
    driver = DriverProcess(process, errors)
    weakref.finalize(driver, end_process, process)  # Also at the end of this process.
    problem: object = f"it has not connected within {seconds:.0f} s"
    try:
        if (found := driver.read(driver.clock() + seconds)) is not None:
            problem = found.get("problem", "")
            driver.address = found.get("address", "")
    except DriverEndedError:
        problem = driver.last_words() or "its driver has ended"
    if problem:
        driver.end()
        where = "on this machine" if address == AUTO else f"at {address}"
        raise SettingsError(f"no Ray cluster answers {where} ({str(problem)[:300]}); {WAY_OUT}")
    return driver
