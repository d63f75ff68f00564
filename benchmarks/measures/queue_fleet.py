"""A coordinator with a queue of runs, and device processes of the product, for measures."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.measure import MeasureError
from benchmarks.harness.processes import Family
from benchmarks.harness.trees import Tree
from protofleet.federation.brokers.local import LocalBroker
from protofleet.federation.enrol.local_federation import enrol_federation
from protofleet.protocol.settings.reader import write_toml
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.runtime.control_socket import CONTROL_SOCKET, send

FEDERATION = "queued"
QUEUE = ".queue"  # Folder of the queue in the folder of the coordinator's runs.
POLL_SECONDS = 0.05
LIMIT_SECONDS = 600.0
EXAMPLES = 600
# FedAvg with 52,974 parameters: 193 * 251 + 252 * 16 + 17 * 10.
LEARNING: Mapping[str, Any] = {
    "classes": 10, "size": 8, "seed": 1, "network": {"name": "mlp", "embedding_size": 251},
    "method": {"name": "fedavg", "lr": 0.02, "epochs": 1},
}  # fmt: skip


class QueueFleet:
    """A broker, a coordinator with a queue, and its devices. They run while the `with` block is executed."""

    def __init__(self, tree: Tree, folder: Path, devices: int) -> None:
        self.tree, self.folder = tree, folder
        self.names = [f"device-{i}" for i in range(devices)]

    def __enter__(self) -> QueueFleet:
        with contextlib.ExitStack() as stack:
            self._fleet = enrol_federation(self.folder / "enrolled", FEDERATION, self.names)
            self.family = stack.enter_context(Family(self.folder, self.tree.environment()))
            self.broker = stack.enter_context(LocalBroker(self.folder / "broker", "mosquitto"))
            for part, name in enumerate(self.names):
                self._start(name, "device", self._device(part, name))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(None, None, None)

    def start_coordinator(self, slots: int) -> None:
        """Start the coordinator, and wait until it takes commands."""
        self._start("coordinator", "coordinator", self._service(slots))
        self.process = self.family.started[-1]
        socket = self.folder / "runs" / QUEUE / CONTROL_SOCKET
        self.until(socket.exists, "the coordinator took commands")

    def end_coordinator(self) -> None:
        self.process.terminate()
        self.process.wait(LIMIT_SECONDS)

    def submit(self, name: str, **experiment: Any) -> None:
        text = write_toml({**LEARNING, "name": name, **experiment})
        self.ask("submit", name, experiment=text, after="", priority=0)

    def rows(self) -> dict[str, Mapping[str, Any]]:
        """Return the rows of the queue by the names of the runs."""
        return {row["run"]: row for row in self.ask("runs", "")["runs"]}

    def ask(self, verb: str, run: str, **more: Any) -> dict[str, Any]:
        request = {"id": secrets.token_hex(16), "verb": verb, "run": run, "reason": "", **more}
        answer = send(self.folder / "runs" / QUEUE, request)
        if answer["verdict"] != "done":
            raise MeasureError(
                f"the coordinator replied to {verb} {run}: {answer}; {self.family.last_words()}"
            )
        return answer

    def rounds(self, run: str) -> list[dict[str, Any]]:
        """Return the records of a run, without a line that is not complete yet."""
        with contextlib.suppress(FileNotFoundError):
            *lines, _ = (self.folder / "runs" / run / "rounds.jsonl").read_text().split("\n")
            return [json.loads(line) for line in lines]
        return []

    def finish(self, runs: Mapping[str, int]) -> dict[str, Mapping[str, Any]]:
        """Wait for the end of these runs, whose values are numbers of rounds, and return their rows.

        If a run has failed, or if a device has missed one of its rounds, MeasureError is raised.
        """
        self.until(
            lambda: all(self.rows()[run]["over"] for run in runs), f"the runs {sorted(runs)} were over"
        )
        rows = self.rows()
        for run, number in runs.items():
            records = self.rounds(run)
            whole = [
                all(len(phase["answered"]) == len(self.names) for phase in one["phases"]) for one in records
            ]
            if rows[run]["state"] != "finished" or len(records) != number + 1 or not all(whole):
                raise MeasureError(
                    f"{run} cannot be measured: it is {rows[run]['state']} after {len(records)} records, of which "
                    f"{sum(whole)} have updates of all devices; {self.family.last_words()}"
                )
        return {run: rows[run] for run in runs}

    def until(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not true():
            if ended := [child.args for child in self.family.started if child.poll() not in (None, 143)]:
                raise MeasureError(f"{ended} ended before {what}; {self.family.last_words()}")
            if time.monotonic() > deadline:
                raise MeasureError(
                    f"after {LIMIT_SECONDS:.0f} s, not yet: {what}; {self.family.last_words()}"
                )
            time.sleep(POLL_SECONDS)

    def _start(self, name: str, job: str, settings: Mapping[str, Any]) -> None:
        path = self.folder / f"{name}.toml"
        broker = {"host": "127.0.0.1", "port": self.broker.address.port}
        path.write_text(write_toml({"federation": FEDERATION, "threads": 1, "broker": broker, **settings}))
        self.family.start(name, *self.tree.command("protofleet", job, str(path)))

    def _service(self, slots: int) -> Mapping[str, Any]:
        return {
            "folder": str(self.folder / "runs"), "enrolled": str(self._fleet.folder_of(COORDINATOR)),
            "devices": str(self._fleet.root / "records"), "slots": slots,
        }  # fmt: skip

    def _device(self, part: int, name: str) -> Mapping[str, Any]:
        return {
            "name": name, "folder": str(self.folder / "devices" / name), "compute": "cpu",
            "enrolled": str(self._fleet.folder_of(name)),
            "data": {"source": "digits", "domain": "mnist", "size": LEARNING["size"], "split": "iid", "part": part,
                     "parts": len(self.names), "samples": EXAMPLES},
        }  # fmt: skip
