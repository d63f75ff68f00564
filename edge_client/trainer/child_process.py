"""The child process that trains: it has the data and the job, and receives requests of the agent over a socket."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import resource
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, Final

from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.trainer.errors import TrainerDiedError
from protofleet.edge_client.trainer.job import Job
from protofleet.edge_client.trainer.local import LocalTrainer
from protofleet.edge_client.trainer.pipe import ClosedError, receive, send
from protofleet.methods.contract.plan import read_plan
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.methods.plugins.authors import AuthorError
from protofleet.methods.plugins.errors import PlugInError
from protofleet.protocol.settings.reader import decode, encode
from protofleet.protocol.wire.messages import Arrays
from protofleet.protocol.wire.reasons import DisconnectReason
from protofleet.runtime.allocator import keep_blocks_at_work
from protofleet.runtime.faults import as_authors, is_want_of_memory
from protofleet.runtime.logs import log_uncaught_errors, set_up_logging

log = logging.getLogger("protofleet.device")

PR_SET_PDEATHSIG: Final = 1


def main(number: int) -> int:
    """Serve requests until the agent closes its end of the socket or ends; `number` is the handle of the socket."""
    die_with_the_agent()
    # A terminal sends Ctrl-C to this process too, but the agent decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log_uncaught_errors()
    set_up_logging(sys.stderr)
    with socket.socket(fileno=number) as connection, contextlib.suppress(ClosedError):
        message, _ = receive(connection)
        settings = decode(DeviceSettings, message["settings"])
        limit_memory(settings.trainer_memory_bytes)
        keep_blocks_at_work()
        try:
            server = JobServer(connection, LocalTrainer(settings), settings.plugins)
        except (DataError, PlugInError) as error:
            send(connection, {"data" if isinstance(error, DataError) else "unfit": str(error)})
            return 1
        server.describe_data()
        while True:
            server.answer(*receive(connection))
    return 0


class JobServer:
    """The server that builds the job of the agent's plan and runs it."""

    def __init__(self, connection: socket.socket, trainer: LocalTrainer, plugins: PlugIns) -> None:
        self._connection, self._trainer, self._plugins = connection, trainer, plugins
        self._job: Job

    def describe_data(self) -> None:
        data = self._trainer.data
        description = {
            "domain": data.domain, "classes": data.classes, "names": data.names, "kind": encode(data.kind),
        }  # fmt: skip
        send(self._connection, description, {"labels": data.train.y.cpu().numpy()})

    def answer(self, message: dict[str, Any], arrays: Arrays) -> None:
        try:
            self._do(message, arrays)
        except ClosedError:
            raise
        except BaseException as error:  # noqa: BLE001 - the agent raises it again
            send(self._connection, words_of(error, is_build=message["do"] == "build"))

    def _do(self, message: dict[str, Any], arrays: Arrays) -> None:
        match message["do"]:
            case "build":
                self._job = self._trainer.start(read_plan(message["plan"].encode(), self._plugins))
                send(self._connection, {})
            case "learn_from":
                self._trainer.learn_from(arrays)
                send(self._connection, {})
            case "restore":
                self._job.restore(arrays)
                send(self._connection, {})
            case "run":
                payload, metrics = self._job.run(message["phase"], message["round"], arrays)
                send(self._connection, {"metrics": metrics}, payload)
                send(self._connection, {}, self._job.state())


def words_of(error: BaseException, is_build: bool) -> dict[str, str]:
    """Return the message about an error, from which `raise_reported` makes an error in the other process."""
    match as_authors(error) or error:
        case TrainerDiedError(why=DisconnectReason.WRONG_ARRAYS) as found:
            return {"wrong_arrays": found.message}
        case AuthorError() | PlugInError() as found if not is_build:
            log.error("%s", found, exc_info=error)
            return {"plug_in": str(found)}
        case MemoryError() | RuntimeError() if is_want_of_memory(error):
            reason = " ".join(str(error).split())[:200]
            return {"no_memory": reason or "a Python object found no room"}
        case AuthorError() | ValueError() as found if is_build:
            return {"unfit": str(found)}
    return {"raised": "".join(traceback.format_exception(error))}


def limit_memory(most: int) -> None:
    """Limit the memory of this process to `most` bytes; 0 means no limit.

    If the machine's memory runs out, the kernel kills this process before the agent's process.
    """
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
