"""The memory of a device for jobs: of several runs, only the job that works is in memory.

The job of another run leaves the memory when the work of this run begins. When it works again, it is started anew and
restored from the disk, in the same way as after a reboot. So its updates have the same bits.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from protofleet.edge_client.trainer.job import Job, Metrics
from protofleet.protocol.wire.messages import Arrays
from protofleet.runtime.allocator import return_free_blocks


class JobMemory:
    """The place for one job. Only the worker's thread uses it."""

    def __init__(self) -> None:
        # A weak reference, so that a job whose run is over does not stay in memory.
        self._present: weakref.ref[RestorableJob] | None = None

    def saved(self) -> Arrays | None:
        """Return the state on the disk of the job that is in memory."""
        present = self._present() if self._present else None
        return present.saved() if present else None

    def give_to(self, job: RestorableJob) -> None:
        """Remove the present job from memory, because another job needs the place."""
        present = self._present() if self._present else None
        if present is not None and present is not job:
            present.leave()
            return_free_blocks()
        self._present = weakref.ref(job)


class RestorableJob:
    """A job that may leave the memory between two tasks."""

    def __init__(
        self, memory: JobMemory, start: Callable[[], Job], saved: Callable[[], Arrays | None]
    ) -> None:
        """Start a job; `saved` returns the state of its run on the disk."""
        self._memory, self._start, self.saved = memory, start, saved
        memory.give_to(self)
        self._job: Job | None = start()

    def run(self, phase: str, number: int, received: Arrays) -> tuple[Arrays, Metrics]:
        return self._here().run(phase, number, received)

    def state(self) -> Arrays:
        return self._here().state()

    def restore(self, state: Arrays) -> None:
        self._here().restore(state)

    def leave(self) -> None:
        self._job = None

    def _here(self) -> Job:
        self._memory.give_to(self)
        if self._job is None:
            self._job = self._start()
            if (saved := self.saved()) is not None:
                self._job.restore(saved)
        return self._job
