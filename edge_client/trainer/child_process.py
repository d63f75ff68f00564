"""The process that trains: it has the data and the job, and runs it as the agent asks through a socket."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, Final

from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.trainer.job import LocalJob
from protofleet.edge_client.trainer.local import LocalTrainer
from protofleet.edge_client.trainer.pipe import ClosedError, hear, say
from protofleet.methods.contract.plan import read_plan
from protofleet.protocol.settings.reader import decode
from protofleet.protocol.wire.messages import Arrays
from protofleet.runtime.allocator import return_large_blocks
from protofleet.runtime.faults import NO_MEMORY
from protofleet.runtime.logs import end_plainly, log_plainly

PR_SET_PDEATHSIG: Final = 1


def main(number: int) -> int:
    """Serve until the agent closes its end, or ends in whatever way."""
    die_with_the_agent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the agent ends us
    end_plainly()
    log_plainly(sys.stderr)
    with socket.socket(fileno=number) as door, contextlib.suppress(ClosedError):
        words, _ = hear(door)
        settings = decode(DeviceSettings, words["settings"])
        limit_memory(settings.trainer_memory_bytes)
        return_large_blocks()
        try:
            server = JobServer(door, LocalTrainer(settings))
        except DataError as error:
            say(door, {"data": str(error)})
            return 1
        server.greet()
        while True:
            server.answer(*hear(door))
    return 0


class JobServer:
    """Builds the job that the agent names, and runs it."""

    def __init__(self, door: socket.socket, trainer: LocalTrainer) -> None:
        self._door, self._trainer = door, trainer
        self._job: LocalJob

    def greet(self) -> None:
        data = self._trainer.data
        told = {"domain": data.domain, "classes": data.classes, "names": data.names}
        say(self._door, told, {"labels": data.train.y.cpu().numpy()})

    def answer(self, words: dict[str, Any], arrays: Arrays) -> None:
        try:
            self._do(words, arrays)
        except ClosedError:
            raise
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not any(text in str(error).lower() for text in NO_MEMORY):
                say(self._door, {"raised": traceback.format_exc()})
            else:
                message = " ".join(str(error).split())[:200] or "a Python object found no room"
                say(self._door, {"no_memory": message})
        except ValueError as error:
            unfit = words["do"] == "build"
            say(self._door, {"unfit": str(error)} if unfit else {"raised": traceback.format_exc()})
        except Exception:  # noqa: BLE001 - the agent raises it again
            say(self._door, {"raised": traceback.format_exc()})

    def _do(self, words: dict[str, Any], arrays: Arrays) -> None:
        match words["do"]:
            case "build":
                self._job = self._trainer.start(read_plan(words["plan"].encode()))
                say(self._door, {})
            case "restore":
                self._job.restore(arrays)
                say(self._door, {})
            case "run":
                payload, metrics = self._job.run(words["phase"], words["round"], arrays)
                say(self._door, {"metrics": metrics}, payload)
                say(self._door, {}, self._job.state())


def limit_memory(most: int) -> None:
    """The kernel, where it has to choose, ends this process and not the agent."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    if most:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def die_with_the_agent() -> None:
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
