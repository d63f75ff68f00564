"""The process that trains: it has the data and the half, and does what the agent asks through a socket."""

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

from protofleet.edge_client.bounds import Builder
from protofleet.edge_client.compute import moved, set_torch
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.shard import load
from protofleet.edge_client.pictures import save_picture
from protofleet.edge_client.trainer.pipe import ClosedError, hear, say
from protofleet.edge_client.trainer.work import work
from protofleet.methods.contract.base import Ask, ClientHalf
from protofleet.methods.contract.bridge import kept, to_numpy
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
        try:
            trainer = Child(decode(DeviceSettings, words["settings"]))
        except DataError as error:
            say(door, {"data": str(error)})
            return 1
        data = trainer.data
        told = {"domain": data.domain, "classes": data.classes, "names": data.names}
        say(door, told, {"labels": data.train.y.cpu().numpy()})
        while True:
            answer(door, trainer, *hear(door))
    return 0


def answer(door: socket.socket, trainer: Child, words: dict[str, Any], arrays: Arrays) -> None:
    try:
        match words["do"]:
            case "build":
                trainer.build(words["plan"])
                say(door, {})
            case "restore":
                trainer.half.restore(kept(arrays))
                say(door, {})
            case "work":
                payload, metrics = trainer.work(words["phase"], words["round"], words["reports"], arrays)
                say(door, {"metrics": metrics}, payload)
                say(door, {}, to_numpy(trainer.half.state()))
    except ClosedError:
        raise
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(text in str(error).lower() for text in NO_MEMORY):
            say(door, {"raised": traceback.format_exc()})
        else:
            say(door, {"no_memory": " ".join(str(error).split())[:200] or "a Python object found no room"})
    except ValueError as error:
        say(door, {"unfit": str(error)} if words["do"] == "build" else {"raised": traceback.format_exc()})
    except Exception:  # noqa: BLE001 - the agent raises it again
        say(door, {"raised": traceback.format_exc()})


class Child:
    def __init__(self, settings: DeviceSettings) -> None:
        limit_memory(settings.trainer_memory_bytes)
        return_large_blocks()
        self.place = set_torch(settings)
        self.settings, self.data = settings, moved(load(settings.data), self.place)
        self.half: ClientHalf

    @property
    def album(self) -> Path:
        return Path(self.settings.folder) / "pictures"

    def build(self, text: str) -> None:
        plan, s = read_plan(text.encode()), self.settings
        self.half = Builder(s.limits, self.data.train, s.name, s.network, self.place).build(plan)

    def work(self, phase: str, number: int, reports: str, arrays: Arrays) -> tuple[Arrays, dict[str, float]]:
        ask = Ask(phase, {name: value.to(self.place) for name, value in kept(arrays).items()})
        payload, metrics = work(self.half, self.data, ask, number, reports)
        if self.settings.pictures.wanted(number, phase):
            most = self.settings.pictures.samples
            save_picture(self.album, most, number, self.half, self.data, ask.payload, payload)
        return to_numpy(payload), metrics


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
