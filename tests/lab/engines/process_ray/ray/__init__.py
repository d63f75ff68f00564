"""A Ray of one node on this machine for tests of the engine: each task is a forked process of the driver.

Tests put the folder above on the path of the driver, in place of the real package.
"""

from __future__ import annotations

import ctypes
import os
import signal
from dataclasses import dataclass
from types import SimpleNamespace

NODE = "0123abcd"


class RayError(Exception):
    """The base class of Ray's errors."""


class TaskCancelledError(RayError):
    """The error of a cancelled task."""


class NodeDiedError(RayError):
    """The error of a task whose node has died."""


class ObjectLostError(RayError):
    """The error of a lost result."""


class RayTaskError(RayError):
    """The error of a task whose function has raised an error."""


class WorkerCrashedError(RayError):
    """The error of a task whose worker has ended."""


exceptions = SimpleNamespace(
    RayError=RayError, TaskCancelledError=TaskCancelledError, NodeDiedError=NodeDiedError,
    ObjectLostError=ObjectLostError, RayTaskError=RayTaskError,
)  # fmt: skip
cloudpickle = SimpleNamespace(register_pickle_by_value=lambda module: None)


@dataclass(eq=False)
class Result:
    pid: int
    cancelled: bool = False
    code: int | None = None

    def poll(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None


def init(address: str, log_to_driver: bool, logging_level: str) -> None:
    if problem := os.environ.get("PROCESS_RAY_PROBLEM"):
        raise ConnectionError(f"\n{problem}\nmore words")


def get_runtime_context() -> SimpleNamespace:
    address = os.environ.get("PROCESS_RAY_ADDRESS", "")
    return SimpleNamespace(gcs_address=address, get_node_id=lambda: NODE)


def nodes() -> list[dict]:
    return [{"NodeID": NODE, "NodeName": "n1", "Alive": True, "Resources": {"CPU": 2.0}}]


def remote(function):
    def start(*arguments):
        if pid := os.fork():
            return Result(pid)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # A worker ends with its driver.
        try:
            code = function(*arguments)
        except KeyboardInterrupt:
            code = 130
        except Exception:  # noqa: BLE001 - a task ends with any error
            code = 99
        os._exit(code)

    return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=start))


def wait(results, num_returns, timeout, fetch_local):
    ready = [one for one in results if one.poll()]
    return ready, [one for one in results if one not in ready]


def get(result):
    if result.cancelled or result.code == 130:
        raise TaskCancelledError
    if result.code < 0:
        raise WorkerCrashedError
    if result.code == 99:
        raise RayTaskError
    return result.code


def cancel(result, force):
    result.cancelled = force
    os.kill(result.pid, signal.SIGKILL if force else signal.SIGINT)
