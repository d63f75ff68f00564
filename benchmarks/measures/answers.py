"""The cost of an update for a coordinator: CPU, seconds, bytes on the wire and on the disk, syncs, repeated updates.

A real coordinator process runs with a real Mosquitto, and robots (benchmarks/programs/robots.py) play the
devices. The method is FedProto, with 20 kB of prototypes for each device. The figures are counted from the
end of the first round to the end of the last training round.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.harness.measure import Figure, MeasureError
from benchmarks.harness.processes import LOOPBACK, Counters, Family, counters
from benchmarks.harness.syncs import Syncs
from benchmarks.harness.trees import Tree
from protofleet.federation.brokers.local import LocalBroker
from protofleet.federation.brokers.ports import free_port
from protofleet.federation.enrol.local_federation import LocalFederation, enrol_federation
from protofleet.protocol.settings.reader import write_toml
from protofleet.protocol.wire.names import COORDINATOR

FEDERATION = "swarm"
POLL_SECONDS = 0.005
LIMIT_SECONDS = 900.0
SHARED_MEMORY = Path("/dev/shm")
LAST_SEEN = "protofleet_device_last_seen_timestamp_seconds{"

# Settings with updates of 20 kB.
PROTOTYPES = {"method": {"name": "fedproto"}, "network": {"name": "cnn4"}, "size": 32}
# The figures in the result of `cost`.
COST = {
    "coordinator's CPU an answer": Figure("ms"),
    "from the ask to the last answer": Figure("s"),
    "answers said again": Figure("of 100"),
}


@dataclass(frozen=True)
class Answers:
    robots: int
    rounds: int = 4
    sync_seconds: float = 0.0  # Extra seconds that the disk takes for each sync.
    codec: str = ""  # Name of the run's codec; "" if the run sets none.
    figures: ClassVar = {
        **COST,
        "wire / payload": Figure("", steady=True),
        "written / payload": Figure("", steady=True),
        "syncs an answer": Figure("", steady=True),
    }

    @property
    def name(self) -> str:
        name = f"{'slow-disk' if self.sync_seconds else 'answers'}-{self.robots}"
        return f"{name}-{self.codec}" if self.codec else name

    @property
    def what(self) -> str:
        slow = f", each sync {1e3 * self.sync_seconds:.0f} ms longer" if self.sync_seconds else ""
        codec = f" with the codec {self.codec}" if self.codec else ""
        return f"a coordinator with {self.robots} robots that answer 20 kB each{codec}{slow}"

    def take(self, tree: Tree, folder: Path) -> dict[str, float]:
        learning = {**PROTOTYPES, "codec": self.codec} if self.codec else PROTOTYPES
        made = Swarm(
            tree, folder, self.robots, self.rounds, sync_seconds=self.sync_seconds, learning=learning
        )
        with made as swarm:
            before = swarm.at_round(1)
            after = swarm.at_round(self.rounds)
            records = swarm.finish()[1 : self.rounds]
        answers, payload = self.robots * (self.rounds - 1), total(records, "payload")
        return {
            **cost(before, after, records, answers),
            "wire / payload": total(records, "wire") / payload,
            "written / payload": (after.process - before.process).written / payload,
            "syncs an answer": (after.syncs - before.syncs) / answers,
        }


def cost(before: Sample, after: Sample, records: list[dict[str, Any]], answers: int) -> dict[str, float]:
    """Return the figures for `answers` updates that arrived between two samples, in the rounds of these records."""
    said = after.told["answers said"] - before.told["answers said"]
    seconds = [phase["seconds"] for record in records for phase in record["phases"]]
    return {
        "coordinator's CPU an answer": (after.process - before.process).cpu_ns / 1e6 / answers,
        "from the ask to the last answer": sum(seconds) / len(records),
        "answers said again": 100 * max(0, said - answers) / answers,
    }


def total(records: list[dict[str, Any]], what: str) -> int:
    return sum(size for record in records for way in record[what].values() for size in way.values())


@dataclass(frozen=True, slots=True)
class Sample:
    process: Counters  # Counters of the coordinator's process.
    syncs: int
    told: dict[str, int]  # Counts that the robots reported.


class Swarm:
    """A coordinator and its robots. They run while the `with` block is executed."""

    def __init__(
        self, tree: Tree, folder: Path, robots: int, rounds: int, *,
        cohort: int = 0, hold_seconds: float = 0.0, sync_seconds: float = 0.0,
        learning: Mapping[str, Any] = PROTOTYPES,
    ) -> None:  # fmt: skip
        """Keep the settings. `learning` has the settings of the method and the network.

        With `rounds` 0, the coordinator has a queue of runs and no run.
        """
        self.tree, self.folder, self.rounds, self.cohort = tree, folder, rounds, cohort or robots
        # The names are short, so that ten thousand of them fit into one argument of a command.
        self.names = [f"r{i}" for i in range(robots)]
        self.hold_seconds, self.sync_seconds, self.learning = hold_seconds, sync_seconds, learning
        self.lines = folder / "runs" / FEDERATION / "rounds.jsonl"

    def __enter__(self) -> Swarm:
        with contextlib.ExitStack() as stack:
            fleet = enrol_federation(self.folder / "enrolled", FEDERATION, self.names)
            self.family = stack.enter_context(Family(self.folder, self.tree.environment()))
            self.broker = stack.enter_context(LocalBroker(self.folder / "broker", "mosquitto"))
            self.syncs = Syncs(self.folder, self.sync_seconds)
            self.metrics_port = free_port()
            self._coordinator(fleet, self.broker.port)
            self.robots = stack.enter_context(self._robots(fleet, self.broker.port))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(None, None, None)

    def _coordinator(self, fleet: LocalFederation, port: int) -> None:
        n = len(self.names)
        settings = {
            "federation": FEDERATION, "folder": str(self.folder / "runs"), "threads": 1,
            "enrolled": str(fleet.folder_of(COORDINATOR)), "devices": str(fleet.root / "records"),
            "metrics_port": self.metrics_port, "broker": {"host": "127.0.0.1", "port": port},
        }  # fmt: skip
        run = {
            "name": FEDERATION, "rounds": self.rounds, "classes": 10, **self.learning,
            "policy": {"quorum": self.cohort, "cohort": self.cohort, "gather": n, "settle_seconds": 60.0,
                       "straggler_factor": 0.0},
        }  # fmt: skip
        path = self.folder / "coordinator.toml"
        path.write_text(write_toml({**settings, **(run if self.rounds else {})}))
        command = self.tree.command("protofleet", "coordinator", str(path))
        self.family.start("coordinator", *command, more=self.syncs.environment)
        self.process = self.family.started[-1]

    @contextlib.contextmanager
    def _robots(self, fleet: LocalFederation, port: int) -> Iterator[subprocess.Popen[str]]:
        memory = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        with tempfile.TemporaryDirectory(dir=memory) as place, (self.folder / "robots.log").open("w") as log:
            wish = {
                "names": self.names, "federation": FEDERATION, "enrolled": str(fleet.folder / "devices"),
                "folder": place, "port": port, "hold_seconds": self.hold_seconds,
                "free_places": int(not self.rounds),
            }  # fmt: skip
            robots = subprocess.Popen(
                self.tree.command("benchmarks.programs.robots", json.dumps(wish)), env=self.family.environment,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd="/",
            )  # fmt: skip
            try:
                yield robots
            finally:
                robots.kill()
                robots.communicate()

    def ask_robots(self) -> dict[str, int]:
        assert self.robots.stdin is not None and self.robots.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.robots.stdin.write("\n")
            self.robots.stdin.flush()
        if not (line := self.robots.stdout.readline()):
            raise MeasureError(f"the robots have ended: {self.family.last_words()}")
        told: dict[str, int] = json.loads(line)
        return {"answers said": 0, "hellos": 0, "answers": 0, "back again": 0, **told}

    def heard_since(self, moment: float) -> int:
        """Return the number of robots from which the coordinator has received a message since `moment`."""
        with urllib.request.urlopen(f"http://{LOOPBACK}:{self.metrics_port}/metrics", timeout=60) as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.split()[-1]) > moment for line in lines if line.startswith(LAST_SEEN))

    def sample(self) -> Sample:
        return Sample(counters(self.process.pid), self.syncs.count, self.ask_robots())

    def at_round(self, number: int) -> Sample:
        """Wait until `number` rounds have ended, and return a sample."""
        self.until(lambda: self._ended() >= number, f"round {number}")
        return self.sample()

    def until(self, true: Any, what: str) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not true():
            if self.process.poll() is not None or self.robots.poll() is not None:
                raise MeasureError(f"a process ended before {what}: {self.family.last_words()}")
            if time.monotonic() > deadline:
                raise MeasureError(
                    f"{what} did not happen within {LIMIT_SECONDS:.0f} s: {self.family.last_words()}"
                )
            time.sleep(POLL_SECONDS)

    def _ended(self) -> int:
        return self.lines.read_bytes().count(b"\n") if self.lines.exists() else 0

    def finish(self) -> list[dict[str, Any]]:
        """Wait for the end of the run, and return the records of all rounds.

        If the run has failed, MeasureError is raised.
        """
        code = self.process.wait(LIMIT_SECONDS)
        records: list[dict[str, Any]] = [json.loads(line) for line in self.lines.read_text().splitlines()]
        told = self.ask_robots()
        if code != 0 or len(records) != self.rounds + 1:
            raise MeasureError(
                f"the coordinator ended with exit code {code} after {len(records)} rounds: "
                f"{self.family.last_words()}"
            )
        for record in records:
            answered = [len(phase["answered"]) for phase in record["phases"]]
            asked = len(self.names) if record["kind"] == "evaluation" else self.cohort
            if set(answered) != {asked} or record["late"] or record["dropped"] or record["attempt"] > 1:
                raise MeasureError(
                    f"round {record['round']} cannot be measured: its phases got {answered} updates of {asked}, or "
                    "an update was late or dropped, or the round was repeated"
                )
        if odd := {k: n for k, n in told.items() if k.startswith(("connections lost", "receipts: refused"))}:
            raise MeasureError(f"the robots counted errors: {odd}")
        if not self.syncs.count:
            raise MeasureError("no sync was counted, so the library that counts syncs was not loaded")
        return records
