"""One run in real processes, started as `protofleet run` would start them; each of them can get a fault."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from protofleet.federation.brokers.local import LocalBroker, MutualTls
from protofleet.federation.enrol.local_federation import BROKER, enrol_federation
from protofleet.lab.local.experiment import Experiment, coordinator_settings, device_settings
from protofleet.protocol.settings.reader import encode, write_toml
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.runtime.children import Child
from tests.chaos.proxy import Proxy
from tests.chaos.seclusion import HUB, Network, SmallDisk

ROOT = Path(__file__).parents[2]
STORE = ("persistence true", "autosave_interval 1", "autosave_on_changes true")
DISK = 24 << 20  # Bytes of the disk of a device.
PAUSE = 0.3  # Seconds before a process that has ended by itself is started again.


@dataclass
class Process:
    """A party. If it ends before the run does, it is started again, as a service manager would do it."""

    name: str
    command: list[str]
    log: Path
    out: int | None = None  # The file descriptor for its standard output; without it the log has it.
    child: Child | None = None
    held: bool = False  # The test has killed it, and will start it later.
    starts: int = 0
    started_at: float = 0.0
    deaths: list[str] = field(default_factory=list)  # The last words of deaths that the test did not cause.
    _again_at: float = 0.0

    def start(self) -> None:
        self.held = False
        if self.runs():
            return
        self.started_at, self.child = time.monotonic(), self.spawn()
        self.starts += 1

    def spawn(self) -> Child:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command,
                stdout=log if self.out is None else self.out,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd=ROOT,
            )

    def runs(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def kill(self) -> None:
        self.held = True
        if self.child is not None:
            self.child.kill()
            self.child.wait()

    def say(self, number: signal.Signals) -> None:
        if self.child is not None and self.child.poll() is None:
            self.child.send_signal(number)

    @property
    def done(self) -> bool:
        return self.child is not None and self.child.poll() == 0

    def watch(self, now: float) -> None:
        if self.held or self.child is None or self.child.poll() in (None, 0):
            return
        if not self._again_at:
            self.deaths.append(self.last_word())
            self._again_at = now + PAUSE
        elif now >= self._again_at:
            self._again_at = 0.0
            self.start()

    def last_word(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f"{self.name}: {lines[-1][:150] if lines else 'it said nothing'}"


@dataclass(frozen=True)
class RunFiles:
    """The files of one run, for the audit."""

    experiment: Experiment
    results: Path  # The folder with the files of the coordinator.
    logs: Path
    name: str = ""  # The name of the run in logs and events; "" if the coordinator conducts this run alone.


class World:
    """The processes of one run; `lines` has a proxy for each party, `network` the namespaces if any."""

    coordinator_disk = 40 << 20  # Bytes; a snapshot of FedPall is 4 MB, and there are two and a new one.
    stays = False  # The devices end with the run.

    def __init__(
        self,
        folder: Path,
        experiment: Experiment,
        lines: dict[str, Proxy],
        port: int,
        network: Network | None,
    ) -> None:
        self.folder, self.experiment, self.lines, self.network = folder, experiment, lines, network
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True)
        self.disks: dict[str, SmallDisk] = {}
        hosts = ("localhost", "127.0.0.1", HUB)
        self.fleet = enrol_federation(folder / "enrolled", experiment.name, experiment.shards, hosts)
        (self.fleet.folder_of(BROKER) / "data").mkdir(exist_ok=True)
        mutual_tls = MutualTls(self.fleet.folder_of(BROKER), self.fleet.tls(COORDINATOR))
        self.broker = LocalBroker(self.logs, "mosquitto", port=port, extra_lines=STORE, mutual_tls=mutual_tls)
        self.processes = {COORDINATOR: self._coordinator()}
        for name in experiment.shards:
            self.processes[name] = self._device(name)

    def __enter__(self) -> World:
        self.broker.start()
        for process in self.processes.values():
            process.start()
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes.values():
            process.kill()
        self.broker.kill()
        for disk in self.disks.values():
            disk.close()

    @property
    def devices(self) -> list[str]:
        return [name for name in self.processes if name != COORDINATOR]

    def place_of(self, device: str) -> Path:
        """Return the folder of the state of a device."""
        return self.folder / "devices" / device

    @property
    def results(self) -> Path:
        """Return the folder with the files of the coordinator."""
        return self.folder / "coordinator" / self.experiment.name

    @property
    def audited(self) -> list[RunFiles]:
        return [RunFiles(self.experiment, self.results, self.logs)]

    @property
    def finished(self) -> bool:
        return self.processes[COORDINATOR].done

    @property
    def problem(self) -> str:
        """Return what went wrong before the end, or ""."""
        return ""

    @property
    def state(self) -> str:
        return f"in round {self.rounds + 1} of {self.experiment.rounds}"

    @property
    def rounds(self) -> int:
        return rounds_in(self.results)

    def watch(self) -> None:
        now = time.monotonic()
        for process in self.processes.values():
            process.watch(now)

    def let_everybody_go(self, seconds: float) -> list[str]:
        """Wait until devices end because the run is over; return the devices that did not end.

        A device that ends without this message is started again.
        """
        deadline = time.monotonic() + seconds
        while (
            waiting := [n for n in self.devices if not self.processes[n].done]
        ) and time.monotonic() < deadline:
            self.watch()
            time.sleep(0.05)
        return waiting

    def log_states(self) -> None:
        """Ask all processes to write their state into their logs; some take a while."""
        for process in self.processes.values():
            process.say(signal.SIGUSR2)  # SIGUSR1 makes a device take no more tasks.
        time.sleep(2.0)  # There is no sign that all have written.

    def note(self, words: str) -> None:
        with (self.folder / "faults.log").open("a") as file:
            file.write(f"{datetime.now(timezone.utc):%H:%M:%S.%f} {words}\n")

    def stop_broker(self) -> None:
        self.broker.stop()

    def crash_broker(self) -> None:
        self.broker.kill()

    def wipe_broker(self) -> None:
        self.broker.kill()
        for path in (self.fleet.folder_of(BROKER) / "data").iterdir():
            path.unlink() if path.is_file() else shutil.rmtree(path)

    def signal_broker(self, number: signal.Signals) -> None:
        if self.broker.process_group:
            os.killpg(self.broker.process_group, number)

    def _address(self, name: str) -> BrokerAddress:
        host = HUB if self.network else "127.0.0.1"
        return BrokerAddress(host, self.lines[name].port, self.fleet.tls(name))

    def _coordinator(self) -> Process:
        address = self._address(COORDINATOR)
        made = coordinator_settings(self.experiment, address, self.folder, "chaos")
        enrolled, records = self.fleet.folder_of(COORDINATOR), self.fleet.root / "records"
        made = replace(
            made, folder=str(self.folder / COORDINATOR), enrolled=str(enrolled), devices=str(records)
        )
        table = self._table_of_coordinator(encode(made))
        return self._process(COORDINATOR, COORDINATOR, self.folder / COORDINATOR, table)

    def _table_of_coordinator(self, table: dict[str, object]) -> dict[str, object]:
        return table

    def _device(self, name: str) -> Process:
        made = device_settings(self.experiment, name, self._address(name), self.folder)
        place = self.place_of(name)
        made = replace(made, folder=str(place), enrolled=str(self.fleet.folder_of(name)), stays=self.stays)
        return self._process(name, "device", place, encode(made))

    def _process(self, name: str, job: str, place: Path, settings: dict[str, object]) -> Process:
        if self.network:
            self.disks[name] = SmallDisk(place, self.coordinator_disk if name == COORDINATOR else DISK)
        file = self.folder / f"{name}.toml"
        file.write_text(write_toml(settings))
        inside = self.network.inside(name) if self.network else []
        command = [*inside, sys.executable, "-m", "tests.chaos.party", job, str(file)]
        return Process(name, command, self.logs / f"{name}.log")


def rounds_in(results: Path) -> int:
    """Return the number of rounds that a run has finished."""
    with contextlib.suppress(FileNotFoundError):
        return (results / "rounds.jsonl").read_bytes().count(b"\n")
    return 0
