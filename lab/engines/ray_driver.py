"""Run the driver of Ray as a child process of a command: it starts the tasks of jobs and tells their states.

When Ray's head dies, Ray ends the driver from C++ about 60 s later, and Python sees no exception. In a process of its
own, this end is visible to the command. The driver reads requests as lines of JSON from its standard input, and
writes answers as lines of JSON to its standard output. Ray ends all tasks when their driver ends.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from protofleet.lab.engines.engine import TASK
from protofleet.runtime.children import PARENT, end_with_parent

TICK_SECONDS: Final = 0.2
NODES_SECONDS: Final = 5.0  # Time between two questions for the cluster's nodes.
# A worker that ends this number of times under a task, for example for lack of memory, ends the task.
MOST_CRASHES: Final = 3
DEAD: Final = "dead"
# Names of an option of a task, and of the resource that a node offers for it.
RESOURCES: Final = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}

# A task is done if its function has ended, also with an error. It is lost together with its node. It has crashed if
# only its worker has ended.
Outcome = Literal["done", "lost", "crashed", "cancelled"]


class RayCluster(Protocol):
    """The part of Ray that a driver uses."""

    def start(self, task: DriverTask) -> Any:
        """Give a task to Ray, and return the reference to its result."""
        ...

    def ended(self, results: Sequence[Any]) -> Mapping[Any, Outcome]:
        """Return the outcome of each result that is there."""
        ...

    def cancel(self, result: Any, kill: bool) -> None: ...

    def nodes(self) -> Sequence[Mapping[str, Any]]: ...


@dataclass
class DriverJob:
    """A job as the command has described it."""

    folder: str
    tasks: int
    command: list[str]
    setup: list[str]
    log: str
    at_once: int
    claims: dict[str, float]  # The options of Ray for each task: num_cpus, num_gpus, memory.
    working_folder: str


@dataclass
class DriverTask:
    """A task of a job, which may be given to Ray several times."""

    job: DriverJob
    number: int
    result: Any = None  # The reference to the result; None while the task is not given to Ray.
    crashes: int = 0
    ended: bool = False
    cancelled: bool = False
    node: str = ""  # The name of the node on which the task runs; "" if it does not run.

    @property
    def log(self) -> Path:
        return Path(self.job.folder) / self.job.log.replace(TASK, str(self.number))

    @property
    def place(self) -> Path:
        """Return the file in which the task names its node."""
        return self.log.with_suffix(".node")

    @property
    def words(self) -> list[str]:
        """Return the command, after the lines of the setup in a shell."""
        words = [word.replace(TASK, str(self.number)) for word in self.job.command]
        if not self.job.setup:
            return words
        return ["sh", "-c", "\n".join([*self.job.setup, 'exec "$@"']), "sh", *words]


@dataclass
class RayDriver:
    """The tasks of all jobs of one command."""

    cluster: RayCluster
    clock: Callable[[], float] = time.monotonic
    jobs: dict[str, list[DriverTask]] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)  # The state of each lost node.
    _nodes: Sequence[Mapping[str, Any]] = ()
    _nodes_at: float = float("-inf")

    def submit(self, job_id: str, job: DriverJob) -> None:
        self.jobs[job_id] = [DriverTask(job, number) for number in range(job.tasks)]

    def cancel(self, job_id: str, kill: bool) -> None:
        for task in self.jobs.get(job_id, []):
            if task.ended:
                continue
            task.cancelled = True
            if task.result is None:
                task.ended = True
            else:
                self.cluster.cancel(task.result, kill)

    def pump(self) -> None:
        """Take the results of tasks that have ended, and give more tasks to Ray."""
        given = {
            task.result: task for tasks in self.jobs.values() for task in tasks if task.result is not None
        }
        for result, outcome in self.cluster.ended(list(given)).items():
            self._take(given[result], outcome)
        for tasks in self.jobs.values():
            running = sum(task.result is not None for task in tasks)
            for task in tasks:
                limit = task.job.at_once or len(tasks)
                if task.result is None and not task.ended and running < limit:
                    task.place.unlink(missing_ok=True)
                    task.result = self.cluster.start(task)
                    running += 1

    def _take(self, task: DriverTask, outcome: Outcome) -> None:
        if outcome == "lost" and (node := task.node or self._node_of(task)):
            self.bad[node] = DEAD
        task.crashes += outcome == "crashed"
        again = outcome == "lost" or (outcome == "crashed" and task.crashes < MOST_CRASHES)
        task.ended = task.cancelled or not again
        task.result, task.node = None, ""
        task.place.unlink(missing_ok=True)

    def states(self, job_id: str) -> Iterator[tuple[int, str, str, str]]:
        """Yield the number, state, node and reason of each task that has not ended, or that was cancelled."""
        for task in self.jobs.get(job_id, []):
            if task.cancelled and task.ended:
                yield task.number, "cancelled", "", ""
            if task.ended:
                continue
            if task.result is not None and not task.node:
                task.node = self._node_of(task)
            if task.node:
                yield task.number, "runs", task.node, ""
            else:
                yield task.number, "waits", "", self._reason(task)

    def _node_of(self, task: DriverTask) -> str:
        """Return the name of the node that a task has named; "" if it has named none."""
        try:
            found = task.place.read_text()
        except OSError:
            return ""
        if found and all(one["NodeID"] != found for one in self._nodes):
            self._nodes_at = float("-inf")
        return next((str(one["NodeName"]) for one in self._known_nodes() if one["NodeID"] == found), found)

    def _reason(self, task: DriverTask) -> str:
        if task.result is None:
            return (
                f"at most {task.job.at_once} run at once" if task.job.at_once else "it is given to Ray again"
            )
        for option, resource in RESOURCES.items():
            wanted = task.job.claims.get(option, 0.0)
            offered = [one["Resources"].get(resource, 0.0) for one in self._known_nodes() if one["Alive"]]
            if wanted > (most := max(offered, default=0.0)):
                return f"{option} is {wanted:g}, and the nodes that are there have at most {most:g}"
        return "for room on a node"

    def _known_nodes(self) -> Sequence[Mapping[str, Any]]:
        if self.clock() - self._nodes_at >= NODES_SECONDS:
            self._nodes, self._nodes_at = self.cluster.nodes(), self.clock()
        return self._nodes


class RealCluster:
    """The Ray cluster to which this process is connected."""

    def __init__(self, address: str) -> None:
        import ray

        from protofleet.lab.engines import ray_task

        self._ray = ray
        # A task does not end with this process, so it gets no PARENT. Ray adds variables when it connects.
        self._environment = {key: value for key, value in os.environ.items() if key != PARENT}
        ray.cloudpickle.register_pickle_by_value(ray_task)
        ray.init(address=address, log_to_driver=False, logging_level="error")
        self._function = ray.remote(ray_task.run_task_here)
        self.address: str = ray.get_runtime_context().gcs_address

    def start(self, task: DriverTask) -> Any:
        # The driver itself gives a lost task to Ray again, so that it knows which node was lost.
        options = {"max_retries": 0, "scheduling_strategy": "SPREAD", **task.job.claims}
        return self._function.options(**options).remote(
            task.words, str(task.log), str(task.place), self._environment, task.job.working_folder
        )

    def ended(self, results: Sequence[Any]) -> Mapping[Any, Outcome]:
        if not results:
            return {}
        ready, _ = self._ray.wait(list(results), num_returns=len(results), timeout=0, fetch_local=False)
        return {result: self._outcome(result) for result in ready}

    def _outcome(self, result: Any) -> Outcome:
        errors = self._ray.exceptions
        try:
            self._ray.get(result)
        except (errors.TaskCancelledError, KeyboardInterrupt):
            return "cancelled"
        except (errors.NodeDiedError, errors.ObjectLostError):
            return "lost"
        except (
            errors.RayTaskError
        ):  # The function has raised an error, for example because it sees no folder.
            return "done"
        except errors.RayError:
            return "crashed"
        return "done"

    def cancel(self, result: Any, kill: bool) -> None:
        self._ray.cancel(result, force=kill)

    def nodes(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = self._ray.nodes()
        return found


def follow(driver: RayDriver, requests: int, write: Callable[[Mapping[str, Any]], None]) -> None:
    """Perform the requests of the command until it closes the pipe."""
    partial = b""
    while True:
        if select.select([requests], [], [], TICK_SECONDS)[0]:
            if not (data := os.read(requests, 1 << 16)):
                return
            *lines, partial = (partial + data).split(b"\n")
            for line in lines:
                perform(driver, json.loads(line), write)
        driver.pump()


def perform(
    driver: RayDriver, request: Mapping[str, Any], write: Callable[[Mapping[str, Any]], None]
) -> None:
    match request["verb"]:
        case "submit":
            driver.submit(request["job"], DriverJob(**request["what"]))
        case "cancel":
            driver.cancel(request["job"], request["kill"])
        case "states":
            driver.pump()
            states = list(driver.states(request["job"]))
            write({"number": request["number"], "states": states, "bad": driver.bad})


def main(address: str) -> None:
    end_with_parent()
    # Ray prints to the standard output too.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def write(answer: Mapping[str, Any]) -> None:
        print(json.dumps(answer, allow_nan=False), file=answers, flush=True)

    try:
        cluster = RealCluster(address)
    except Exception as error:  # noqa: BLE001 - Ray raises errors of many classes, and the command tells of them
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        write({"problem": lines[0] if lines else type(error).__name__})
        return
    write({"address": cluster.address})
    follow(RayDriver(cluster), sys.stdin.fileno(), write)


if __name__ == "__main__":
    main(*sys.argv[1:])
