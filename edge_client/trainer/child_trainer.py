"""Training in a separate process: if this process runs out of memory, the agent reports this and continues.

The process is spawned and not forked, because CUDA does not work after a fork. It runs as long as the agent. It has
the data, the network and the optimizers, while the agent communicates with the coordinator. If the process dies, a
new process continues from the job's last state on the disk, in the same way as after a reboot of the device. So the
update has the same bits as without the restart.
"""

from __future__ import annotations

import logging
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.scaling import SampleKind
from protofleet.edge_client.data.shard import TensorSamples
from protofleet.edge_client.trainer.errors import TrainerDiedError, TrainingError
from protofleet.edge_client.trainer.job import Metrics
from protofleet.edge_client.trainer.pipe import ClosedError, receive, send
from protofleet.methods.contract.plan import Plan
from protofleet.methods.plugins.authors import AuthorError
from protofleet.protocol.settings.reader import SettingsError, decode, encode
from protofleet.protocol.wire.messages import NOTHING, Arrays
from protofleet.protocol.wire.reasons import DisconnectReason
from protofleet.runtime import children

log = logging.getLogger("protofleet.device")

KILLED: Final = -9  # exit code of a process that was killed, for example by the kernel
# Longest time in which the process may load the data, or build them at the first start.
START_SECONDS: Final = 1800.0
EVENTS: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Labels:
    """The part of the data that the agent needs: the labels, without the samples."""

    domain: str
    classes: int
    train: TensorSamples
    validation: TensorSamples
    test: TensorSamples
    names: tuple[str, ...]
    kind: SampleKind  # kind of the samples


class ChildTrainer:
    """The agent's side of the child process.

    Only the agent's worker calls the methods, one at a time. But any thread may call `stop`. `saved` returns the
    job's state on the disk, from which a new process continues.
    """

    place = torch.device("cpu")  # The agent's process does not use the GPU, because it does not train.
    admission = None

    def __init__(self, settings: DeviceSettings, saved: Callable[[], Arrays | None]) -> None:
        self._settings = self._own = settings
        self._saved = saved
        self._child: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._kills = 0
        self._listing: Arrays | None = None  # the inbox's list, which each new process gets
        try:
            self.data = self._start_process()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """Return the id of the child process; 0 while there is no child."""
        return self._child.pid if self._child is not None else 0

    def start(self, plan: Plan) -> ChildJob:
        self._ensure_process()
        self._build(plan)
        return ChildJob(self, plan)

    def run(self, plan: Plan, task: dict[str, Any], received: Arrays) -> tuple[Arrays, Metrics, Arrays]:
        """Run a task of a job, and return the update, the metrics and the state after the task."""
        if not self._ensure_process():
            self._build(plan)
            if (saved := self._saved()) is not None:
                self._request({"do": "restore"}, saved)
        answer, payload = self._request({"do": "run", **task}, received)
        _, state = self._receive()
        return payload, answer["metrics"], state

    def restore(self, state: Arrays) -> None:
        self._request({"do": "restore"}, state)

    def _start_process(self) -> Labels:
        ours, theirs = socket.socketpair()
        with theirs:
            command = children.command("protofleet.edge_client.trainer.child_process", str(theirs.fileno()))
            self._child = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._socket, self._kills = ours, kills()
        ours.settimeout(START_SECONDS)
        message, arrays = self._request({"do": "start", "settings": encode(self._settings)})
        ours.settimeout(self._settings.trainer_seconds)
        if self._listing is not None:
            self._request({"do": "learn_from"}, self._listing)
        part = TensorSamples(torch.empty(0), torch.from_numpy(arrays["labels"].copy()))
        kind = decode(SampleKind, message["kind"])
        return Labels(message["domain"], message["classes"], part, part, part, tuple(message["names"]), kind)

    def learn_from(self, listing: Arrays) -> None:
        """Use the device's own data and the listed samples of the inbox for all jobs that start from now on."""
        self._listing = listing
        if self._ensure_process():
            self._request({"do": "learn_from"}, listing)

    def limit(self, memory_bytes: int, seconds: float) -> None:
        """Set the limits of each child process that starts from now on; 0 means the limit in the settings."""
        s = self._own
        memory, longest = memory_bytes or s.trainer_memory_bytes, seconds or s.trainer_seconds
        self._settings = replace(s, trainer_memory_bytes=memory, trainer_seconds=longest)

    def stop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        self._child = self._socket = None

    def _build(self, plan: Plan) -> None:
        self._request({"do": "build", "plan": plan.encode().decode()})

    def _request(self, message: dict[str, Any], arrays: Arrays = NOTHING) -> tuple[dict[str, Any], Arrays]:
        assert self._socket is not None
        try:
            send(self._socket, message, arrays)
        except ClosedError:
            raise self._died() from None
        return self._receive()

    def _receive(self) -> tuple[dict[str, Any], Arrays]:
        assert self._socket is not None
        try:
            message, arrays = receive(self._socket)
        except ClosedError:
            raise self._died() from None
        if "no_memory" in message:
            self.stop()
        raise_reported(message)
        return message, arrays

    def _ensure_process(self) -> bool:
        """Return whether the child process still runs; if not, start a new one, which has no job yet."""
        if self._child is not None and self._child.poll() is None:
            return True
        self.stop()
        self._start_process()
        return False

    def _died(self) -> TrainerDiedError:
        child, before = self._child, self._kills
        assert child is not None
        try:
            code = child.wait(1.0)
        except subprocess.TimeoutExpired:  # The child still runs, but did not reply in time.
            seconds = self._settings.trainer_seconds
            self.stop()
            return TrainerDiedError(
                DisconnectReason.TRAINING_DIED, f"the work did not end within {seconds:g} s"
            )
        self.stop()
        if code == KILLED and (before < 0 or kills() > before):
            return TrainerDiedError(
                DisconnectReason.OUT_OF_MEMORY, "the kernel has ended the process that trains"
            )
        return TrainerDiedError(
            DisconnectReason.TRAINING_DIED, f"the process that trains has ended with {code}"
        )


class ChildJob:
    """A job whose half is in the child process; it keeps a copy of the half's state after the last task."""

    def __init__(self, trainer: ChildTrainer, plan: Plan) -> None:
        self._trainer, self._plan = trainer, plan
        self._state: Arrays = NOTHING

    def run(self, phase: str, number: int, received: Arrays) -> tuple[Arrays, Metrics]:
        task = {"phase": phase, "round": number}
        payload, metrics, self._state = self._trainer.run(self._plan, task, received)
        return payload, metrics

    def state(self) -> Arrays:
        return self._state

    def restore(self, state: Arrays) -> None:
        self._state = state
        self._trainer.restore(state)


def raise_reported(message: Mapping[str, Any]) -> None:
    """Raise the error that a message of a child process reports; do nothing if it reports none."""
    match message:
        case {"unfit": str(reason)}:
            raise SettingsError(reason)
        case {"data": str(reason)}:
            raise DataError(reason)
        case {"no_memory": str(reason)}:
            raise TrainerDiedError(DisconnectReason.OUT_OF_MEMORY, reason)
        case {"wrong_arrays": str(reason)}:
            # The process still runs, and it makes a new half for the next plan.
            raise TrainerDiedError(DisconnectReason.WRONG_ARRAYS, reason)
        case {"plug_in": str(reason)}:
            raise AuthorError(reason)
        case {"raised": str(reason)}:
            raise TrainingError(reason)


def kills(root: Path = EVENTS, own: Path = Path("/proc/self/cgroup")) -> int:
    """Return how many processes of this control group the kernel has killed for lack of memory; -1 if unknown."""
    try:
        group = own.read_text().strip().rpartition("::")[2].lstrip("/")
        lines = (root / group / "memory.events").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    except (OSError, ValueError, StopIteration):
        return -1
