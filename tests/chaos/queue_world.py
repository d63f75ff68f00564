"""A coordinator with a queue, devices that take part in two runs, and an operator, in real processes."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from protofleet.coordinator.queue.folder import queue_folder
from protofleet.coordinator.queue.queue_file import QueueFile
from protofleet.coordinator.service_settings import without_run
from protofleet.edge_client.state.file import read_state_file
from protofleet.lab.local.experiment import Experiment, coordinator_settings
from protofleet.protocol.settings.reader import encode, write_toml
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.wire.names import COORDINATOR
from tests.chaos.operator import Operator
from tests.chaos.proxy import Proxy
from tests.chaos.queue_audit import Told, one_coordinator, queue_violations
from tests.chaos.seclusion import Network
from tests.chaos.world import Process, RunFiles, World, rounds_in

SLOTS = 2
SECOND_SECONDS = 60.0  # Seconds in which a second coordinator must have ended.
REFUSED = re.compile(r"another coordinator( \(pid \d+\))? uses ")


@dataclass
class Second:
    """A second coordinator on the folder of the first one."""

    process: Process
    log_begins: int  # The size of the log when it was started.
    beside: subprocess.Popen[bytes] | None  # The first one, if it conducted the queue then.


class QueueWorld(World):
    """The processes of a queue; `experiments` are its runs, in the order in which they are submitted."""

    coordinator_disk = 80 << 20
    stays = True

    def __init__(
        self, folder: Path, federation: str, experiments: Sequence[Experiment], lines: dict[str, Proxy],
        port: int, network: Network | None,
    ) -> None:  # fmt: skip
        self.experiments = experiments
        super().__init__(folder, replace(experiments[0], name=federation), lines, port, network)
        self.runs = folder / COORDINATOR
        self.operator = Operator(self.runs, self.note)
        self.refused = 0  # The number of second coordinators that were refused.
        self._second: Second | None = None
        self._problems: list[str] = []

    def __enter__(self) -> QueueWorld:
        super().__enter__()
        self.operator.start()
        for experiment in self.experiments:
            settings = coordinator_settings(experiment, self._address(COORDINATOR), self.folder, "chaos")
            file = self.folder / f"{experiment.name}.toml"
            file.write_text(write_toml(without_run(encode(settings))[1]))
            self.operator.submit(file, experiment.name)
        return self

    def __exit__(self, *error: object) -> None:
        self.operator.close()
        if self._second:
            self._second.process.kill()
        super().__exit__(*error)

    @property
    def audited(self) -> list[RunFiles]:
        return [RunFiles(one, self.runs / one.name, self.logs, one.name) for one in self.experiments]

    @property
    def finished(self) -> bool:
        rows = self.operator.rows
        return all(one.name in rows and rows[one.name]["over"] for one in self.experiments)

    @property
    def problem(self) -> str:
        ended = [f"{name} has ended" for name, process in self.processes.items() if process.done]
        return "; ".join([*self.operator.check.problems, *self._problems, *ended])

    @property
    def rounds(self) -> int:
        return sum(rounds_in(files.results) for files in self.audited)

    @property
    def state(self) -> str:
        rows = self.operator.rows
        return "; ".join(
            f"{one.name} is {rows[one.name]['state'] if one.name in rows else 'unknown'} after "
            f"{rounds_in(self.runs / one.name)} of {one.rounds} rounds"
            for one in self.experiments
        )

    def let_everybody_go(self, seconds: float) -> list[str]:
        """Wait until the devices know that all runs are over; return those that do not."""
        deadline = time.monotonic() + seconds
        while (waiting := [n for n in self.devices if self._has_a_run(n)]) and time.monotonic() < deadline:
            self.watch()
            time.sleep(0.05)
        return waiting

    def _has_a_run(self, device: str) -> bool:
        file = self.place_of(device) / "device.json"
        return not all(entry.over for entry in read_state_file(file.read_bytes(), file).runs)

    def give(self, verb: str, run: str) -> None:
        self.operator.give(verb, run)

    def violations(self) -> list[str]:
        """Compare the file of the queue with the results that the operator got, and find a second coordinator."""
        folder = queue_folder(self.runs)
        queue = QueueFile(folder, self.experiment.name, time.time, Disk(durable=False))
        try:
            kept = [Told(one.verb, one.run, one.verdict) for one in queue.newest_of_all(10_000)]
            log = self.processes[COORDINATOR].log.read_text(errors="replace")
            return [*queue_violations(queue.runs, kept, self.operator.told), *one_coordinator(log)]
        finally:
            queue.close()

    # A second coordinator.

    def start_second(self) -> None:
        first = self.processes[COORDINATOR]
        conducts = first.runs() and self.operator.answered_at > first.started_at
        # It writes to the same log, because it becomes the coordinator if the first one is killed now.
        second = Process("second", first.command, first.log)
        self._second = Second(second, first.log.stat().st_size, first.child if conducts else None)
        second.start()

    def end_second(self) -> None:
        """End a second coordinator; it is a problem if it runs at the same time as the first one."""
        assert self._second is not None
        second, first = self._second, self.processes[COORDINATOR]
        self._second = None
        was_alone = second.beside is None or second.beside is not first.child or not first.runs()
        if second.process.runs() and not was_alone:
            with contextlib.suppress(subprocess.TimeoutExpired):
                second.process.child.wait(SECOND_SECONDS)
        if second.process.runs():
            second.process.kill()
            if not was_alone:
                self._problems.append("a second coordinator conducts the queue beside the first one")
        else:
            said = first.log.read_bytes()[second.log_begins :]
            self.refused += REFUSED.search(said.decode(errors="replace")) is not None

    def _table_of_coordinator(self, table: dict[str, object]) -> dict[str, object]:
        return {**without_run(table)[0], "slots": SLOTS}
