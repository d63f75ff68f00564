"""Check that a Docker engine answers on this machine, before a command uses it."""

from __future__ import annotations

import shutil
import subprocess
from typing import Final

from protofleet.runtime.command.errors import RunError

ANSWER_SECONDS: Final = 30.0
WITHOUT: Final = "`make demo` runs the same federation without containers"
UNFETCHED: Final = (
    "If something could not be fetched: use `docker login` for its registry, or set the proxy of the Docker engine"
    " (HTTPS_PROXY)"
)


def require_docker(*plugins: str) -> None:
    if shutil.which("docker") is None:
        raise RunError(
            f"there is no docker on this machine: install Docker with its compose and buildx plugins; {WITHOUT}"
        )
    for plugin in plugins:
        if _asked(plugin, "version").returncode:
            raise RunError(
                f"docker has no {plugin} plugin; install docker-{plugin}-plugin (Debian 13: docker-{plugin})"
            )
    if (done := _asked("version", "--format", "{{.Server.Version}}")).returncode:
        said = (done.stderr.strip().splitlines() or ["no error message"])[-1][:200]
        raise RunError(
            f"the Docker engine does not answer ({said}): start it (`systemctl start docker`), or set DOCKER_HOST "
            f"to its address; {WITHOUT}"
        )


def _asked(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["docker", *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer in {ANSWER_SECONDS:g} s")
