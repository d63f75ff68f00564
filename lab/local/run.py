"""Implement `protofleet run`: start a broker, a coordinator and devices, and watch them until the run is over."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import selectors
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import torch

from protofleet.coordinator.noise_words import noise_words
from protofleet.coordinator.observe.rounds_file import read_rounds
from protofleet.coordinator.round.policy import Policy
from protofleet.coordinator.round_bytes import describe_budget, round_bytes
from protofleet.coordinator.server.budget_spent import BudgetSpentError
from protofleet.coordinator.server.diverged import DivergedError
from protofleet.coordinator.spool.begun import has_ended_a_round
from protofleet.coordinator.spool.index import INDEX_FILE
from protofleet.coordinator.spool.month import bytes_in_other_runs
from protofleet.coordinator.spool.spent import name_in_ledger
from protofleet.edge_client.compute import available_cores, gpu_pays
from protofleet.edge_client.trainer.slots import Slots
from protofleet.federation.brokers.local import LocalBroker, MutualTls, find_broker
from protofleet.federation.brokers.ports import LOOPBACK
from protofleet.federation.enrol.local_federation import BROKER, LocalFederation, enrol_federation
from protofleet.federation.enrol.local_federation import LOOPBACK as LOOPBACK_NAMES
from protofleet.lab.local.class_check import agreed_names
from protofleet.lab.local.display.display import Display
from protofleet.lab.local.display.progress import ProgressDisplay
from protofleet.lab.local.experiment import (
    Experiment,
    coordinator_settings,
    device_settings,
    experiment_table,
    recorded,
)
from protofleet.lab.local.parties import Parties, parties_of_fleet
from protofleet.lab.local.placement import Placement, Site
from protofleet.lab.local.processes import EXIT_SECONDS, IMPORTED, Processes, uses_cuda
from protofleet.lab.local.sole_use import InUseError, alone, cannot_be_made, sole_use
from protofleet.lab.local.this_machine import ThisMachine
from protofleet.lab.report.run_page import final_table, write_report
from protofleet.lab.trackers.destinations import Destination
from protofleet.lab.trackers.following import tracking
from protofleet.protocol.settings.budget import BudgetSettings
from protofleet.protocol.settings.reader import SettingsError, decode, encode, write_toml
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.transport.address import BrokerAddress, preflight
from protofleet.protocol.user_error import BUDGET_SPENT, DIVERGED
from protofleet.protocol.wire.class_names import Names
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.runtime.children import Interpreters, Starter
from protofleet.runtime.command.errors import RunError, StoppedError
from protofleet.runtime.control_socket import NobodyListensError, send
from protofleet.runtime.launcher import CAN_FORK, Launcher, LauncherError

NOT_SYNCED: Final = "their files are not synced, so a power cut may cost them (devices.durable)"
SYNCED: Final = "their files are synced"
MOST_BROKER_RESTARTS: Final = 3
WANTS_CERTIFICATE: Final = (
    "; for a party's own files set broker.enrolled, the folder of a fleet that the broker knows"
)
END_SECONDS: Final = 30.0  # Time for all devices to end by themselves after the end of the run.
END_POLL_SECONDS: Final = 0.05
NO_FORK: Final = "CUDA does not work after a fork" if CAN_FORK else "fork is safe only on Linux"


@alone
def run_experiment(
    experiment: Experiment,
    runs: Path,
    launcher: Launcher | None = None,
    track: Sequence[Destination] = (),
    display: Display | None = None,
    site: Site | None = None,
) -> Path:
    """Run the experiment until it is finished, and return the path of the report.

    Without a site, the devices work on this machine. If the run fails or is stopped, a RunError is raised.
    """
    try:
        compute = compute_of(experiment)
        with starter_of(experiment, compute, launcher) as starter, tracking(track, runs / experiment.name):
            policy = experiment.effective_policy
            pause = math.inf if policy.hours else policy.pause_seconds
            shown = display or ProgressDisplay(
                experiment.rounds, view=experiment.reports, pause_seconds=pause
            )
            return run_processes(experiment, runs, starter, shown, compute, site or ThisMachine())
    except LauncherError as error:
        raise RunError(
            f"{error}; to start the processes without fork, use --set devices.start=spawn"
        ) from error


@contextlib.contextmanager
def starter_of(experiment: Experiment, compute: str, launcher: Launcher | None) -> Iterator[Starter]:
    """Yield the given launcher or a new launcher, if the experiment's processes can be forked.

    Otherwise yield a starter that starts new interpreters.
    """
    if experiment.devices.start == "spawn" or uses_cuda(compute) or not CAN_FORK:
        yield Interpreters()
    elif launcher is not None:
        yield launcher
    else:
        with Launcher(IMPORTED) as own:
            yield own


def computes_on_gpu(compute: str) -> bool:
    """Return whether the devices compute on a GPU.

    This function makes no call to CUDA, because only the devices may use CUDA.
    """
    return uses_cuda(compute) and torch.version.cuda is not None


def compute_of(experiment: Experiment) -> str:
    """Return the value of `compute` for the devices.

    If it is "auto" and every network is too small to be faster on the GPU, return "cpu".
    """
    if experiment.compute != "auto" or not computes_on_gpu(experiment.compute):
        return experiment.compute
    plan, allowed = experiment.plan, experiment.own_plugins.allowed()
    networks = {experiment.networks.get(name) for name in experiment.shards}
    pays = any(gpu_pays(plan, network and network.taken(allowed), available_cores()) for network in networks)
    return experiment.compute if pays else "cpu"


def run_processes(
    experiment: Experiment, runs: Path, starter: Starter, display: Display, compute: str, site: Site
) -> Path:
    folder = runs / experiment.name
    names = agreed_names(experiment)
    groups = site.groups(experiment, folder, computes_on_gpu(compute))
    display.fold(read_rounds(folder / "rounds.jsonl"))
    began, own_broker = site.begun(folder, groups), broker_of_run(experiment, folder, site.host)
    with began as site, own_broker as broker, display as progress:
        describe_start(experiment, folder, broker, starter, compute, progress.print)
        slots, policy = site.slots(folder, groups), site.policy(experiment)
        write_settings(experiment, broker, runs, names, slots, compute, policy)
        own = partial(experiment.own_plugins.as_named, folder=folder.absolute())
        loads = site.starter(starter, experiment, groups)
        with loads as device_starter, Processes(folder, starter, own) as processes:
            devices = site.placement(groups, processes, device_starter, broker.address, progress.print)
            try:
                watch(experiment, processes, devices, BrokerWatch(broker.own, progress.print), progress)
            except (DivergedError, BudgetSpentError) as error:
                write_report(folder)
                if isinstance(error, BudgetSpentError):
                    display.show_result(final_table(folder))
                raise
            except KeyboardInterrupt:
                raise StoppedError(f"stopped; the same command continues the run in {folder}") from None
            finally:
                processes.ask_to_end()  # The coordinator ends while an engine ends the tasks of the devices.
                devices.stop()
    report = write_report(folder)
    display.show_result(final_table(folder))
    return report


def describe_start(
    experiment: Experiment, folder: Path, broker: RunningBroker, starter: Starter, compute: str,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    """Print how the run starts: its broker, its budget and noise, and settings that were changed for this machine."""
    say(f"broker: {broker.description}")
    if experiment.budget is not None:
        say(f"budget: {forecast(experiment, experiment.budget, folder)}")
    if experiment.dp is not None:
        say(noise_words(experiment.plan, len(experiment.shards)))
    if isinstance(starter, Interpreters) and experiment.devices.start == "fork":
        say(f"processes: each process starts a new interpreter, because {NO_FORK}")
    if compute != experiment.compute:
        say('compute: the CPU, because the GPU would not be faster; compute = "cuda" uses the GPU')


def forecast(experiment: Experiment, budget: BudgetSettings, folder: Path) -> str:
    """Describe how many rounds fit in the budget of each device, after the other runs of this month."""
    used: Mapping[str, int] = {}
    if budget.month_bytes_per_device is not None:
        name = name_in_ledger(folder / "coordinator" / INDEX_FILE)
        try:
            used = bytes_in_other_runs(folder.parent, name, time.time())
        except DamagedError as error:
            raise RunError(str(error)) from None
    of_devices = {device: size for device, size in used.items() if device in experiment.shards}
    devices = experiment.effective_policy.cohort or len(experiment.shards)
    return describe_budget(budget, experiment.plan, round_bytes(experiment.plan), of_devices, devices=devices)


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A broker that accepts connections, with its description for reports."""

    address: BrokerAddress
    description: str
    # The federation whose client certificates the broker requires; None if the broker uses no TLS.
    federation: LocalFederation | None = None
    own: LocalBroker | None = None  # The broker if this run started it; None for an external broker.
    # The parties if an enrolled fleet has their keys; None if the run's own folder has them.
    parties: Parties | None = None

    def address_for(self, name: str) -> BrokerAddress:
        """Return the broker's address with the TLS files of the party `name`: a device or the coordinator."""
        return (
            self.address if self.federation is None else replace(self.address, tls=self.federation.tls(name))
        )


@contextlib.contextmanager
def broker_of_run(experiment: Experiment, folder: Path, host: str = LOOPBACK) -> Iterator[RunningBroker]:
    """Yield the broker of the settings. A broker that this run starts listens on `host`."""
    choice = experiment.broker
    if choice.kind == "external":
        found = external_broker(experiment)
        if found.parties is None:
            enrol_all(experiment, folder)
        yield found
        return
    federation = enrol_all(experiment, folder)
    federation.renew_broker(LOOPBACK_NAMES if host == LOOPBACK else (host, *LOOPBACK_NAMES))
    tls = choice.tls != "off" and find_broker(choice.kind).kind == "mosquitto"
    mutual_tls = MutualTls(federation.folder_of(BROKER), federation.tls(COORDINATOR)) if tls else None
    kind = "mosquitto" if choice.tls == "on" else choice.kind
    with LocalBroker(folder / "logs", kind=kind, mutual_tls=mutual_tls, host=host) as broker:
        yield RunningBroker(broker.address, broker.describe(), federation if tls else None, broker)


def external_broker(experiment: Experiment) -> RunningBroker:
    """Return the broker of the settings; raise RunError if it does not accept the first device of the run."""
    choice = experiment.broker
    parties = parties_of_fleet(Path(choice.enrolled), experiment.shards) if choice.enrolled else None
    words = f"external, {choice.address}{', TLS 1.3 with client certificates' if parties else ''}"
    keys = parties.keys if parties else None
    broker = RunningBroker(choice.address, words, keys, parties=parties)
    if problem := preflight(broker.address_for(next(iter(experiment.shards)))):
        hint = WANTS_CERTIFICATE if parties is None and "wants a client certificate" in problem else ""
        raise RunError(problem + hint)
    return broker


def enrol_all(experiment: Experiment, folder: Path) -> LocalFederation:
    return enrol_federation(folder / "enrolled", experiment.name, experiment.shards)


def write_settings(
    experiment: Experiment, broker: RunningBroker, runs: Path, names: Names, slots: Slots, compute: str = "",
    policy: Policy | None = None,
) -> None:  # fmt: skip
    """Write the settings files of all processes, and the file of the experiment.

    If `compute` is given, it replaces the setting `compute` of the devices. If `policy` is given, it replaces the
    policy of the coordinator, but not the recorded policy.
    """
    folder = runs / experiment.name
    coordinator = coordinator_settings(
        experiment, broker.address_for(COORDINATOR), runs, broker.description, broker.parties, policy
    )
    plugins = experiment.own_plugins
    write_experiment(experiment, folder)
    named = encode(replace(coordinator, class_names=names))
    _write(folder / "coordinator.toml", plugins.kept(named, folder.absolute()))
    for name in experiment.shards:
        device = device_settings(experiment, name, broker.address_for(name), runs, broker.parties)
        own = plugins.kept(
            encode(replace(device, slots=slots, compute=compute or device.compute)), folder.absolute()
        )
        _write(folder / "devices" / name / "device.toml", own)


def write_experiment(experiment: Experiment, folder: Path) -> None:
    """Write the recorded settings and the plug-ins of a run into its folder."""
    experiment.own_plugins.keep(folder)
    _write(folder / "experiment.toml", recorded(experiment))


def _write(path: Path, settings: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # The write is atomic. If a killed process left half of the file, the run would seem to have other settings.
    Disk(durable=False).replace(path, write_toml(settings).encode())


@dataclass
class BrokerWatch:
    """A watcher of the broker that the run has started. If the broker ends, the watcher restarts it.

    After the restart, the coordinator and the devices send again all messages that the old broker had
    stored.
    """

    broker: LocalBroker | None
    say: Callable[[str], None]
    restarts: int = 0

    def look(self) -> None:
        if self.broker is None or not (how := self.broker.ended()):
            return
        if self.restarts == MOST_BROKER_RESTARTS:
            raise RunError(
                f"the broker that this run started has ended {self.restarts + 1} times ({how}); see "
                f"{self.broker.log} for the reason; the same command resumes the run"
            )
        self.restarts += 1
        self.say(
            f"the broker that this run started has ended ({how}); it is started again, and the run goes on"
        )
        self.broker.restart()


class PageLine:
    """The address of the live page, which the coordinator tells when it listens."""

    def __init__(self, folder: Path, wanted: bool, show: Callable[[str], None]) -> None:
        self._folder, self._wanted, self._show = folder / "coordinator", wanted, show

    def look(self) -> None:
        """Show the address, once; the address has a code with which a browser logs in."""
        if not self._wanted:
            return
        with contextlib.suppress(NobodyListensError):
            found = send(self._folder, {"id": "", "verb": "page", "reason": ""})
            self._wanted = False
            self._show(found["words"])


def watch(
    experiment: Experiment,
    processes: Processes,
    devices: Placement,
    broker: BrokerWatch,
    progress: Display,
) -> None:
    folder = processes.folder
    own = ["--own-broker"] if broker.broker is not None else []
    coordinator = processes.start(
        "coordinator", "coordinator", str(folder / "coordinator.toml"), "--events", *own, piped=True
    )
    progress.print(f"devices: {devices}; {SYNCED if experiment.devices.durable else NOT_SYNCED}")
    devices.start()
    assert coordinator.stdout is not None
    page = PageLine(folder, bool(experiment.page_port), progress.show_page)
    quorum = QuorumWatch(experiment, processes, devices, progress.print)

    def on_idle() -> None:
        page.look()
        if not progress.finished:  # Once the run is over, an exit of a device is not a failure.
            broker.look()
            devices.keep_running()
            quorum.look()

    for line in read_lines(coordinator.stdout, on_idle):
        page.look()
        progress.handle_line(processes.reworded(line))
    if (code := coordinator.wait(EXIT_SECONDS)) == DIVERGED:
        raise DivergedError(processes.reason("coordinator"))
    if code == BUDGET_SPENT:
        wait_for_end(devices)
        raise BudgetSpentError(processes.reason("coordinator"))
    if code != 0 or not progress.finished:
        raise RunError(f"coordinator: {processes.reason('coordinator')}")
    wait_for_end(devices)


def wait_for_end(devices: Placement) -> None:
    """Wait some time for all devices to end by themselves after the end of the run."""
    deadline = time.monotonic() + END_SECONDS
    while devices.states() and time.monotonic() < deadline:
        time.sleep(END_POLL_SECONDS)


@dataclass
class QuorumWatch:
    """A watcher of the devices. It tells of each failed device once."""

    experiment: Experiment
    processes: Processes
    devices: Placement
    say: Callable[[str], None]
    _told: set[str] = field(default_factory=set)

    def look(self) -> None:
        """Raise RunError as soon as too few devices are left for a quorum, without waiting for a deadline."""
        # On a full disk, devices pause instead of failing, so the disk is checked first.
        if problem := self.processes.disk_problem():
            raise RunError(problem)
        failed, count = self.devices.failed(), len(self.experiment.shards)
        if count - len(failed) < self.experiment.effective_policy.quorum:
            name, reason = next(iter(failed.items()))
            raise RunError(f"{name}: {reason}")
        for name in failed.keys() - self._told:
            self.say(f"{name}: {failed[name]}; the run goes on with {count - len(failed)} of {count} devices")
        self._told.update(failed)


def read_lines(stream: IO[str], on_idle: Callable[[], None]) -> Iterator[str]:
    """Yield lines as they arrive. `on_idle` is called after each half second without output."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        partial = ""
        while True:
            if not selector.select(timeout=0.5):
                on_idle()
                continue
            data = os.read(stream.fileno(), 1 << 16).decode(errors="replace")
            if not data:
                return
            *lines, partial = (partial + data).split("\n")
            yield from lines


def require_broker(experiment: Experiment) -> None:
    """Raise RunError if the broker of the settings is not there.

    The check is made before the folder of an earlier run is renamed.
    """
    choice = experiment.broker
    if choice.kind != "external":
        find_broker(choice.kind)
    else:
        external_broker(experiment)


@alone
def prepare_folder(
    experiment: Experiment, runs: Path, fresh: bool, resume: bool = False, say: Callable[[str], None] = print
) -> Path | None:
    """Prepare the folder of a run. If the folder of an earlier run was renamed, return its new path.

    An unfinished run with the same settings is continued. The folder of any other earlier run with this name
    is renamed. But if an unfinished run with other settings has ended a round, its folder is renamed only
    with `fresh`, so that no result is lost. With `resume`, an error is raised if there is no run to continue, and
    the budget may differ.
    """
    folder = runs / experiment.name
    written = folder / "experiment.toml"
    if resume and (not written.exists() or (folder / "summary.json").exists()):
        state = "is finished" if written.exists() else "does not exist"
        raise SettingsError(f"there is no run to resume: {folder} {state}; without --resume a new run begins")
    if not written.exists():
        make_folder(folder)
        return None
    finished = (folder / "summary.json").exists()
    if not finished and not fresh:
        if same_settings(written, experiment):
            say(f"continuing the unfinished run in {folder}")
            return None
        other_budget = same_settings(written, experiment, but_budget=True)
        if resume and other_budget:
            say(f"continuing the unfinished run in {folder} with another budget; the bytes so far count")
            return None
        if has_ended_a_round(folder):
            way_out = "continue this run with the new budget with --resume, " if other_budget else ""
            raise SettingsError(
                f"{folder} holds an unfinished run with other settings; {way_out}rename the folder of this run with "
                "--fresh, or give the new run another name with --set name=..."
            )
    earlier = renamed(folder)
    say(f"the earlier run is now in {earlier}")
    folder.mkdir(parents=True)
    return earlier


@contextlib.contextmanager
def giving_back(earlier: Path | None, folder: Path, say: Callable[[str], None] = print) -> Iterator[None]:
    """Restore the folder of the earlier run if the new run fails before it has ended a round.

    The folder is not restored if the new run was stopped, has diverged, or belongs to another process.
    """
    try:
        yield
    except Exception as error:
        kept = isinstance(
            error, StoppedError | InUseError | DivergedError | BudgetSpentError
        ) or has_ended_a_round(folder)
        if earlier is None or kept:
            raise
        with sole_use(folder):
            failed = renamed(folder)
            earlier.rename(folder)
        say(f"the earlier run is in {folder} again, and what this start has left in {failed}")
        if isinstance(error, RunError):  # The message may name a file in the folder that was just renamed.
            raise RunError(str(error).replace(f"{folder}/", f"{failed}/")) from error
        raise


@contextlib.contextmanager
def ready(
    experiment: Experiment, runs: Path, fresh: bool, resume: bool = False, say: Callable[[str], None] = print
) -> Iterator[None]:
    """Check the broker and prepare the folder, and then execute the block, which runs the experiment.

    If the run fails before it has ended a round, the folder of the earlier run gets its old name back.
    """
    require_broker(experiment)
    earlier = prepare_folder(experiment, runs, fresh, resume, say)
    with giving_back(earlier, runs / experiment.name, say):
        yield


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_be_made(folder, error) from None


def renamed(folder: Path) -> Path:
    """Rename a folder and return its new path, which is the old path with the next free number."""
    free = (folder.with_name(f"{folder.name}.{i}") for i in itertools.count(1))
    return folder.rename(next(path for path in free if not path.exists()))


def same_settings(written: Path, experiment: Experiment, but_budget: bool = False) -> bool:
    """Return whether the settings in the file are the settings of the experiment.

    A file of an earlier version may lack some settings. In that case, their defaults are compared. With `but_budget`,
    the budget is not compared, because it changes no result of a round.
    """
    try:
        earlier, now = recorded(decode(Experiment, experiment_table(written))), recorded(experiment)
    except SettingsError:
        return False
    if but_budget:
        earlier, now = ({k: v for k, v in one.items() if k != "budget"} for one in (earlier, now))
    return earlier == now
