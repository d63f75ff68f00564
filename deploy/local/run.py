"""`protofleet run`: a broker, a coordinator process and device processes, watched until the run is over."""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from protofleet.coordinator.server.diverged import DivergedError
from protofleet.deploy.brokers.local import LocalBroker, MutualTls, find_broker
from protofleet.deploy.enrol.local_federation import BROKER, LocalFederation, enrol_federation
from protofleet.deploy.errors import DIVERGED, RunError
from protofleet.deploy.local.class_check import agreed_names
from protofleet.deploy.local.experiment import Experiment, coordinator_settings, device_settings
from protofleet.deploy.local.processes import EXIT_SECONDS, Processes
from protofleet.deploy.local.progress import Progress
from protofleet.deploy.report.run_page import final_table, write_report
from protofleet.protocol.settings.reader import SettingsError, decode, encode, read_toml, write_toml
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.transport.address import BrokerAddress, preflight
from protofleet.protocol.wire.class_names import Names
from protofleet.protocol.wire.names import COORDINATOR


def run_experiment(experiment: Experiment, runs: Path) -> Path:
    """Run it to its end, and return the report. RunError where it ends before."""
    folder = runs / experiment.name
    names = agreed_names(experiment)
    show = Progress(experiment.rounds, view=experiment.reports)
    with broker_of_run(experiment, folder) as broker, show as progress:
        progress.say(f"broker: {broker.description}")
        write_settings(experiment, broker, runs, names)
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
class RunningBroker:
    """A broker that answers, and how reports describe it."""

    address: BrokerAddress
    description: str
    fleet: LocalFederation | None = None  # whose certificates it takes

    def address_for(self, name: str) -> BrokerAddress:
        """With the TLS files of this device or coordinator."""
        return self.address if self.fleet is None else replace(self.address, tls=self.fleet.tls(name))


@contextlib.contextmanager
def broker_of_run(experiment: Experiment, folder: Path) -> Iterator[RunningBroker]:
    choice = experiment.broker
    if choice.kind == "external":
        if problem := preflight(choice.address):
            raise RunError(problem)
        enrol_all(experiment, folder)
        yield RunningBroker(choice.address, f"external, {choice.address}")
        return
    fleet = enrol_all(experiment, folder)
    tls = choice.tls != "off" and find_broker(choice.kind).kind == "mosquitto"
    mutual_tls = MutualTls(fleet.folder_of(BROKER), fleet.tls(COORDINATOR)) if tls else None
    kind = "mosquitto" if choice.tls == "on" else choice.kind
    with LocalBroker(folder / "logs", kind=kind, mutual_tls=mutual_tls) as broker:
        yield RunningBroker(broker.address, broker.describe(), fleet if tls else None)


def enrol_all(experiment: Experiment, folder: Path) -> LocalFederation:
    return enrol_federation(folder / "enrolled", experiment.name, experiment.shards)


def write_settings(experiment: Experiment, broker: RunningBroker, runs: Path, names: Names) -> None:
    """Of every process."""
    folder = runs / experiment.name
    coordinator = coordinator_settings(experiment, broker.address_for(COORDINATOR), runs, broker.description)
    _write(folder / "coordinator.toml", replace(coordinator, class_names=names))
    _write(folder / "experiment.toml", experiment)
    for name in experiment.shards:
        device = device_settings(experiment, name, broker.address_for(name), runs)
        _write(folder / "devices" / name / "device.toml", device)


def _write(path: Path, settings: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: a run that was killed here must not be mistaken for one with other settings.
    Disk(durable=False).replace(path, write_toml(encode(settings)).encode())


def watch(experiment: Experiment, processes: Processes, progress: Progress) -> None:
    folder = processes.folder
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
        raise DivergedError(processes.reason("coordinator"))
    if code != 0:
        raise RunError(f"coordinator: {processes.reason('coordinator')}")
    processes.wait()


def check(experiment: Experiment, processes: Processes) -> None:
    """A run that can no longer reach its quorum ends now, with the reason, and not at a deadline."""
    if problem := processes.disk_problem():  # else devices wait for room, and nothing says so
        raise RunError(problem)
    failed = processes.failed()
    failed.pop("coordinator", None)
    if len(experiment.shards) - len(failed) < experiment.rules.quorum:
        name, reason = next(iter(failed.items()))
        raise RunError(f"{name}: {reason}")


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


def claim_folder(experiment: Experiment, runs: Path, fresh: bool, resume: bool = False) -> None:
    """Continue an unfinished run of the same settings; rename the folder of any other earlier run of this name.

    With `resume` it is an error if there is none: a new run in its place would go unnoticed.
    """
    folder = runs / experiment.name
    written = folder / "experiment.toml"
    if resume and (not written.exists() or (folder / "summary.json").exists()):
        state = "is finished" if written.exists() else "does not exist"
        raise SettingsError(
            f"there is nothing to resume: {folder} {state}; without --resume a new run begins"
        )
    if not written.exists():
        folder.mkdir(parents=True, exist_ok=True)
        return
    finished = (folder / "summary.json").exists()
    if not finished and not fresh:
        if not same_settings(written, experiment):
            raise SettingsError(
                f"{folder} holds an unfinished run with other settings; --fresh renames its folder, "
                f"--set name=... gives this one another name"
            )
        print(f"continuing the unfinished run in {folder}")
        return
    renamed = next(p for i in itertools.count(1) if not (p := runs / f"{experiment.name}.{i}").exists())
    folder.rename(renamed)
    print(f"the earlier run is now in {renamed}")
    folder.mkdir(parents=True)


def same_settings(written: Path, experiment: Experiment) -> bool:
    """A file of an earlier version lacks the settings that are newer; they count as at their defaults."""
    try:
        return bool(encode(decode(Experiment, read_toml(written))) == encode(experiment))
    except SettingsError:
        return False
