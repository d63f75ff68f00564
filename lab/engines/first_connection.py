"""Check with a first task of an engine that the nodes reach this machine, before a run starts."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from protofleet.federation.brokers.ports import free_port
from protofleet.lab.engines import reach
from protofleet.lab.engines.engine import Engine, EngineJob
from protofleet.lab.engines.queue_watch import POLL_SECONDS, SAY_AGAIN_SECONDS, QueueWatch, end_job
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime import children

WORD_BYTES: Final = 16
LOOK_SECONDS: Final = 0.2


@dataclass
class FirstTask:
    """The first task of a run. It connects to a port of this machine and sends a random word."""

    engine: Engine
    job: EngineJob  # A job with the options of the run; only its command is replaced.
    host: str
    say: Callable[[str], None]

    def check(self) -> None:
        """Raise SettingsError if the node of the task does not reach this machine."""
        folder, word = self.job.folder, secrets.token_hex(WORD_BYTES)
        try:
            port = free_port(self.host)
            server = socket.create_server((self.host, port))
        except OSError as error:
            raise SettingsError(
                f"--host is {self.host}, but this machine cannot listen there ({error.strerror}); name an address of "
                "this machine that the nodes reach"
            ) from None
        folder.mkdir(parents=True, exist_ok=True)
        result = folder / "result.json"
        result.unlink(missing_ok=True)
        command = children.script(Path(reach.__file__), self.host, str(port), word, str(result))
        job = replace(self.job, tasks=1, command=tuple(command))
        with server:
            server.settimeout(LOOK_SECONDS)
            job_id = self.engine.submit(job)
            try:
                self._wait(job_id, server, word, result)
            except BaseException:
                end_job(self.engine, job_id, self.say)
                raise
        shutil.rmtree(folder, ignore_errors=True)

    def _wait(self, job_id: str, server: socket.socket, word: str, result: Path) -> None:
        watch, look_at, say_at = (
            QueueWatch(self.engine, job_id, self.say),
            0.0,
            time.monotonic() + SAY_AGAIN_SECONDS,
        )
        gone = False
        while not received(server, word):
            if found := read_result(result):
                node, problem = found
                raise SettingsError(
                    f"--host is {self.host}, but the node {node} cannot reach this machine there ({problem}); name "
                    "an address of this machine that the nodes reach"
                )
            if gone:
                words = self.job.last_line(0) or "it has written nothing"
                raise SettingsError(
                    f"the first task of the run has ended without a result ({words}); {result.parent} "
                    "must be on a disk that the nodes share, and the nodes must have this Python: choose another "
                    "folder with --runs"
                )
            if (now := time.monotonic()) >= look_at:
                look_at = now + POLL_SECONDS
                states = watch.look()
                gone = states == []
                if states and states[0].state == "waits" and now >= say_at:
                    say_at = now + SAY_AGAIN_SECONDS
                    self.say(f"a first task waits for a node: job {job_id} ({states[0].reason})")


def received(server: socket.socket, word: str) -> bool:
    """Wait a short time for a connection, and return whether it brought the word."""
    with contextlib.suppress(OSError):
        connection, _ = server.accept()
        with connection:
            connection.settimeout(LOOK_SECONDS)
            return connection.recv(2 * len(word)) == word.encode()
    return False


def read_result(path: Path) -> tuple[str, str] | None:
    """Return the node and the problem of a task that did not connect; None if there is no such result."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        if found["problem"]:
            return str(found["node"]), str(found["problem"])
    return None
