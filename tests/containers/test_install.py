"""The last line of `make container-tools`, with false programs."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("install.sh")
TOOLS = ("dockerd", "debootstrap", "prometheus", "rsync", "ssh-keygen")


@pytest.mark.parametrize("runs", [True, False])
def test_the_last_line_lists_the_installed_tools_and_the_address_of_the_engine(tmp_path, runs):
    for name in TOOLS:
        (tmp_path / name).write_text("#!/bin/sh\n")
    (tmp_path / "docker").write_text(f"#!/bin/sh\n[ $1 != info ] || exit {int(not runs)}\n")
    for path in tmp_path.iterdir():
        path.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PROTOFLEET_ENGINE": "/srv/engine",
    }
    done = subprocess.run(["sh", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    assert line.startswith("there are docker with compose and buildx, debootstrap, prometheus")
    assert ("an engine answers docker info" in line) == runs
    assert ("with DOCKER_HOST=unix:///srv/engine/docker.sock" in line) != runs
