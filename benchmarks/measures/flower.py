"""Compare Flower's real processes with our FedAvg in benchmarks/programs/rounds.py. One run measures both systems.

Flower runs a superlink and ten supernodes on the loopback without encryption, as its guide starts them, in its own
virtual environment with Flower and NumPy. Its app does not train and does not need torch, so the app is as light as
an app of Flower can be. Our devices load torch and train a real network. In Flower, telemetry, the check for updates
and `uv sync` for every task are switched off. No other setting of Flower is changed.

A round of Flower is timed from the end of the previous round to its own end. A round of protofleet is timed from the
task to the last update. The same proxy counts the bytes of both systems. The proxy is in front of the superlink or
the broker, and counts from the moment when all devices are present to the end of the last round. The proxy counts all
bytes of the devices' TCP streams, including polls. Bytes between Flower's processes of one device are not counted.

Idle memory is the memory of all processes before the first round, when all devices are present. RSS counts
shared pages in each process, and PSS counts them once.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.harness.measure import Figure, MeasureError
from benchmarks.harness.processes import LOOPBACK, CountingProxy, Family, listens
from benchmarks.harness.trees import ROOT, Tree
from benchmarks.programs.counted import payload
from benchmarks.programs.rounds import DEVICES, MODEL, ROUNDS
from protofleet.federation.brokers.ports import free_port

VERSION = "1.41.0"  # The version is fixed, because Flower's command line changes every few versions.
PEER = f"Flower {VERSION}"
WANTED = (f"flwr=={VERSION}", "numpy>=2,<3")
# These limits are long enough for a busy machine, which needs ten times as long as an idle machine.
INSTALL_SECONDS, START_SECONDS, LIMIT_SECONDS = 600.0, 600.0, 1800.0
SHAPES = [list(w.shape) for w in MODEL.model().state_dict().values()]
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
CONFIG = """\
[superlink]
default = "bench"

[superlink.bench]
address = "{address}"
insecure = true
"""


class NotInstalled(Exception):  # noqa: N818
    pass


@dataclass(frozen=True)
class Flower:
    devices: int = DEVICES
    rounds: int = ROUNDS
    name: str = "flower"
    what: str = (
        f"a FedAvg round with {DEVICES} devices, 53,002 parameters, trivial training, compared with {PEER}'s"
    )
    figures: ClassVar = {
        "round over Flower's": Figure("", steady=True),
        "memory when idle over Flower's": Figure("", steady=True),
        "bytes through the sockets / payload": Figure("", steady=True),
        "Flower's bytes / payload": Figure("", steady=True),
    }

    def take(self, tree: Tree, folder: Path) -> dict[str, float]:
        try:
            theirs = self._flower(environment().parent, folder / "flower")
        except (NotInstalled, RuntimeError) as error:
            raise MeasureError(f"Flower: {error}") from None
        try:
            ours = self._ours(tree, folder / "ours")
        except RuntimeError as error:
            raise MeasureError(str(error)) from None
        return {
            "round over Flower's": ours["round_seconds_median"] / theirs["round_seconds_median"],
            "memory when idle over Flower's": ours["idle"]["pss_MB"] / theirs["idle"]["pss_MB"],
            "bytes through the sockets / payload": ours["bytes_over_payload"],
            "Flower's bytes / payload": theirs["bytes_over_payload"],
        }

    def _ours(self, tree: Tree, folder: Path) -> dict[str, Any]:
        folder.mkdir()
        with Family(folder, tree.environment()) as family:
            sizes = (str(self.devices), str(self.rounds))
            command = tree.command("benchmarks.programs.counted", str(folder), *sizes)
            told = family.finish("ours", LIMIT_SECONDS, *command)
            return dict(json.loads(told.splitlines()[-1]))

    def _flower(self, programs: Path, folder: Path) -> dict[str, Any]:
        folder.mkdir()
        with contextlib.ExitStack() as stack:
            # A superlink starts its helper programs by name, so their folder must be in PATH.
            path = f"{programs}{os.pathsep}{os.environ['PATH']}"
            family = stack.enter_context(Family(folder, {**QUIET, "FLWR_HOME": str(folder), "PATH": path}))
            link = superlink(family)
            proxy = stack.enter_context(CountingProxy(link))
            supernodes(family, proxy.port, self.devices)
            idle = family.settled_memory()
            notes = submit(family, link, self.devices, self.rounds)
            marks = follow(notes, proxy, self.rounds)
            if len(marks) < 2:
                raise RuntimeError(f"no round of Flower has ended; {family.last_words()}")
        seconds = [after - before for (before, _), (after, _) in itertools.pairwise(marks)]
        return {
            "rounds": len(seconds),
            "round_seconds_median": round(statistics.median(seconds), 2),
            "round_seconds": [round(s, 2) for s in seconds],
            "bytes_over_payload": (marks[-1][1] - marks[0][1]) / (payload(self.devices) * len(seconds)),
            "idle": idle,
        }


def environment(name: str = "flower-venv", wanted: Sequence[str] = WANTED) -> Path:
    """Return the Python of a virtual environment with Flower.

    The environment is kept for later runs, with a file that names what has been installed in it.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "protofleet" / name
    python, installed = folder / "bin" / "python", folder / "installed"
    if installed.exists() and installed.read_text() == "\n".join(wanted):
        return python
    try:
        if not python.exists():
            asked([sys.executable, "-m", "venv", str(folder)])
        asked([str(python), "-m", "pip", "install", "--quiet", *wanted])
        installed.write_text("\n".join(wanted))
    except NotInstalled:
        shutil.rmtree(folder, ignore_errors=True)  # An incomplete environment would fail in every later run.
        raise
    return python


def asked(command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout or "it said nothing").strip().splitlines()
        raise NotInstalled(f"{' '.join(command[1:])}: {said[-1]}") from None
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{' '.join(command[1:])}: not finished after {INSTALL_SECONDS:.0f} s") from None


def superlink(family: Family) -> int:
    port = free_port()
    family.start("superlink", "flower-superlink", "--insecure", "--host", LOOPBACK, "--port", str(port))
    until("the superlink listens", lambda: listens(port), family)
    return port


def supernodes(family: Family, link: int, devices: int) -> None:
    place = ("--superlink", f"{LOOPBACK}:{link}", "--host", LOOPBACK)
    logs = [
        family.start(f"supernode-{i}", "flower-supernode", "--insecure", *place, "--port", str(free_port()))
        for i in range(devices)
    ]
    until(
        "all supernodes are registered",
        lambda: all("SuperNode ID" in log.read_text() for log in logs),
        family,
    )


def until(what: str, true: Callable[[], bool], family: Family) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"after {START_SECONDS:.0f} s, this is still not true: {what}; {family.last_words()}"
            )
        time.sleep(0.2)


def submit(family: Family, link: int, devices: int, rounds: int) -> Path:
    """Give the app to the superlink, and return the file that will contain the time at the end of each round.

    The server part of the app writes these times.
    """
    (family.folder / "config.toml").write_text(CONFIG.format(address=f"{LOOPBACK}:{link}"))
    notes, wish = family.folder / "notes", family.folder / "run.toml"
    wish.write_text(
        f'shapes = "{json.dumps(SHAPES)}"\ndevices = {devices}\nrounds = {rounds}\nnotes = "{notes}"\n'
    )
    app = ROOT / "benchmarks" / "flower_app"
    family.finish("run", START_SECONDS, "flwr", "run", str(app), "bench", "--run-config", str(wish))
    return notes


def follow(notes: Path, proxy: CountingProxy, rounds: int) -> list[tuple[float, int]]:
    """Return a pair for the beginning of the first round, and a pair for the end of each round.

    A pair has a time and the number of bytes that the proxy has counted until this time.
    """
    marks: list[tuple[float, int]] = []
    deadline = time.monotonic() + START_SECONDS
    while len(marks) <= rounds and time.monotonic() < deadline:
        ended = notes.read_text().split("\n")[:-1] if notes.exists() else []
        if ended and not marks:
            deadline = time.monotonic() + LIMIT_SECONDS
        marks += [(float(moment), proxy.bytes) for moment in ended[len(marks) :]]
        time.sleep(0.1)
    return marks
