"""Implement `protofleet simulate`: run an experiment in virtual time, and write its results as a run's folder."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.record import RoundRecord
from protofleet.coordinator.observe.rounds_file import RoundsFile, read_rounds
from protofleet.coordinator.observe.summary import summarise
from protofleet.coordinator.observe.summary_file import write_summary
from protofleet.coordinator.round.pace import DAY_SECONDS
from protofleet.coordinator.server.diverged import DivergedError
from protofleet.edge_client.compute import available_cores
from protofleet.edge_client.data.shard import Shard, Shards
from protofleet.edge_client.state.data_file import write_data_file
from protofleet.lab.local.class_check import agreed_names
from protofleet.lab.local.data_check import require_data, require_public_images
from protofleet.lab.local.experiment import Experiment, coordinator_settings, recorded
from protofleet.lab.local.run import prepare_folder, same_settings
from protofleet.lab.local.sole_use import alone
from protofleet.lab.report.run_page import write_report
from protofleet.lab.report.virtual_runs import VIRTUAL, costs_words, duration
from protofleet.lab.virtual.costs import VirtualCosts, summed
from protofleet.lab.virtual.federation import VirtualFederation
from protofleet.lab.virtual.fleet import virtual_fleet
from protofleet.lab.virtual.jobs import JobBuilder, JobHost
from protofleet.lab.virtual.processes import job_host
from protofleet.lab.virtual.profiles import ReadProfiles
from protofleet.methods.contract.torch_setup import compute_as_a_device
from protofleet.protocol.security.envelope import seals
from protofleet.protocol.settings.reader import SettingsError, write_toml
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.wire.class_names import Names
from protofleet.runtime.command.errors import RunError, StoppedError
from protofleet.runtime.installation.provenance import software
from protofleet.runtime.installation.version import installed_version

PROFILES: Final = "profiles.toml"
BEGINS: Final = 1_767_571_200.0  # Unix time of the first midnight of a virtual run: 5 January 2026, UTC.
MOST_DAYS: Final = 3.0  # Days of virtual time after which a run is given up if no round has ended.
MONTH_DAYS: Final = 32.0  # The same for a run that may wait for the next month of its budget.
BROKER: Final = "virtual: simulated broker, boards and lines of a profiles file"


def named(experiment: Experiment) -> Experiment:
    """Return the experiment with the name of its virtual run."""
    return replace(experiment, name=f"{experiment.name}-{VIRTUAL}")


def finished_before(experiment: Experiment, runs: Path, read: ReadProfiles) -> bool:
    """Return whether a virtual run with this name, these settings and these profiles has finished."""
    folder = runs / experiment.name
    if not (folder / "summary.json").exists() or not same_settings(folder / "experiment.toml", experiment):
        return False
    written = folder / PROFILES
    return written.exists() and written.read_text() == read.text


def require_simulated(experiment: Experiment) -> None:
    """Raise SettingsError for settings whose results a virtual run cannot show."""
    if experiment.secagg is not None:
        raise SettingsError("secagg is set, but masked sums have no virtual time yet; leave out secagg")
    if experiment.dp is not None:
        raise SettingsError(
            "dp is set, but its noise is drawn anew in each run, so two virtual runs would differ; leave out dp"
        )


def simulate(
    experiment: Experiment,
    runs: Path,
    read: ReadProfiles,
    say: Callable[[str], None] = print,
    workers: int | None = None,
) -> Path:
    """Run the experiment in virtual time, and return the path of the report.

    An earlier folder of this name is renamed first. `workers` is the number of processes that train; None means the
    number of cores.
    """
    require_simulated(experiment)
    names = agreed_names(experiment)
    require_data([experiment])
    require_public_images(experiment)
    virtual_fleet(read, list(experiment.shards), experiment.seed, experiment.effective_policy.quorum)
    prepare_folder(experiment, runs, fresh=True, say=say)
    return run_prepared(experiment, runs, read, names, say, workers or available_cores())


@alone
def run_prepared(
    experiment: Experiment,
    runs: Path,
    read: ReadProfiles,
    names: Names,
    say: Callable[[str], None],
    workers: int,
) -> Path:
    folder, disk = runs / experiment.name, Disk(durable=False)
    experiment.own_plugins.keep(folder)
    disk.replace(folder / "experiment.toml", write_toml(recorded(experiment)).encode())
    disk.replace(folder / PROFILES, read.text.encode())
    compute_as_a_device()
    builder = job_builder(experiment)
    with (
        quiet(),
        tempfile.TemporaryDirectory(prefix="protofleet-virtual-") as state,
        job_host(builder, workers) as host,
    ):
        run = VirtualRun.of(experiment, runs, read, names, Path(state), host, builder.shards)
        for name, shard in builder.shards.items():
            disk.make(folder / "devices" / name)
            write_data_file(folder / "devices" / name, shard.domain, shard.counts().tolist(), shard.names)
        run.conduct(folder / "rounds.jsonl", say)
        run.write(folder, read.digest)
    if run.federation.service.run.diverged:
        raise DivergedError(f"the run cannot continue: {run.federation.service.run.diverged}")
    return write_report(folder)


def job_builder(experiment: Experiment) -> JobBuilder:
    """Load the data of all devices, and return the builder of their jobs."""
    loader, allowed = Shards(), experiment.own_plugins.allowed()
    shards = {name: loader.load(data, allowed) for name, data in experiment.shards.items()}
    return JobBuilder(shards, experiment.shards, experiment.networks, loader, allowed)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Log only warnings, because each device of the federation would log each of its messages."""
    log = logging.getLogger("protofleet")
    level = log.level
    if log.getEffectiveLevel() > logging.DEBUG:
        log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)


@dataclass
class VirtualRun:
    """A virtual federation, and the settings of its coordinator."""

    federation: VirtualFederation
    settings: CoordinatorSettings
    price_per_gb: float

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        runs: Path,
        read: ReadProfiles,
        names: Names,
        state: Path,
        host: JobHost,
        shards: Mapping[str, Shard],
    ) -> VirtualRun:
        settings = replace(coordinator_settings(experiment, BrokerAddress(), runs, BROKER), class_names=names)
        federation = VirtualFederation(
            settings.plan(),
            shards,
            settings.policy,
            state,
            seed=experiment.seed,
            limits=settings.limits,
            class_names=names,
            plugins=experiment.own_plugins.allowed(),
            budget=experiment.budget,
            begins=BEGINS + read.profiles.begins_after,
            federation=experiment.name,
            sealed=seals(experiment.security),
            fleet=virtual_fleet(
                read, list(experiment.shards), experiment.seed, experiment.effective_policy.quorum
            ),
            host=host,
            software=installed_version(),
        )
        return cls(federation, settings, experiment.budget.price_per_gb if experiment.budget else 0.0)

    def conduct(self, rounds: Path, say: Callable[[str], None]) -> None:
        """Run until the end. If no round can end, a RunError is raised."""
        run, file = self.federation.service.run, RoundsFile(rounds, Disk(durable=False))
        progress = VirtualProgress(self.federation, say)
        keep_journal(run, [VirtualCosts(self.federation, self.price_per_gb), file, progress])
        most = self._most_seconds
        try:
            self.federation.run(lambda: self._is_over(progress.ended_at + most), limit=float("inf"))
        except KeyboardInterrupt:
            raise StoppedError("stopped; the same command begins this virtual run again") from None
        if not self.federation.service.finished:
            raise self._error()

    @property
    def _most_seconds(self) -> float:
        """Return the virtual time within which a round must end."""
        budget = self.settings.budget
        days = MONTH_DAYS if budget and budget.month_bytes_per_device else MOST_DAYS
        return days * DAY_SECONDS + self.settings.policy.pause_seconds

    def _is_over(self, limit: float) -> bool:
        run = self.federation
        return run.service.finished or run.lacks_quorum or run.clock.now > limit

    def _error(self) -> RunError:
        run, quorum, way_out = (
            self.federation,
            self.settings.policy.quorum,
            "lower it, or change [availability]",
        )
        view, devices = run.service.run.view, len(run.fleet)
        if run.lacks_quorum:
            return RunError(
                f"round {view.round} cannot end: {len(run.gone)} of {devices} devices are not available again after "
                f"{duration(max(run.gone.values()))} of virtual time, and policy.quorum is {quorum}; {way_out}"
            )
        return RunError(
            f"round {view.round} did not end within {duration(self._most_seconds)} of virtual time, and "
            f"{len(view.roster)} of {devices} devices are present; policy.quorum is {quorum}; {way_out}"
        )

    def write(self, folder: Path, profiles: str) -> None:
        lines, view = read_rounds(folder / "rounds.jsonl"), self.federation.service.run.view
        found = summarise(view, self.settings, lines, installed_version(), software())
        found |= {"virtual": summed(lines), "profiles": profiles}
        write_summary(folder / "summary.json", found, Disk(durable=False))


class VirtualProgress:
    """A sink of the journal that prints a line for each round."""

    def __init__(self, federation: VirtualFederation, say: Callable[[str], None]) -> None:
        self._federation, self._say = federation, say
        self.ended_at = 0.0  # Virtual time at which the last round has ended.

    def entry(self, what: str, details: Mapping[str, Any]) -> None:
        """Do nothing, because only the end of a round is shown."""

    def round_ended(self, record: RoundRecord) -> None:
        self.ended_at = self._federation.clock.now
        what = f"round {record.round}" if record.kind == "training" else "last evaluation"
        took = f"{duration(record.seconds)}, ended after {duration(self.ended_at)}"
        self._say(f"{what}: {took}; {costs_words(record.virtual)}")
