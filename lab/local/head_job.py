"""Run the broker and the coordinator of a run in a job of an engine, for clusters whose login nodes forbid work.

The command only submits the job and shows its log. The engine starts the job again when its node is lost. The folder
of the run says whether the run has finished.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from protofleet.coordinator.observe.rounds_file import read_rounds
from protofleet.lab.engines.engine import Engine, EngineJob
from protofleet.lab.engines.node_check import SETTLE_SECONDS
from protofleet.lab.engines.queue_watch import POLL_SECONDS, QueueWatch
from protofleet.lab.engines.settings import EngineSettings
from protofleet.lab.engines.submission import read_job, submit, submitted_before
from protofleet.lab.local.nodes import end_what_is_left
from protofleet.lab.local.share import ENGINE
from protofleet.protocol.settings.reader import decode, encode, read_toml, write_toml
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.user_error import FAILED
from protofleet.runtime import children
from protofleet.runtime.command.errors import StoppedError

HEAD: Final = "head"  # Folder with the files of the job, in the folder of the run's engine.
OPTIONS_FILE: Final = "options.toml"
END_FILE: Final = "end.json"
UNREPORTED: Final = "unreported"  # This file is there until a command has shown the end of the job.
SUMMARY: Final = "summary.json"  # The run has finished if its folder has this file.
READ_SECONDS: Final = 0.5


@dataclass(frozen=True)
class HeadOptions:
    """The options of a command with --tasks, which the job of the head reads."""

    tasks: int
    """Number of tasks that share the devices."""
    host: str = ""
    """Name or address of the broker's machine; empty means the name of the machine."""
    keeps_patience: bool = False
    """If true, the file of the run names policy.patience_seconds."""
    engine: EngineSettings = field(default_factory=EngineSettings)
    """Engine of the tasks."""

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        Disk().replace(folder / OPTIONS_FILE, write_toml(encode(self)).encode())


def read_options(folder: Path) -> HeadOptions:
    return decode(HeadOptions, read_toml(folder / OPTIONS_FILE))


@dataclass(frozen=True)
class HeadEnd:
    """The end of a head: the exit code and the last message of its command."""

    code: int
    message: str
    stopped: bool = False  # True if a signal has ended the head, for example at its time limit.

    def write(self, folder: Path) -> None:
        text = json.dumps({"code": self.code, "message": self.message, "stopped": self.stopped})
        Disk().replace(folder / END_FILE, text.encode())


def read_end(folder: Path) -> HeadEnd | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return HeadEnd(**json.loads((folder / END_FILE).read_text()))
    return None


def remove_end(folder: Path) -> None:
    (folder / END_FILE).unlink(missing_ok=True)


@dataclass
class HeadJob:
    """The head of a run as a job, and the command that waits for it."""

    engine: Engine
    job: EngineJob
    run: Path
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _shown: int = 0  # Number of bytes of the log that were shown.

    @property
    def running(self) -> str:
        """Return the id of a job that an earlier command has submitted and that is in the queue, or ""."""
        return submitted_before(self.engine, self.job)

    def finished_unseen(self) -> HeadEnd | None:
        """Return the end of a finished run that no command has shown, for example after --detach; None otherwise."""
        mark = self.job.folder / UNREPORTED
        if not mark.exists() or not (self.run / SUMMARY).exists():
            return None
        self._show_log()
        mark.unlink()
        return read_end(self.job.folder) or HeadEnd(0, "")

    def wait(self) -> HeadEnd:
        """Submit the job unless it is in the queue, show its log, and return its end.

        A job that has reached its time limit is submitted again, as long as each job ends a round.
        """
        try:
            while True:
                rounds = self._rounds()
                end = self._wait_for(self.submitted())
                if not end.stopped or self._rounds() == rounds:
                    (self.job.folder / UNREPORTED).unlink(missing_ok=True)
                    return end
                self.say("the job was stopped, for example at its time limit; it is submitted again")
        except KeyboardInterrupt:
            self.stop()
            raise StoppedError(f"stopped; the same command continues the run in {self.run}") from None

    def stop(self) -> None:
        """End the head, and then the tasks of the devices that it may have left."""
        for folder in (self.job.folder, self.run / ENGINE, *(self.run / ENGINE).glob("task-*")):
            if record := read_job(folder):
                end_what_is_left(self.engine, record.job, self.say)

    def submitted(self) -> str:
        """Submit the job unless it is in the queue, and return its id."""
        self.job.folder.mkdir(parents=True, exist_ok=True)
        log = self.job.log_of(0)
        if found := submitted_before(self.engine, self.job):
            self.say(f"job {found} already runs the broker and the coordinator; its log is {log}")
            self._shown = log.stat().st_size if log.exists() else 0
            return found
        remove_end(self.job.folder)
        (self.job.folder / UNREPORTED).touch()
        self._shown = log.stat().st_size if log.exists() else 0
        job_id = submit(self.engine, self.job)
        self.say(f"job {job_id} runs the broker and the coordinator; its log is {log}")
        return job_id

    def _wait_for(self, job_id: str) -> HeadEnd:
        watch, look_at, gone_at = QueueWatch(self.engine, job_id, self.say), 0.0, float("inf")
        while True:
            self._show_log()
            now = self.clock()
            if now >= look_at:
                look_at = now + POLL_SECONDS
                if watch.look() == []:
                    gone_at = min(gone_at, now)
            # The engine may start a job again that a signal has stopped. Such a job is still in the queue.
            if (end := read_end(self.job.folder)) and (not end.stopped or gone_at <= now):
                self._show_log()
                return HeadEnd(FAILED, f"job {job_id} was cancelled") if watch.cancelled else end
            if now - gone_at > SETTLE_SECONDS:
                return self._end_without_file(job_id)
            time.sleep(READ_SECONDS)

    def _end_without_file(self, job_id: str) -> HeadEnd:
        if (self.run / SUMMARY).exists():
            return HeadEnd(0, "")
        return HeadEnd(FAILED, f"job {job_id} of the run has ended without a result: {self._last_words()}")

    def _show_log(self) -> None:
        with contextlib.suppress(OSError), self.job.log_of(0).open("rb") as log:
            log.seek(self._shown)
            whole, _, _ = log.read().rpartition(b"\n")
            if whole:
                self._shown += len(whole) + 1
                self.say(whole.decode(errors="replace"))

    def _last_words(self) -> str:
        return self.job.last_line(0).removeprefix("protofleet: ") or "it has written nothing"

    def _rounds(self) -> int:
        return len(read_rounds(self.run / "rounds.jsonl"))


def head_job(run: Path, template: EngineJob, after_predecessor: bool) -> EngineJob:
    """Return the job of the head, with the options of the job of the devices."""
    return EngineJob(
        f"{template.name}-head", head_folder(run), 1, tuple(children.command("protofleet", "head", str(run))),
        setup=template.setup, options=template.options, after_predecessor=after_predecessor,
    )  # fmt: skip


def head_folder(run: Path) -> Path:
    return run / ENGINE / HEAD
