"""Run many experiments as the tasks of an engine, and wait until the folder of each run says how it has ended.

The engine only says whether tasks are left. A task that was lost, or that has reached its time limit, is submitted
again as long as its trials make progress.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from protofleet.lab.engines.engine import TASK, Engine, EngineAwayError, EngineJob, TaskState
from protofleet.lab.engines.node_check import SETTLE_SECONDS, NodeCheck
from protofleet.lab.engines.queue_watch import POLL_SECONDS, QueueWatch, end_job
from protofleet.lab.engines.settings import EngineSettings
from protofleet.lab.engines.submission import submit, submitted_before
from protofleet.lab.local.batch import is_finished, outcome
from protofleet.lab.local.class_check import agreed_names
from protofleet.lab.local.data_check import require_data
from protofleet.lab.local.engine_folder import EngineFolder
from protofleet.lab.local.experiment import Experiment
from protofleet.lab.local.run import renamed, same_settings
from protofleet.lab.local.sole_use import InUseError, require_free, require_writable, sole_use
from protofleet.lab.trackers.destinations import Destination
from protofleet.lab.trackers.following import tracking
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import MIN_FREE
from protofleet.runtime.children import command, last_lines
from protofleet.runtime.command.errors import RunError, StoppedError
from protofleet.runtime.installation.version import installed_version

WORDS_OF_END: Final = "its task ended before the trial had ended a round"


@dataclass
class EngineBatch:
    """The trials of one sweep on an engine."""

    runs: Path  # The absolute path of the folder of all runs.
    name: str  # The name of the sweep, and of its folder in runs/sweeps.
    engine: Engine
    settings: EngineSettings
    fresh: bool = False
    trust_locks: bool = False
    track: Sequence[Destination] = ()
    say: Callable[[str], None] = lambda text: print(text, flush=True)
    poll_seconds: float = POLL_SECONDS
    settle_seconds: float = SETTLE_SECONDS
    failed: dict[str, str] = field(default_factory=dict)
    _finished: set[str] = field(default_factory=set)
    _lost: set[str] = field(default_factory=set)  # Trials of a job that the engine has forgotten.
    _counts: tuple[int, ...] = ()

    @property
    def folder(self) -> EngineFolder:
        return EngineFolder(self.runs / "sweeps" / self.name)

    def run_all(self, trials: Sequence[Experiment], detach: bool = False) -> int:
        """Run all trials and return 1 if a trial has failed; with `detach`, return 0 after the submission."""
        with self._alone():
            running = self._running()
            pending = self._checked(trials, running)
            try:
                # A job that runs has passed the test.
                tested = taken_over = bool(running)
                while pending or running:
                    running = running or self._submit(pending, tested)
                    tested = True
                    if detach:
                        self._tell_of_others(pending)
                        self.say("the same command without --detach waits, and writes the tables")
                        return 0
                    self._wait(running, trials, taken_over)
                    running, taken_over, pending = "", False, self._left(trials)
            except KeyboardInterrupt:
                raise StoppedError(self._stop(trials)) from None
        return self._end(trials)

    def cancel(self) -> None:
        """End the job of an earlier command."""
        if not (job_id := self._running()):
            self.say(f"no job of {self.name} is in the queue of {self.engine.name}")
            return
        end_job(self.engine, job_id, self.say)
        self.say(f"job {job_id} is cancelled; the same command without --cancel goes on")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse a second command, which would submit the same trials."""
        require_writable(self.runs)
        self.folder.make()
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(sole_use(self.folder.engine))
            except InUseError as error:
                where, _, holder = str(error).partition(" is in use by ")
                raise SettingsError(
                    f"another command is at this sweep, {holder.partition(':')[0]}: wait until it has ended ({where})"
                ) from None
            yield

    def _running(self) -> str:
        """Return the id of a job that an earlier command has submitted and that still has tasks, or ""."""
        job = self._job(1)
        self.engine.preflight(job)
        return submitted_before(self.engine, job)

    def _checked(self, trials: Sequence[Experiment], running: str) -> Sequence[Experiment]:
        """Check the settings and the data of all trials, and return those that have not finished."""
        if running:
            self.say(f"job {running} already runs these trials")
            if self.fresh:
                raise SettingsError(
                    f"--fresh runs all trials again, but job {running} runs them; leave out --fresh, or give --cancel"
                )
        for trial in trials:
            agreed_names(trial)
        if self.fresh:
            for trial in trials:
                if is_finished(trial, self.runs):
                    self.say(f"the earlier run is now in {renamed(self.runs / trial.name)}")
        pending = [trial for trial in trials if not self._has_finished(trial)]
        require_data(pending)
        return pending

    def _has_finished(self, trial: Experiment) -> bool:
        if trial.name not in self._finished and is_finished(trial, self.runs):
            self._finished.add(trial.name)
        return trial.name in self._finished

    def _job(self, tasks: int) -> EngineJob:
        task = command(
            "protofleet", "trials", str(self.folder.list), TASK, "--runs", str(self.runs),
            "--submitted-by", installed_version(),
        )  # fmt: skip
        return EngineJob(
            f"protofleet-{self.name}", self.folder.engine, tasks, tuple(task), self.settings.at_once,
            self.settings.setup, self.settings.options, after_predecessor=self.trust_locks,
        )  # fmt: skip

    def _submit(self, trials: Sequence[Experiment], tested: bool) -> str:
        """Submit the trials, after a test of a node."""
        pack = self.settings.pack
        self.engine.preflight(self._job(-(-len(trials) // pack)))
        if not tested:
            self._check_node()
        self.folder.write_trials(trials)
        tasks = self.folder.write_list(trials, pack)
        job_id = submit(self.engine, self._job(tasks))
        trials_words = f"{len(trials)} trial{'s' * (len(trials) != 1)}"
        self.say(
            f"job {job_id}: {trials_words} in {tasks} task{'s' * (tasks != 1)}; logs: {self.folder.engine}"
        )
        return job_id

    def _tell_of_others(self, pending: Sequence[Experiment]) -> None:
        """Tell of trials that the job in the queue does not have, for example because the file has changed."""
        listed = {name for task in self.folder.tasks() for name in task}
        others = [
            trial.name for trial in pending
            if trial.name not in listed or not same_settings(self.folder.trials / f"{trial.name}.toml", trial)
        ]  # fmt: skip
        if others:
            self.say(
                f"the job does not have {len(others)} of the trials, for example {others[0]}; the same command "
                "without --detach submits them after the job"
            )

    def _check_node(self) -> None:
        check = NodeCheck(
            self.engine, self.folder.engine, self.settings.setup, self.settings.options, self.say,
            self.trust_locks, self.settle_seconds,
        )  # fmt: skip
        answer = check.run()
        self.say(f"the test has passed on node {answer.node}")

    def _wait(self, job_id: str, trials: Sequence[Experiment], taken_over: bool) -> None:
        """Wait until no task of the job is left, and find out why unfinished trials have ended."""
        tasks = self.folder.tasks()
        # The rounds at the start of the job are not known if another command has submitted it.
        before = {} if taken_over else {name: self._rounds(name) for task in tasks for name in task}
        watch = QueueWatch(self.engine, job_id, self.say, lambda task: self._unfinished(tasks, task))
        while (states := watch.look()) is None or states:
            if states is not None:
                self._tell(trials, states)
            time.sleep(self.poll_seconds)
        failures = self.folder.failures()
        self.failed |= {name: failures[name] for task in tasks for name in task if name in failures}
        self._tell(trials, [])
        self._judge(watch, tasks, trials, before)

    def _judge(
        self,
        watch: QueueWatch,
        tasks: Sequence[Sequence[str]],
        trials: Sequence[Experiment],
        before: Mapping[str, int],
    ) -> None:
        """Count trials without progress as failed. The other unfinished trials are submitted again."""
        known, again = {trial.name: trial for trial in trials}, 0
        for index, names in enumerate(tasks):
            left = [
                n for n in names if n in known and n not in self.failed and not self._has_finished(known[n])
            ]
            if left and index in watch.cancelled:
                raise StoppedError(
                    f"job {watch.job_id} was cancelled, by scancel or by an administrator; "
                    f"{self._finished_words(trials)}, and the same command goes on"
                )
            if not left:
                continue
            in_use = any(self._is_in_use(name) for name in left)
            if in_use or self._made_progress(names, before) or self._was_forgotten(watch, left):
                again += len(left)
            else:
                self.failed |= dict.fromkeys(left, self._end_of_task(index))
        if again and shutil.disk_usage(self.runs).free < MIN_FREE:
            raise RunError(
                f"the disk that holds {self.runs} is full; {self._finished_words(trials)}; make room and run the "
                "same command again"
            )
        if again:
            self.say(f"job {watch.job_id} has ended before {again} of its trials; they are submitted again")

    def _unfinished(self, tasks: Sequence[Sequence[str]], task: int) -> int:
        """Return the number of trials of a task that have not finished."""
        names = tasks[task] if task < len(tasks) else []
        return sum(not (self.runs / name / "summary.json").exists() for name in names)

    def _was_forgotten(self, watch: QueueWatch, names: Sequence[str]) -> bool:
        """Return whether the engine has lost the job, which may end the same trials only once.

        A controller that is killed within seconds of a submission has not saved the job.
        """
        try:
            lost = self.engine.has_forgotten(watch.job_id) and not self._lost & set(names)
        except EngineAwayError:
            return False
        if lost and not self._lost:
            self.say(f"{self.engine.name} has forgotten job {watch.job_id}")
        self._lost |= set(names) if lost else set()
        return lost

    def _made_progress(self, names: Sequence[str], before: Mapping[str, int]) -> bool:
        """Return whether a trial of a task has ended a round since the job was submitted."""
        return any(name not in before or self._rounds(name) > before[name] for name in names)

    def _rounds(self, name: str) -> int:
        """Return the number of rounds that a run has ended."""
        try:
            return (self.runs / name / "rounds.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0

    def _end_of_task(self, index: int) -> str:
        log = self._job(1).log_of(index)
        try:
            said = last_lines(log)
        except OSError:
            return f"{WORDS_OF_END}, and it has left no log {log}"
        return (
            f"{WORDS_OF_END} ({said[-1] if said else 'it printed nothing'}); see {log}{self.engine.time_hint}"
        )

    def _is_in_use(self, name: str) -> bool:
        try:
            require_free(self.runs / name)
        except InUseError:
            return True
        return False

    def _left(self, trials: Sequence[Experiment]) -> Sequence[Experiment]:
        """Return the trials to submit, after other processes have left them."""
        left = [one for one in trials if one.name not in self.failed and not self._has_finished(one)]
        said = False
        while busy := [one.name for one in left if self._is_in_use(one.name)]:
            if not said:
                self.say(
                    f"{busy[0]} is in use elsewhere; it is submitted again when it is free and not finished"
                )
                said = True
            time.sleep(self.poll_seconds)
        return [one for one in left if not self._has_finished(one)]

    def _tell(self, trials: Sequence[Experiment], states: Sequence[TaskState]) -> None:
        """Print how many trials wait, run, have finished and have failed, if a number has changed."""
        failures = {**self.folder.failures(), **self.failed}
        finished = [trial for trial in trials if self._has_finished(trial)]
        done = {trial.name for trial in finished}
        failed = sum(trial.name in failures and trial.name not in done for trial in trials)
        unfinished = len(trials) - len(finished) - failed
        # A task runs one trial at a time. Trials that are not in a running task wait.
        running = min(sum(state.state == "runs" for state in states), unfinished)
        counts = (unfinished - running, running, len(finished), failed)
        if counts != self._counts:
            self._counts = counts
            waits, runs, ended, lost = counts
            self.say(f"trials: {waits} wait, {runs} run, {ended} have finished, {lost} have failed")

    def _finished_words(self, trials: Sequence[Experiment]) -> str:
        return f"{sum(map(self._has_finished, trials))} of {len(trials)} runs are finished"

    def _stop(self, trials: Sequence[Experiment]) -> str:
        """End the job after an interrupt, and return the words for the user."""
        words = ""
        with contextlib.suppress(EngineAwayError, SettingsError):
            if job_id := submitted_before(self.engine, self._job(1)):
                end_job(self.engine, job_id, self.say)
                words = f"job {job_id} is cancelled, "
        return f"stopped; {words}{self._finished_words(trials)}, and the same command goes on from here"

    def _end(self, trials: Sequence[Experiment]) -> int:
        for trial in trials:
            if not self._has_finished(trial):
                continue
            if (result := outcome(trial, self.runs)) != "finished":
                self.failed[trial.name] = f"{result}; --fresh runs it again"
            with tracking(self.track, self.runs / trial.name):
                pass  # The run has finished, so the tracker only sends the rounds that it has not sent yet.
        for name, reason in self.failed.items():
            self.say(f"failed: {name}: {reason}")
        self.say(f"{len(trials) - len(self.failed)} of {len(trials)} runs are finished")
        return 1 if self.failed else 0
