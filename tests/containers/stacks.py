"""A running stack: started as `make up` does, queried through Prometheus, with processes that the test kills."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from protofleet.coordinator.observe.rounds_file import read_rounds
from tests.containers.engine import Engine

ROOT = Path(__file__).parent.parent.parent
STEP = 5  # Seconds between two points of a query.
PATIENCE = 600.0  # Seconds, on two cores that other programs use too.


class RunningStack:
    def __init__(self, engine: Engine, folder: Path, name: str, *words: str) -> None:
        self.engine, self.folder, self.name, self.words = engine, folder, name, words

    def make(self, job: str, *more: str) -> str:
        done = self.run(job, *more)
        assert done.returncode == 0, f"{job}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def run(self, job: str, *more: str) -> subprocess.CompletedProcess[str]:
        told = self.words if job in ("up", "follow") else ()
        place = ("--folder", str(self.folder), "--name", self.name)
        return subprocess.run(
            [sys.executable, "-m", "protofleet.deploy.stack", job, *place, *told, *more],
            cwd=ROOT, env={**os.environ, "DOCKER_HOST": self.engine.host}, capture_output=True, text=True,
            timeout=PATIENCE,
        )  # fmt: skip

    def rounds(self) -> list[dict[str, Any]]:
        found = list(self.folder.glob("state/coordinator/*/rounds.jsonl"))
        return read_rounds(found[0]) if found else []

    def containers(self) -> list[str]:
        words = (
            "ps",
            "-a",
            "--filter",
            f"label=com.docker.compose.project={self.name}",
            "--format",
            "{{.Names}}",
        )
        return sorted(self.engine.docker(*words).splitlines())

    def state(self, container: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.engine.docker("inspect", container))[0]
        return found

    def kill(self, container: str) -> None:
        """Kill the process in a container with SIGKILL.

        `docker kill` cannot be used, because Docker restarts no container after it.
        """
        self.kill_process(self.state(container)["State"]["Pid"])

    @contextlib.contextmanager
    def held(self, beside: str = "") -> Iterator[None]:
        """Let no round end meanwhile: stop (SIGSTOP) two of the three devices; two answers make a round."""
        devices = [name for name in self.containers() if "-device-" in name and name != beside][:2]
        found = [
            line for name in devices for line in self.engine.docker("top", name, "-eo", "pid").splitlines()
        ]
        numbers = [int(line) for line in found if line.strip().isdecimal()]
        self.signal("STOP", *numbers)  # `docker pause` needs a kernel with a freezer.
        try:
            yield
        finally:
            self.signal("CONT", *numbers)

    def processes(self, container: str, device: str) -> list[int]:
        """Return the engine's process ids of one device in a container of many."""
        lines = self.engine.docker("top", container, "-eo", "pid,args").splitlines()
        return [int(line.split()[0]) for line in lines if f" device /protofleet/devices/{device}/" in line]

    def kill_process(self, number: int) -> None:
        self.signal("KILL", number)

    def signal(self, name: str, *numbers: int) -> None:
        """Send a signal to processes by the engine's ids.

        A process that has ended meanwhile, such as a health check, gets no signal.
        """
        command = 'for id; do kill -s "$0" "$id" || [ ! -e "/proc/$id" ] || exit 1; done'
        words = ("sh", "-c", command, name, *map(str, numbers))
        self.engine.docker("run", "--rm", "--pid=host", self.engine.debian, *words)

    def wait(self, what: str, until: Callable[[], bool], seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while not until():
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} within {seconds:.0f} s; {self.told()}")
            time.sleep(0.25)

    def told(self) -> str:
        lines = []
        for container in self.containers():
            done = self.engine.run("logs", "--tail", "15", container)
            lines.append(
                f"--- {container} {self.state(container)['State']['Status']}\n{done.stdout}{done.stderr}"
            )
        return "\n".join(lines)

    def ask(self, path: str, **given: str) -> Any:
        port = (
            self.engine.docker("port", f"{self.name}-prometheus-1", "9090").splitlines()[0].rsplit(":", 1)[1]
        )
        url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(given)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def series(self, query: str, since: float, until: float) -> list[dict[str, Any]]:
        """Return the series that a panel would draw."""
        found = self.ask("query_range", query=query, start=str(since), end=str(until), step=str(STEP))
        result: list[dict[str, Any]] = found["result"]
        return result
