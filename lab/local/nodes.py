"""Run the devices of one federation as tasks of an engine: a process with a group of devices in each task.

The broker and the coordinator run on this machine. The run's folder says which devices a task has, where the broker
is and which devices have failed. The engine only starts tasks and ends them.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from protofleet.coordinator.round.policy import Policy
from protofleet.edge_client.trainer.slots import Slots
from protofleet.federation.brokers.local import find_broker
from protofleet.lab.engines.engine import TASK, Engine, EngineAwayError, EngineJob, TaskState
from protofleet.lab.engines.queue_watch import POLL_SECONDS, QueueWatch, end_job
from protofleet.lab.engines.submission import submit, submitted_before
from protofleet.lab.local.experiment import Experiment
from protofleet.lab.local.placement import Groups
from protofleet.lab.local.processes import Processes
from protofleet.lab.local.share import ENGINE, GROUPS, MOST_FAILURES, BrokerPlace, failed_devices, read_groups
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.runtime import children
from protofleet.runtime.children import Starter
from protofleet.runtime.restart_backoff import RestartBackoff

# Time for a lost node to come back: Slurm notices the loss after SlurmdTimeout (300 s by default), waits 120 s, and
# then the task waits in the queue.
PATIENCE_SECONDS: Final = 86_400.0
BROKER_FILE: Final = "broker.json"
READ_SECONDS: Final = 1.0  # Time between two looks at the files with the failed devices.
MOST_CORES: Final = 12  # With more cores of devices, the coordinator limits the rounds (docs/scale.md).


@dataclass(frozen=True)
class EngineSite:
    """The nodes of an engine as the site of a run."""

    engine: Engine
    tasks: int
    host: str
    setup: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    keeps_patience: bool = False  # True if the file names policy.patience_seconds.
    submitted: str = ""  # The id of the job that this start of the run has submitted, or "".

    def demand_fit(self, experiment: Experiment) -> None:
        """Raise SettingsError if the nodes cannot run the experiment. This changes nothing."""
        demand_tls(experiment)
        if self.tasks > (devices := len(experiment.shards)):
            raise SettingsError(
                f"--tasks is {self.tasks}, but the experiment has {devices} devices, and a task without devices "
                f"would have no work; use --tasks with at most {devices}"
            )

    def job_left(self, folder: Path) -> str:
        """Return the id of a job that an earlier start of this run has left in the queue of the engine, or ""."""
        return submitted_before(self.engine, self.job(folder.absolute(), self.tasks))

    def groups(self, experiment: Experiment, folder: Path, on_gpu: bool) -> Groups:
        self.demand_fit(experiment)
        names = list(experiment.shards)
        written = folder / ENGINE / GROUPS
        if not written.exists():
            return [names[i :: self.tasks] for i in range(self.tasks)]
        groups = read_groups(written)
        if sorted(name for group in groups for name in group) != sorted(names):
            raise SettingsError(
                f"{written} divides other devices than those of the experiment among the tasks; start the run "
                "again with --fresh, or give it another name with --set name=..."
            )
        if len(groups) != self.tasks:
            raise SettingsError(
                f"--tasks is {self.tasks}, but {written} has divided the devices among {len(groups)} tasks; use "
                f"--tasks {len(groups)}, or start the run again with --fresh"
            )
        return groups

    @contextlib.contextmanager
    def begun(self, folder: Path, groups: Groups) -> Iterator[EngineSite]:
        """Submit the tasks unless an earlier start has left them. They start while the broker of the run starts.

        A task waits for the broker file, so a file of an earlier start is removed.
        """
        run = folder.absolute()
        engine_folder = run / ENGINE
        engine_folder.mkdir(parents=True, exist_ok=True)
        if not (engine_folder / GROUPS).exists():
            Disk().replace(engine_folder / GROUPS, json.dumps([list(group) for group in groups]).encode())
        if self.job_left(run):
            yield self
            return
        (engine_folder / BROKER_FILE).unlink(missing_ok=True)
        job_id = submit(self.engine, self.job(run, len(groups)))
        try:
            yield replace(self, submitted=job_id)
        except BaseException:
            end_what_is_left(self.engine, job_id, print)
            raise

    def slots(self, folder: Path, groups: Groups) -> Slots:
        """Return no slots, because each task makes the slots of its own node."""
        return Slots()

    def policy(self, experiment: Experiment) -> Policy:
        """Return the policy with a patience that outlasts the loss of a node, unless the file names the patience."""
        policy = experiment.effective_policy
        return policy if self.keeps_patience else replace(policy, patience_seconds=PATIENCE_SECONDS)

    @contextlib.contextmanager
    def starter(self, starter: Starter, experiment: Experiment, groups: Groups) -> Iterator[Starter]:
        yield starter

    def placement(
        self,
        groups: Groups,
        processes: Processes,
        starter: Starter,
        broker: BrokerAddress,
        say: Callable[[str], None],
    ) -> TaskDevices:
        run = processes.folder.absolute()
        place = BrokerPlace(broker.host or "", broker.port or 0, secrets.token_hex(8))
        place.write(run / ENGINE / BROKER_FILE)
        job = self.job(run, len(groups))
        return TaskDevices(self.engine, job, run, groups, place.start, say, self.submitted)

    def job(self, run: Path, tasks: int) -> EngineJob:
        """Return the job whose task I runs the devices of group I."""
        words = [
            "fleet", str(run / "devices"), "--share", f"{TASK}/{tasks}",
            "--broker-file", str(run / ENGINE / BROKER_FILE), "--ended", str(ended_file(run, TASK)),
        ]  # fmt: skip
        command = tuple(children.command("protofleet", *words))
        return EngineJob(
            f"protofleet-{run.name}", run / ENGINE, tasks, command, setup=self.setup, options=self.options
        )


def end_what_is_left(engine: Engine, job_id: str, say: Callable[[str], None]) -> None:
    """Cancel a job and wait for the end of its tasks. A job that the engine no longer lists is left alone."""
    with contextlib.suppress(EngineAwayError):
        if all(one.state == "cancelled" for one in engine.states(job_id)):
            return
    end_job(engine, job_id, say)


def ended_file(run: Path, task: int | str) -> Path:
    return run / "logs" / f"devices-{task}.ended.json"


def demand_tls(experiment: Experiment) -> None:
    """Raise SettingsError if the broker of the run would let machines without a certificate connect."""
    choice = experiment.broker
    if choice.kind == "external":
        return
    program = find_broker(choice.kind)
    if choice.tls == "off":
        raise SettingsError(
            'broker.tls is "off", but a broker that other nodes reach must use TLS; leave out broker.tls'
        )
    if program.kind != "mosquitto":
        raise SettingsError(
            f"the broker of the run would be {program.description}, which cannot use TLS, but a broker that other "
            "nodes reach must; install Mosquitto (apt-get install mosquitto) and use it"
        )


@dataclass
class TaskDevices:
    """The devices of a run in tasks of an engine. Each task has one group of devices.

    A task that ends although the run goes on is submitted again, as a job of its own.
    """

    engine: Engine
    job: EngineJob
    run: Path
    groups: Groups
    word: str  # The word of this start in the broker file.
    say: Callable[[str], None]
    submitted: str = ""  # The id of the job, if this start of the run has submitted it.
    clock: Callable[[], float] = time.monotonic
    _places: dict[int, TaskPlace] = field(default_factory=dict)
    _watches: dict[str, QueueWatch] = field(default_factory=dict)
    _failed: dict[str, str] = field(default_factory=dict)
    _look_at: float = 0.0
    _read_at: float = 0.0
    _in_files: dict[str, str] = field(default_factory=dict)

    def start(self) -> None:
        found = "" if self.submitted else submitted_before(self.engine, self.job)
        job_id = self.submitted or found or submit(self.engine, self.job)
        for task in range(len(self.groups)):
            again = submitted_before(self.engine, self._job_of(task)) if found else ""
            self._places[task] = TaskPlace(again or job_id, 0 if again else task)
        how = f"{self.engine.name} runs them already as" if found else f"given to {self.engine.name} as"
        self.say(f"devices: {how} job {job_id}; its logs are in {self.job.folder}")
        self._look_at = self.clock() + POLL_SECONDS

    def states(self) -> list[str]:
        try:
            return [one.state for one in self._asked()]
        except EngineAwayError:
            return ["unknown"]

    def keep_running(self) -> None:
        """Submit tasks again that have ended. A task that ends three times within a minute has failed."""
        now = self.clock()
        if now < self._look_at:
            return
        self._look_at = now + POLL_SECONDS
        looks = {job_id: self._watch(job_id).look() for job_id in self._jobs()}
        for task, place in self._places.items():
            states = looks[place.job_id]
            if place.given_up or states is None:  # None: the engine does not answer.
                continue
            if any(one.task == place.index for one in states):
                place.seen(now, runs=any(one.task == place.index and one.state == "runs" for one in states))
            elif place.index in self._watch(place.job_id).cancelled:
                self._give_up(task, f"its task {task} was cancelled in {self.engine.name}")
            elif place.ended(now):
                self._submit_again(task, place)

    def _submit_again(self, task: int, place: TaskPlace) -> None:
        if place.backoff.failures >= MOST_FAILURES:
            self._give_up(
                task, f"its task {task} ended {MOST_FAILURES} times in a row: {self._last_words(task)}"
            )
            return
        try:
            job_id = submit(self.engine, self._job_of(task))
        except EngineAwayError:  # The watch has told of it, and the next look tries again.
            return
        self.say(f"task {task} has ended although the run goes on; it is submitted again as job {job_id}")
        place.moved(job_id)

    def _give_up(self, task: int, reason: str) -> None:
        self._places[task].given_up = True
        self._failed |= dict.fromkeys(self.groups[task], reason)

    def failed(self) -> dict[str, str]:
        if (now := self.clock()) >= self._read_at:
            self._read_at = now + READ_SECONDS
            self._in_files = {}
            for task in range(len(self.groups)):
                self._in_files |= failed_devices(ended_file(self.run, task), self.word)
        return self._in_files | self._failed

    def stop(self) -> None:
        """Cancel all tasks that are left, and wait for their end."""
        for job_id in self._jobs():
            end_what_is_left(self.engine, job_id, self.say)

    def _asked(self) -> list[TaskState]:
        found = [one for job_id in self._jobs() for one in self.engine.states(job_id)]
        return [one for one in found if one.state != "cancelled"]

    def _jobs(self) -> list[str]:
        return list(dict.fromkeys(place.job_id for place in self._places.values()))

    def _watch(self, job_id: str) -> QueueWatch:
        if job_id not in self._watches:
            self._watches[job_id] = QueueWatch(self.engine, job_id, self.say)
        return self._watches[job_id]

    def _job_of(self, task: int) -> EngineJob:
        """Return a job with only this task, which replaces the task in the first job."""
        command = tuple(word.replace(TASK, str(task)) for word in self.job.command)
        folder = self.job.folder / f"task-{task}"
        folder.mkdir(exist_ok=True)
        return replace(self.job, folder=folder, tasks=1, command=command)

    def _last_words(self, task: int) -> str:
        place = self._places[task]
        job = self._job_of(task) if place.is_new else self.job
        line = job.last_line(place.index).removeprefix("protofleet: ")
        return line or f"{job.log_of(place.index)} has no line"

    def __str__(self) -> str:
        devices = sum(map(len, self.groups))
        words = f"{devices} in {len(self.groups)} task" + ("s" if len(self.groups) > 1 else "")
        if len(self.groups) > MOST_CORES:
            words += f" (beyond about {MOST_CORES} cores of devices, the coordinator limits the rounds)"
        return f"{words} of {self.engine.name}"


@dataclass
class TaskPlace:
    """The place of a task in the queue of an engine: a job, and the number of the task in this job."""

    job_id: str
    index: int
    is_new: bool = False  # True if the task was submitted again, as a job of its own.
    given_up: bool = False
    backoff: RestartBackoff = field(default_factory=RestartBackoff)
    _started_at: float | None = None
    _missing: bool = False
    _again_at: float | None = None

    def seen(self, now: float, *, runs: bool) -> None:
        """Record that the engine has listed the task."""
        self._missing = False
        if runs and self._started_at is None:
            self._started_at = now

    def ended(self, now: float) -> bool:
        """Record that the engine has not listed the task; return whether it is time to submit the task again.

        At the end of a run, tasks may end before this program reads the line in which the coordinator reports the
        end. Therefore a task has ended only if two looks in a row do not find it.
        """
        if not self._missing:
            self._missing = True
            return False
        if self._again_at is None:
            started_at = now if self._started_at is None else self._started_at
            self._again_at = now + self.backoff.failed(now - started_at)
        return now >= self._again_at

    def moved(self, job_id: str) -> None:
        """Record that the task was submitted again as the only task of a job."""
        self.job_id, self.index, self.is_new = job_id, 0, True
        self._started_at = self._again_at = None
        self._missing = False
