"""Run the tasks of a job as an array job of Slurm, with the commands sbatch, squeue and scancel.

`sacct` is not asked, because a cluster without accounting has no answer.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from protofleet.lab.engines.engine import TASK, EngineAwayError, EngineJob, StateWord, TaskState
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import Disk
from protofleet.runtime.children import PARENT

# Slurm sends the warning to the batch process, which is our program, because the script ends in `exec`.
WARNING_SECONDS: Final = 60
ANSWER_SECONDS: Final = 60.0
INDEX: Final = "$SLURM_ARRAY_TASK_ID"
COMMENT: Final = re.compile(r"^#SBATCH --comment=(protofleet-\w+)$", re.MULTILINE)
# Options of the script that no variable of the environment may replace. SBATCH_PARTITION and the like are the user's
# own defaults, so they stay.
OURS: Final = (
    "ARRAY_INX", "COMMENT", "JOB_NAME", "NO_REQUEUE", "OPEN_MODE", "OUTPUT", "ERROR", "REQUEUE", "SIGNAL",
    "WAIT", "TEST_ONLY",
)  # fmt: skip
WAITING: Final = frozenset(
    {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)
RUNNING: Final = frozenset(
    {"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "SIGNALING", "STAGE_OUT", "STOPPED", "RESIZING"}
)
PREDECESSOR: Final = (
    'while [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && squeue -h -t COMPLETING '
    '-j "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" 2>/dev/null | grep -q .; do sleep 1; done'
)
HELD: Final = re.compile(r"held", re.IGNORECASE)
# Reasons for which Slurm keeps a job in the queue although it cannot start, if EnforcePartLimits is NO.
REFUSED: Final = re.compile(
    r"can't use this partition|^Invalid(Account|QOS)$|^(Account|QOS)NotAllowed$|^BadConstraints$|"
    r"^Partition(TimeLimit|NodeLimit|Config)$"
)
CORRECT: Final = "correct it with --slurm KEY=VALUE, or in the table [engine]"
LIMITS: Final = "`scontrol show partition` lists the limits of each partition"
GONE: Final = "Invalid job id"
AWAY: Final = re.compile(
    r"Unable to contact|Socket timed out|Connection (refused|reset)|Zero Bytes|Transport endpoint|"
    r"Protocol authentication error|temporarily unable|controller not responding|try again",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Slurm:
    """The Slurm that the commands on PATH reach."""

    name: str = "slurm"
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    ends_with_command: bool = False
    time_hint: str = "; if its time limit was too short, give it more with --slurm time=..."

    @cached_property
    def _config(self) -> Mapping[str, str]:
        out = self._ask("scontrol", "show", "config")
        pairs = (line.partition("=") for line in out.splitlines() if "=" in line)
        return {key.strip(): value.strip() for key, _, value in pairs}

    @property
    def cluster(self) -> str:
        return self._config.get("ClusterName", "")

    def preflight(self, job: EngineJob) -> None:
        # The commands of Slurm would wait a minute for this file.
        if (path := self.environment.get("SLURM_CONF")) and not Path(path).is_file():
            raise SettingsError(
                f"SLURM_CONF is {path}, but there is no such file; correct the variable, or unset it so that Slurm "
                "uses the file of this machine"
            )
        try:
            said = self._config.get("MaxArraySize", "")
        except EngineAwayError as error:
            raise SettingsError(
                f"no controller of Slurm answers: {error}; try `scontrol ping`, and run the command again when it "
                "answers, or leave out --on to run on this machine"
            ) from None
        limit = int(said) if said.isdigit() else 0
        if limit and job.tasks >= limit:
            raise SettingsError(
                f"{job.tasks} tasks are too many for this Slurm, an array has at most {limit - 1} (MaxArraySize); "
                "put more trials into a task with --pack"
            )

    def find(self, job: EngineJob) -> str:
        try:
            comment = COMMENT.search((job.folder / job.script).read_text())
        except OSError:
            return ""
        if comment is None:
            return ""
        for line in self._ask("squeue", "--me", "-h", "-r", "-o", "%F|%k").splitlines():
            number, _, word = line.strip().partition("|")
            if word == comment[1]:
                return number
        return ""

    def submit(self, job: EngineJob) -> str:
        path = job.folder / job.script
        Disk().replace(path, script_of(job).encode())
        found = self._run("sbatch", "--parsable", str(path), environment=self._for_sbatch(job))
        if found.returncode:
            words = one_line(found.stderr)
            if AWAY.search(words):
                raise EngineAwayError(words)
            raise SettingsError(self.refusal(words))
        return found.stdout.strip().splitlines()[-1].partition(";")[0]

    def states(self, job_id: str) -> list[TaskState]:
        found = self._listed(job_id)
        if found.returncode:
            return []
        read = (read_state(line) for line in found.stdout.splitlines() if line.strip())
        return [state for state in read if state is not None]

    def has_forgotten(self, job_id: str) -> bool:
        return self._listed(job_id).returncode != 0

    def _listed(self, job_id: str) -> subprocess.CompletedProcess[str]:
        """Return the list of the job's tasks; the exit code is not 0 if Slurm does not know the job."""
        found = self._run("squeue", "-h", "-r", "-t", "all", "-j", job_id, "-o", "%K|%T|%N|%r")
        if found.returncode and GONE not in found.stderr:
            raise EngineAwayError(one_line(found.stderr))
        return found

    def cancel(self, job_id: str, kill: bool = False) -> None:
        """Cancel the tasks that wait, and send SIGTERM to the others; or with `kill`, send SIGKILL and cancel all.

        A plain `scancel` sends SIGKILL only after KillWait, 30 s by default, and then refuses an earlier SIGKILL.
        """
        if kill:
            self._cancel("--signal=KILL", "--full", job_id)
            self._cancel(job_id)
        else:
            self._cancel("--state=PENDING", job_id)
            self._cancel("--signal=TERM", "--full", job_id)

    def _cancel(self, *words: str) -> None:
        """Call scancel. It also fails if no task is left, which is no trouble."""
        found = self._run("scancel", *words)
        if found.returncode and AWAY.search(found.stderr):
            raise EngineAwayError(one_line(found.stderr))

    def bad_nodes(self) -> Mapping[str, str]:
        out = self._ask("sinfo", "-h", "-N", "-t", "down,drain,fail,unknown", "-o", "%N|%T")
        return dict(line.strip().split("|", 1) for line in out.splitlines() if "|" in line)

    def refusal(self, reason: str) -> str:
        hint = f" ({LIMITS})" if REFUSED.search(reason) else ""
        return f"Slurm refuses the job: {reason}{hint}; {CORRECT}"

    def hold_words(self, job_id: str, task: int) -> str:
        return f"scontrol release {job_id}_{task}"

    def _ask(self, *words: str) -> str:
        found = self._run(*words)
        if found.returncode:
            raise EngineAwayError(one_line(found.stderr) or f"{words[0]} ended with {found.returncode}")
        return found.stdout

    def _run(
        self, *words: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                words, capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS,
                stdin=subprocess.DEVNULL, env=environment or self.environment,
                # An interrupt of the terminal must not reach sbatch, which may have submitted the job already.
                start_new_session=True,
            )  # fmt: skip
        except FileNotFoundError:
            raise SettingsError(
                f"there is no {words[0]} on PATH, so no job can be given to Slurm; run the command on a login node "
                "of the cluster, or leave out --on to run on this machine"
            ) from None
        except subprocess.TimeoutExpired:
            raise EngineAwayError(f"{words[0]} has not answered within {ANSWER_SECONDS:.0f} s") from None

    def _for_sbatch(self, job: EngineJob) -> dict[str, str]:
        """Return the environment of sbatch, which the tasks inherit.

        A task does not end with this process, so it gets no PARENT. Variables such as SBATCH_REQUEUE would replace
        options of the script.
        """
        given = {key.upper().replace("-", "_") for key in options_of(job)}
        dropped = {PARENT, *(f"SBATCH_{key}" for key in {*OURS, *given})}
        return {key: value for key, value in self.environment.items() if key not in dropped}


def options_of(job: EngineJob) -> Mapping[str, str]:
    return {**job.options, "time": str(job.minutes)} if job.minutes else job.options


def script_of(job: EngineJob) -> str:
    """Return the script of a job. Its comment is a new random word, by which the job is found in the queue."""
    limit = f"%{job.at_once}" if job.at_once else ""
    folder = str(job.folder)
    # In the name of a file, Slurm replaces %a by the number of the task, and %% by %.
    log = f"{folder}/{job.log}".replace("%", "%%").replace(TASK, "%a")
    lines = [
        "#!/bin/sh",
        f"#SBATCH --job-name={job.name}",
        f"#SBATCH --comment=protofleet-{secrets.token_hex(8)}",
        f"#SBATCH --array=0-{job.tasks - 1}{limit}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --signal=B:TERM@{WARNING_SECONDS}",
        f"#SBATCH --output={quoted(log)}",
        *(f"#SBATCH --{key}={quoted(value)}" for key, value in options_of(job).items()),
        *([PREDECESSOR] if job.after_predecessor else []),
        *job.setup,
        f"exec {' '.join(map(shell_word, job.command))}",
    ]
    return "\n".join(lines) + "\n"


def shell_word(word: str) -> str:
    """Quote a word for the shell, with the number of the task in place of TASK."""
    return f'"{INDEX}"'.join(shlex.quote(part) if part else "" for part in word.split(TASK)) or "''"


def quoted(value: str) -> str:
    """Quote the value of an option in a line of #SBATCH, whose words sbatch splits at spaces."""
    return f'"{value}"' if re.search(r"\s", value) else value


def read_state(line: str) -> TaskState | None:
    """Return the state in a line of squeue; None if the task has ended and was not cancelled."""
    index, word, node, reason = line.strip().split("|", 3)
    task = int(index) if index.isdigit() else 0
    if word in WAITING:
        kind: StateWord = "held" if HELD.search(reason) else "refused" if REFUSED.search(reason) else "waits"
        return TaskState(task, kind, "", reason)
    if word in RUNNING:
        return TaskState(task, "runs", node, reason)
    return TaskState(task, "cancelled", node, reason) if word == "CANCELLED" else None


def one_line(text: str) -> str:
    """Return what a command of Slurm has said in one line, without the name of the command."""
    lines = [re.sub(r"^\w+: (error: )?", "", line.strip()) for line in text.splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(lines))
