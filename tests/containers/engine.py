"""A container engine for the tests: the running one, or a dockerd of the tests that ends with them.

That dockerd keeps its images in a separate folder (PROTOFLEET_ENGINE, by default ~/.cache/protofleet/engine),
touches no other engine, and serves all test processes: the first one starts it, and the last one stops it.
Nothing is installed here; `make container-tools` does that.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from tests.containers.bases import debian_base, python_base

START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 20.0
INSTALL: Final = "make container-tools"


class NoEngine(Exception):
    """The reason why no container can run here, in one line."""


class Engine:
    """A client of an engine; `docker(*words)` runs one docker command and returns what it printed."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.environment = {
            **os.environ,
            "DOCKER_HOST": host,
            "DOCKER_BUILDKIT": "1",
            "BUILDKIT_PROGRESS": "plain",
        }
        self.base = ""  # The image to build on: a Debian with Python and pip.
        self.debian = ""
        self.folder = Path()

    def docker(self, *words: str, check: bool = True, seconds: float = 600, stdin: str | None = None) -> str:
        done = self.run(*words, seconds=seconds, stdin=stdin)
        if check and done.returncode:
            told = f"{done.stdout}\n{done.stderr}".strip()
            raise AssertionError(f"docker {' '.join(words)} ended with {done.returncode}: {told[-3000:]}")
        return done.stdout.strip()

    def run(
        self, *words: str, seconds: float = 600, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", *words],
            env=self.environment, input=stdin, capture_output=True, text=True, timeout=seconds,
        )  # fmt: skip

    def has_image(self, name: str) -> bool:
        return self.run("image", "inspect", name).returncode == 0

    def debian13(self) -> str:
        """Return the image of Debian 13, made on request because few tests need it."""
        return debian_base(self, self.folder, "trixie")

    def make_bases(self, folder: Path) -> None:
        self.folder = folder
        self.debian = debian_base(self, folder)
        self.base = python_base(self, folder)


@contextlib.contextmanager
def running_engine() -> Iterator[Engine]:
    """Yield an engine with its base images; raise NoEngine with the reason if there is none."""
    if shutil.which("docker") is None:
        raise NoEngine(f"there is no docker on this machine; {INSTALL}")
    folder = Path(os.environ.get("PROTOFLEET_ENGINE", Path.home() / ".cache/protofleet/engine"))
    folder.mkdir(parents=True, exist_ok=True)
    found = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    with _one_at_a_time(folder), contextlib.ExitStack() as stack:
        engine = Engine(found)
        if problem := _problem(engine):
            engine = stack.enter_context(_own(folder, f"no engine answers on {found} ({problem})"))
        _check_plugins(engine)
        engine.make_bases(folder)
        keep = stack.pop_all()
    with keep:
        yield engine


@contextlib.contextmanager
def _own(folder: Path, why: str) -> Iterator[Engine]:
    """Yield a dockerd of the tests, shared by all processes that hold the lock on `users`."""
    engine = Engine(f"unix://{folder}/docker.sock")
    with (folder / "users").open("a") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        if _problem(engine):
            _start(engine, folder, why)
        try:
            yield engine
        finally:
            _stop_if_last(users, folder)


def _start(engine: Engine, folder: Path, why: str) -> None:
    if os.geteuid() != 0:
        raise NoEngine(f"{why}, and only root can start one; start Docker, or run the tests as root")
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
    if (program := shutil.which("dockerd", path=path)) is None:
        raise NoEngine(f"{why}, and there is no dockerd to start; {INSTALL}")
    places = (
        "--data-root",
        f"{folder}/data",
        "--exec-root",
        f"{folder}/exec",
        "--pidfile",
        f"{folder}/dockerd.pid",
    )
    command = [program, "--host", engine.host, *places]
    with (folder / "dockerd.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while problem := _problem(engine):
        if process.poll() is not None or time.monotonic() > deadline:
            raise NoEngine(f"{why}, and dockerd does not start here ({problem}); see {folder}/dockerd.log")
        time.sleep(0.1)


def _stop_if_last(users: IO[str], folder: Path) -> None:
    """Stop the engine if no other process uses it.

    A process that comes meanwhile waits for the lock, and starts another.
    """
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        number = int((folder / "dockerd.pid").read_text())
        os.kill(number, 15)
    except (OSError, ValueError):  # Other processes still use it, or it has ended.
        return
    deadline = time.monotonic() + STOP_SECONDS
    while (folder / "dockerd.pid").exists() and time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(number, os.WNOHANG)
        time.sleep(0.05)


def _problem(engine: Engine) -> str:
    try:
        done = engine.run("version", "--format", "{{.Server.Version}}", seconds=10)
    except subprocess.TimeoutExpired:
        return "it does not answer within 10 s"
    return done.stderr.strip().splitlines()[-1] if done.returncode and done.stderr.strip() else ""


def _check_plugins(engine: Engine) -> None:
    for plugin in ("buildx", "compose"):
        if engine.run(plugin, "version").returncode:
            raise NoEngine(f"the docker client has no {plugin} plugin; {INSTALL}")


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
