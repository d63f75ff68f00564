"""An operator's machine: it runs the commands of the pages with the addresses of real hosts, and confirms them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.containers.devices import Bench, FakeDevice

ROOT: Final = Path(__file__).parents[2]
PROGRAMS: Final = Path(sys.executable).parent
PATIENCE: Final = 1800  # Seconds for a command; three hosts may fetch torch, one after the other.
RUNS: Final = "/var/lib/protofleet-coordinator/runs"


def commands_of(page: str) -> dict[str, list[str]]:
    """Return the shell lines of a page, by their section."""
    text = (ROOT / "docs" / page).read_text()
    found = dict[str, list[str]]()
    for section in re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]:
        title = section.splitlines()[0]
        blocks = re.findall(r"^```sh long\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
        found[title] = [line for block in blocks for line in block.splitlines() if line.strip()]
    return found


class Desk:
    """The desk of an operator; `hosts` maps the addresses of the pages to hosts."""

    def __init__(self, folder: Path, bench: Bench, dependencies: str = "system") -> None:
        """Set up a desk.

        With "index" the hosts fetch their software, as the page says. With "system" they use the packages
        that the vendor has mounted.
        """
        self.folder, self.bench, self.hosts = folder, bench, dict[str, FakeDevice]()
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
        self.options = ["--key", str(bench.key)]
        if dependencies != "index":  # The command init writes "index" by itself.
            self.options += ["--dependencies", dependencies]

    def say(self, line: str, check: bool = True) -> str:
        for shown, host in self.hosts.items():
            line = re.sub(rf"{re.escape(shown)}\b", host.address, line)
        words = shlex.split(line, comments=True)
        if words[0] == "make":
            done_by = f"{PROGRAMS.parent}"
            words[1:1] = ["-s", "-f", str(ROOT / "Makefile"), f"VENV={done_by}", "-o", f"{done_by}/.run"]
        if words[0] == "ssh":
            return self.hosts_by_address[words[1].removeprefix("root@")].sh(shlex.join(words[2:]))
        if "init" in words:
            options = self.options
            words = (
                [*words[:-1], f"{words[-1]} {shlex.join(options)}"] if words[0] == "make" else words + options
            )
        began, (operator, terminal) = time.monotonic(), os.openpty()
        with os.fdopen(operator, "w") as typed:
            typed.write("y\n" * 20)
            typed.flush()
            done = subprocess.run(
                words, cwd=self.folder, stdin=terminal, capture_output=True, text=True, timeout=PATIENCE,
                env=self.environment,
            )  # fmt: skip
            os.close(terminal)
        sys.__stderr__.write(f"\n{time.monotonic() - began:6.1f} s  {line}\n")
        assert "Traceback" not in done.stderr, done.stderr
        assert not check or done.returncode == 0, (
            f"{line} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
        return done.stdout + done.stderr

    def rounds(self, run: str = "first") -> list[dict[str, Any]]:
        text = self.hub.sh(f"cat {RUNS}/{run}/rounds.jsonl 2>/dev/null || true")
        return [row for row in map(json.loads, text.splitlines()) if row["kind"] == "training"]

    @property
    def hosts_by_address(self) -> dict[str, FakeDevice]:
        return {host.address: host for host in self.hosts.values()}

    @property
    def hub(self) -> FakeDevice:
        return self.hosts["10.0.0.10"]

    def wait(self, what: Callable[[], Any], seconds: float = 120.0) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := what()):
            assert time.monotonic() < deadline, f"not within {seconds} s"
            time.sleep(0.2)
        return found
