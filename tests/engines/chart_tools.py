"""The programs that render and check a chart, each installed by its hashes into its own environment."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pytest

HERE: Final = Path(__file__).parent / "chart"
LOCK: Final = HERE / "lock.txt"
NODE_FILES: Final = ("package.json", "package-lock.json", "pod_monitor.mjs")
INSTALL_SECONDS: Final = 300.0
CHECK_SECONDS: Final = 120.0


class NoChartTools(Exception):
    """The reason why a chart cannot be checked here, in one line."""


@dataclass(frozen=True)
class ChartTools:
    folder: Path

    def render(self, chart: Path, values: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the messages of Helm's lint and the objects of a chart."""
        found: dict[str, Any] = json.loads(self._checked("render", str(chart), json.dumps(values or {})))
        return found

    def problems(self, objects: Sequence[Mapping[str, Any]], versions: Sequence[str]) -> list[list[str]]:
        """Return the problem of each object for each version of Kubernetes; "" if there is none."""
        found: list[list[str]] = json.loads(self._checked("validate", *versions, given=json.dumps(objects)))
        return found

    def pod_monitor_problem(self, found: Mapping[str, Any]) -> str:
        words = [_program("node"), str(self._node / "pod_monitor.mjs")]
        done = subprocess.run(
            words,
            input=json.dumps(found),
            capture_output=True,
            text=True,
            timeout=CHECK_SECONDS,
            cwd=self._node,
        )
        assert done.returncode in (0, 1), done.stderr
        return done.stderr.strip()

    def _checked(self, *words: str, given: str = "") -> str:
        command = [str(self._python), str(HERE / "check.py"), *words]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=CHECK_SECONDS)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    @cached_property
    def _python(self) -> Path:
        """Return the interpreter of an environment with the packages of lock.txt; make it if it is missing."""
        made = self.folder / f"python-{_digest(LOCK)}"
        with _alone(self.folder):
            if not (made / "done").exists():
                venv.create(made, with_pip=True, clear=True)
                pip = [str(made / "bin/python"), "-m", "pip", "-q", "--disable-pip-version-check", "install"]
                _run([*pip, "--require-hashes", "--only-binary=:all:", "--no-deps", "-r", str(LOCK)], made)
                (made / "done").touch()
        return made / "bin" / "python"

    @cached_property
    def _node(self) -> Path:
        """Return a folder with the packages of package-lock.json; npm checks their hashes and runs no scripts."""
        made = self.folder / f"node-{_digest(*(HERE / name for name in NODE_FILES))}"
        with _alone(self.folder):
            if not (made / "done").exists():
                shutil.rmtree(made, ignore_errors=True)
                made.mkdir()
                for name in NODE_FILES:
                    shutil.copy(HERE / name, made)
                _run([_program("npm"), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], made)
                (made / "done").touch()
        return made


def chart_tools() -> ChartTools:
    folder = Path(os.environ.get("PROTOFLEET_CHART_TOOLS", Path.home() / ".cache/protofleet/chart-tools"))
    folder.mkdir(parents=True, exist_ok=True)
    return ChartTools(folder)


def skip_or_fail(why: NoChartTools) -> None:
    if os.environ.get("ENGINES") == "required":
        pytest.fail(f"the chart cannot be checked: {why}")
    pytest.skip(f"the chart cannot be checked: {why}")


def _alone(folder: Path) -> Any:
    """Return a file that holds a lock until it is closed, so that test processes install one after the other."""
    lock = (folder / "lock").open("a")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def _program(name: str) -> str:
    if (found := shutil.which(name)) is None:
        raise NoChartTools(f"there is no {name} on this machine; install Node.js with npm")
    return found


def _run(command: list[str], folder: Path) -> None:
    name = "pip" if "pip" in command else Path(command[0]).name
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        raise NoChartTools(
            f"{Path(command[0]).name} did not install the packages in {INSTALL_SECONDS:g} s"
        ) from None
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise NoChartTools(f"{name} did not install the packages: {last[-1][:200]}")
