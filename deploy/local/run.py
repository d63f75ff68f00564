"""`protofleet run`: a broker, a coordinator process and device processes, watched until the run is over."""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from protofleet.coordinator.server.diverged import DivergedError
from protofleet.deploy.brokers.local import LocalBroker, Secured, find_broker
from protofleet.deploy.enrol.fleet import BROKER, SimulatedFleet, enrol_fleet
from protofleet.deploy.errors import RunError
from protofleet.deploy.exit_codes import DIVERGED
from protofleet.deploy.local import orphans
from protofleet.deploy.local.class_check import agreed_names
from protofleet.deploy.local.experiment import Experiment, coordinator_settings, device_settings
from protofleet.deploy.local.progress import Progress
from protofleet.deploy.report.page import final_table, write_report
from protofleet.protocol.settings.reader import SettingsError, decode, encode, read_toml, write_toml
from protofleet.protocol.storage.disk import LITTLE
from protofleet.protocol.transport.address import BrokerAddress, preflight
from protofleet.protocol.wire.class_names import Names
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.runtime import children

EXIT_SECONDS = 10.0
WAITS = "until there is room"  # the last word of a coordinator or device whose disk is full


def run_experiment(experiment: Experiment, runs: Path) -> Path:
    """Run it to its end, and return the report. RunError where it ends before."""
    folder = runs / experiment.name
    names = agreed_names(experiment)
    show = Progress(experiment.rounds, view=experiment.reports)
    with local_broker(experiment, folder) as broker, show as progress:
        progress.say(f"broker: {broker.words}")
        prepare(experiment, broker, runs, names)
        with Processes(folder) as processes:
            try:
                watch(experiment, processes, progress)
            except DivergedError:
                write_report(folder)
                raise
            except KeyboardInterrupt:
                raise RunError(f"stopped; the same command continues {folder} where it stands") from None
    report = write_report(folder)
    print(final_table(folder))
    return report


@dataclass(frozen=True, slots=True)
class Reached:
    """A broker that answers, and how reports describe it."""

    address: BrokerAddress
    words: str
    fleet: SimulatedFleet | None = None  # whose certificates it takes

    def by(self, name: str) -> BrokerAddress:
        """As this party reaches it."""
        return self.address if self.fleet is None else replace(self.address, tls=self.fleet.tls(name))


@contextlib.contextmanager
def local_broker(experiment: Experiment, folder: Path) -> Iterator[Reached]:
    choice = experiment.broker
    if choice.kind == "external":
        if problem := preflight(choice.address):
            raise RunError(problem)
        enrolled(experiment, folder)
        yield Reached(choice.address, f"external, {choice.address}")
        return
    fleet = enrolled(experiment, folder)
    tls = choice.tls != "off" and find_broker(choice.kind).kind == "mosquitto"
    secured = Secured(fleet.party(BROKER), fleet.tls(COORDINATOR)) if tls else None
    kind = "mosquitto" if choice.tls == "on" else choice.kind
    with LocalBroker(folder / "logs", kind=kind, secured=secured) as broker:
        yield Reached(broker.address, broker.describe(), fleet if tls else None)


def enrolled(experiment: Experiment, folder: Path) -> SimulatedFleet:
    return enrol_fleet(folder / "enrolled", experiment.name, experiment.shards)


def prepare(experiment: Experiment, broker: Reached, runs: Path, names: Names) -> None:
    """Write every process's settings."""
    folder = runs / experiment.name
    written = coordinator_settings(experiment, broker.by(COORDINATOR), runs, broker.words)
    settings = replace(written, class_names=names)
    (folder / "coordinator.toml").write_text(write_toml(encode(settings)))
    (folder / "experiment.toml").write_text(write_toml(encode(experiment)))
    for name in experiment.shards:
        device = device_settings(experiment, name, broker.by(name), runs)
        target = folder / "devices" / name / "device.toml"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(write_toml(encode(device)))


class Processes:
    """The children of a run. They have sessions of their own, so that Ctrl-C reaches only their parent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._logs = folder / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._children: dict[str, subprocess.Popen[str]] = {}
        self._files: list[IO[str]] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        for child in self._children.values():
            if child.poll() is None:
                child.terminate()
        deadline = time.monotonic() + EXIT_SECONDS
        for child in self._children.values():
            try:
                child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        for file in self._files:
            file.close()

    def start(self, name: str, *arguments: str, piped: bool = False) -> subprocess.Popen[str]:
        log = (self._logs / f"{name}.log").open("a")
        self._files.append(log)
        command = children.command("protofleet", *arguments)
        self._children[name] = child = subprocess.Popen(
            command, stdout=subprocess.PIPE if piped else log, stderr=log, stdin=subprocess.DEVNULL,
            text=True, start_new_session=True, env=orphans.of_this_process(),
        )  # fmt: skip
        return child

    def failed(self) -> dict[str, str]:
        """Children that ended in error, each with its last word."""
        return {n: self.last_word(n) for n, c in self._children.items() if c.poll() not in (None, 0)}

    def no_room(self) -> str:
        waiting = any(self._last_line(name).endswith(WAITS) for name in self._children)
        if not waiting and shutil.disk_usage(self._folder).free >= LITTLE:
            return ""
        return f"the disk that holds {self._folder} is full; make room and run the same command again"

    def last_word(self, name: str) -> str:
        """Why a child ended, as its log says; on a full disk the log may say nothing."""
        if words := self.no_room():
            return words
        return self._last_line(name).removeprefix("protofleet: ") or "it said nothing"

    def _last_line(self, name: str) -> str:
        lines = (self._logs / f"{name}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def wait(self) -> None:
        """Give everybody the time to end by himself."""
        deadline = time.monotonic() + EXIT_SECONDS
        for child in self._children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.1, deadline - time.monotonic()))


def watch(experiment: Experiment, processes: Processes, progress: Progress) -> None:
    folder = processes._folder
    coordinator = processes.start(
        "coordinator", "coordinator", str(folder / "coordinator.toml"), "--events", piped=True
    )
    for name in experiment.shards:
        processes.start(name, "device", str(folder / "devices" / name / "device.toml"))
    assert coordinator.stdout is not None

    def idle() -> None:
        if not progress.over:  # how a device ends after the run harms nothing
            check(experiment, processes)

    for line in lines_of(coordinator.stdout, idle):
        progress.line(line)
    if (code := coordinator.wait(EXIT_SECONDS)) == DIVERGED:
        raise DivergedError(processes.last_word("coordinator"))
    if code != 0:
        raise RunError(f"coordinator: {processes.last_word('coordinator')}")
    processes.wait()


def check(experiment: Experiment, processes: Processes) -> None:
    """A run that can no longer reach its quorum ends now, with the reason, and not at a deadline."""
    if words := processes.no_room():  # devices would wait for room, and nobody would know for what
        raise RunError(words)
    failed = processes.failed()
    failed.pop("coordinator", None)
    if len(experiment.shards) - len(failed) < experiment.rules.quorum:
        name, word = next(iter(failed.items()))
        raise RunError(f"{name}: {word}")


def lines_of(stream: IO[str], idle: Callable[[], None]) -> Iterator[str]:
    """Lines as they come; `idle` is called whenever there has been none for a moment."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        rest = ""
        while True:
            if not selector.select(timeout=0.5):
                idle()
                continue
            data = os.read(stream.fileno(), 1 << 16).decode(errors="replace")
            if not data:
                return
            *lines, rest = (rest + data).split("\n")
            yield from lines


def make_way(experiment: Experiment, runs: Path, fresh: bool, resume: bool = False) -> None:
    """Continue an unfinished run of the same settings; put any other earlier run of this name aside.

    With `resume` it is an error if there is none: whoever says so must not find a new run instead.
    """
    folder = runs / experiment.name
    written = folder / "experiment.toml"
    if resume and (not written.exists() or (folder / "summary.json").exists()):
        words = "is finished" if written.exists() else "does not exist"
        raise SettingsError(
            f"there is nothing to resume: {folder} {words}; without --resume a new run begins"
        )
    if not written.exists():
        folder.mkdir(parents=True, exist_ok=True)
        return
    finished = (folder / "summary.json").exists()
    if not finished and not fresh:
        if not same(written, experiment):
            raise SettingsError(
                f"{folder} holds an unfinished run with other settings; --fresh puts it aside, "
                f"--set name=... gives this one another name"
            )
        print(f"continuing the unfinished run in {folder}")
        return
    aside = next(p for i in itertools.count(1) if not (p := runs / f"{experiment.name}.{i}").exists())
    folder.rename(aside)
    print(f"the earlier run was put aside as {aside}")
    folder.mkdir(parents=True)


def same(written: Path, experiment: Experiment) -> bool:
    """What an earlier version wrote lacks the settings that have come since, which then are at their defaults."""
    try:
        return bool(encode(decode(Experiment, read_toml(written))) == encode(experiment))
    except SettingsError:
        return False
