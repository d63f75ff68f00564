"""Worker processes that do the tasks of the jobs of a virtual run.

A worker is a fork of the process of the run, so it has the data of all devices in memory already. The job of a device
stays in one worker, which does the tasks of its devices one after the other. The half of a device has the state that
the device has saved and a random generator of its own, so its updates have the same bits in any process.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NoReturn, TypeAlias

from protofleet.edge_client.trainer.child_process import words_of
from protofleet.edge_client.trainer.child_trainer import raise_reported
from protofleet.edge_client.trainer.pipe import ClosedError, receive, send
from protofleet.lab.virtual.jobs import CountedJob, JobBuilder, JobHost, JobResult, JobsHere, JobTask
from protofleet.methods.contract.plan import Plan, read_plan
from protofleet.protocol.wire.messages import NOTHING, Arrays
from protofleet.runtime.children import PARENT, end_with_parent
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.launcher import CAN_FORK

Message: TypeAlias = tuple[dict[str, Any], Arrays]


@contextlib.contextmanager
def job_host(builder: JobBuilder, workers: int) -> Iterator[JobHost]:
    """Yield a host of jobs: with one worker, or on a system without safe forks, it is this process."""
    if workers == 1 or not CAN_FORK:
        yield JobsHere(builder)
        return
    host = WorkerProcesses()
    try:
        for number in range(min(workers, len(builder.shards))):
            host.add(WorkerProcess(number, builder))
        host.begin_talking()
        yield host
    finally:
        host.close()


class WorkerProcesses:
    """A host of jobs that gives each device to one of its workers, in turn."""

    def __init__(self) -> None:
        self._workers: list[WorkerProcess] = []
        self._places: dict[str, int] = {}

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def add(self, worker: WorkerProcess) -> None:
        self._workers.append(worker)

    def begin_talking(self) -> None:
        """Start the threads that talk with the workers. All forks are done before the first thread starts."""
        for worker in self._workers:
            worker.begin_talking()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def start(self, device: str, plan: Plan) -> None:
        answer(self._worker(device).ask({"do": "build", "device": device, "plan": plan.encode().decode()}))

    def begin(self, device: str, task: JobTask) -> Callable[[], JobResult]:
        worker = self._worker(device)
        restored = None
        if task.restored is not None:
            restored = worker.ask({"do": "restore", "device": device}, task.restored)
        message = {"do": "run", "device": device, "phase": task.phase, "round": task.number}
        run, state = worker.ask(message, task.received), worker.ask({"do": "state", "device": device})

        def result() -> JobResult:
            if restored is not None:
                answer(restored)
            found, arrays = answer(run)
            return JobResult(arrays, found["metrics"], found["samples"], answer(state)[1])

        return result

    def _worker(self, device: str) -> WorkerProcess:
        place = self._places.setdefault(device, len(self._places) % len(self._workers))
        return self._workers[place]


def answer(future: Future[Message]) -> Message:
    """Wait for the answer of a worker. If it reports an error, raise this error."""
    message, arrays = future.result()
    raise_reported(message)
    return message, arrays


class WorkerProcess:
    """One worker, as the process of the run sees it."""

    def __init__(self, number: int, builder: JobBuilder) -> None:
        self._number = number
        self._requests: queue.SimpleQueue[tuple[Message, Future[Message]] | None] = queue.SimpleQueue()
        self._asked: deque[Future[Message]] = deque()
        self._lock = threading.Lock()  # It guards `_asked` and `_ended`.
        self._ended = ""
        self._socket, theirs = socket.socketpair()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._socket.close()
            be_worker(theirs, builder, parent)
        theirs.close()

    def begin_talking(self) -> None:
        for part, name in ((self._send_all, "send"), (self._receive_all, "receive")):
            threading.Thread(target=part, name=f"worker-{self._number}-{name}", daemon=True).start()

    def ask(self, message: dict[str, Any], arrays: Arrays = NOTHING) -> Future[Message]:
        """Queue a request, and return the future answer. Threads send and receive, so no side blocks the other."""
        future: Future[Message] = Future()
        self._requests.put(((message, arrays), future))
        return future

    def close(self) -> None:
        """End the worker and the threads."""
        self._requests.put(None)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._wait()

    def _send_all(self) -> None:
        while (one := self._requests.get()) is not None:
            (message, arrays), future = one
            with self._lock:
                if self._ended:
                    future.set_exception(RunError(self._ended))
                    continue
                self._asked.append(future)
            with contextlib.suppress(ClosedError):  # The other thread sees the end too, and gives the answer.
                send(self._socket, message, arrays)

    def _receive_all(self) -> None:
        with contextlib.suppress(ClosedError):
            while True:
                found = receive(self._socket)
                self._asked.popleft().set_result(found)
        with self._lock:
            self._ended = self._words_of_the_end()
            for future in self._asked:
                future.set_exception(RunError(self._ended))
            self._asked.clear()

    def _words_of_the_end(self) -> str:
        code = self._wait()
        how = f"was killed by signal {-code}" if code < 0 else f"has ended with {code}"
        return (
            f"worker process {self._number + 1} of the virtual run {how}; if memory ran out, give --workers 1; the "
            "same command begins this virtual run again"
        )

    def _wait(self) -> int:
        with contextlib.suppress(ChildProcessError):  # The other thread has waited for it.
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return 0


def be_worker(connection: socket.socket, builder: JobBuilder, parent: int) -> NoReturn:
    """Do the requests of the process of the run until it closes the connection or ends. Never return."""
    try:
        end_with_parent({PARENT: str(parent)})
        # A terminal sends Ctrl-C to this process too, but the process of the run decides when this process ends.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        server = WorkerServer(connection, builder)
        with contextlib.suppress(ClosedError):
            while True:
                server.answer(*receive(connection))
        os._exit(0)
    finally:
        os._exit(1)


class WorkerServer:
    """The jobs of a worker, and the answers to requests for them."""

    def __init__(self, connection: socket.socket, builder: JobBuilder) -> None:
        self._connection, self._builder = connection, builder
        self._jobs: dict[str, CountedJob] = {}
        self._states: dict[str, Arrays] = {}
        self._restored: dict[str, Arrays] = {}
        self._plan: tuple[str, Plan] | None = (
            None  # The last plan and its text, which all devices have in common.
        )

    def answer(self, message: dict[str, Any], arrays: Arrays) -> None:
        try:
            found = self._done(message, arrays)
        except Exception as error:  # noqa: BLE001 - the process of the run raises it again
            found = words_of(error, is_build=message["do"] == "build"), NOTHING
        send(self._connection, *found)

    def _done(self, message: dict[str, Any], arrays: Arrays) -> Message:
        device = message["device"]
        match message["do"]:
            case "build":
                self._jobs[device] = self._builder.job(device, self._read(message["plan"]))
            case "restore":
                self._restored[device] = arrays
            case "run":
                task = JobTask(message["phase"], message["round"], arrays, self._restored.pop(device, None))
                found = self._jobs[device].perform(task)
                self._states[device] = found.state
                return {"metrics": found.metrics, "samples": found.samples}, found.arrays
            case "state":
                return {}, self._states.pop(device, NOTHING)
        return {}, NOTHING

    def _read(self, text: str) -> Plan:
        if self._plan is None or self._plan[0] != text:
            self._plan = text, read_plan(text.encode(), self._builder.plugins)
        return self._plan[1]
