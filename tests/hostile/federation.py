"""A federation of real processes behind a secured Mosquitto; some of its devices may be raw devices."""

from __future__ import annotations

import contextlib
import json
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.round.policy import Policy
from protofleet.coordinator.service_settings import NO_RUN, OF_THE_SERVICE
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.settings import DataSettings
from protofleet.federation.brokers.local import LocalBroker
from protofleet.federation.brokers.ports import free_port
from protofleet.federation.enrol.local_federation import LocalFederation
from protofleet.methods.contract.plan import Network
from protofleet.protocol.security.enrolment import CURRENT, load_enrolled
from protofleet.protocol.settings.reader import encode, write_toml
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.runtime.launcher import ForkedChild
from tests.chaos.campaign import pictures
from tests.chaos.world import Process
from tests.hostile.device import PATIENCE, Credentials, Device, Work, honest
from tests.hostile.proxy import TakenOver
from tests.support.events import events_in
from tests.support.forked_program import forked_program, with_fault
from tests.support.secured_broker import start_enrolled

RUN = "run"
CLASSES, SIZE = 3, 8
AHEAD = """
import time
clock = time.time
time.time = lambda: clock() + {seconds}
"""


@dataclass
class ForkedProcess(Process):
    """A process of the program; its command is the list of arguments of `protofleet`."""

    planted: str = ""  # Code that runs before the program.

    def spawn(self) -> ForkedChild:
        return forked_program(self.command, self.log, planted=self.planted)


class Federation:
    """A broker, and the coordinators and devices that a test starts.

    `settings` go to every coordinator; the arguments of `coordinator` and `device` override them.

    With `taken_over`, all parties connect to `proxy`, a hostile broker. `broker` has further lines
    for the settings of the broker. Unless `forked` is set, each process starts as from a shell.
    """

    def __init__(
        self, folder: Path, *devices: str, taken_over: bool = False, broker: Sequence[str] = (), forked: bool = True,
        **settings: Any,
    ) -> None:  # fmt: skip
        self.folder, self.settings, self.forked = folder, settings, forked
        made = start_enrolled(folder / "enrolled", *devices, more=broker)
        self.name: str = made.federation
        self.fleet: LocalFederation = made.fleet
        self.broker: LocalBroker = made.broker
        self.processes: list[Process] = []
        self.raw_devices: list[Device] = []
        self._ends = contextlib.ExitStack()
        self._ends.callback(self.broker.stop)
        self.proxy = TakenOver(self.broker.address, self.fleet.tls) if taken_over else None
        if self.proxy:
            self._ends.enter_context(self.proxy)

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *error: object) -> None:
        for device in self.raw_devices:
            device.stop()
        for process in self.processes:
            process.kill()
        self._ends.close()

    # -- the parties

    def coordinator(
        self, ahead: float = 0.0, planted: str = "", out: int | None = None, through: Sequence[str] = (),
        options: Sequence[str] = (), **more: Any,
    ) -> Process:  # fmt: skip
        """Start a coordinator with `folder`, `metrics_port`, `method`, `policy` and other settings.

        `ahead` is the number of seconds by which its clock is ahead of all other clocks. `planted` is the
        code of a fault, which runs before the code of the program. `out` takes its events; without it they go
        to the log. `through` is the beginning of its command line, and `options` are at its end.
        """
        given = {"policy": Policy(), "metrics_port": free_port(), **self.settings, **more}
        given.setdefault("method", {"name": "fedavg", "lr": 0.02})
        made = CoordinatorSettings(
            **{"name": RUN, "rounds": 3, "classes": CLASSES, "size": SIZE, "threads": 1, "seed": 1,
               "network": Network("mlp"), "folder": str(self.folder / "runs"), **given},
            federation=self.name, enrolled=str(self.fleet.folder_of(COORDINATOR)),
            devices=str(self.fleet.root / "records"), broker=self.address(COORDINATOR),
        )  # fmt: skip
        self.metrics_port = made.metrics_port
        settings = encode(made)
        return self._start(
            "coordinator",
            "coordinator",
            settings,
            "--events",  # It switches all observers on.
            *options,
            ahead=ahead,
            planted=planted,
            out=out,
            through=through,
        )

    def service(
        self, planted: str = "", slots: int = 2, folder: Path | None = None, options: Sequence[str] = ()
    ) -> Process:
        """Start a coordinator that conducts submitted runs in `folder`, at most `slots` at a time."""
        self.metrics_port, page_port = free_port(), free_port()
        made = CoordinatorSettings(
            **NO_RUN, folder=str(folder or self.folder / "runs"), threads=1, metrics_port=self.metrics_port,
            page_port=page_port,
            federation=self.name, enrolled=str(self.fleet.folder_of(COORDINATOR)),
            devices=str(self.fleet.root / "records"), broker=self.address(COORDINATOR),
        )  # fmt: skip
        settings = {key: value for key, value in encode(made).items() if key in OF_THE_SERVICE}
        return self._start(
            "coordinator", "coordinator", {"slots": slots, **settings}, *options, planted=planted
        )

    def device(
        self, name: str, planted: str = "", ahead: float = 0.0, through: Sequence[str] = (), **more: Any
    ) -> Process:
        """Start a device of the product that has its own pictures."""
        data = self.folder / "pictures" / name
        if not data.exists():
            pictures(data, seed=len(self.processes))
        made = DeviceSettings(
            name=name, federation=self.name, folder=str(self.folder / "devices" / name), threads=1,
            enrolled=str(self.fleet.folder_of(name)), broker=self.address(name), compute="cpu",
            data=DataSettings(source="folder", root=str(data), size=self.settings.get("size", SIZE), split="iid"),
            **{"stays": False, **more},
        )  # fmt: skip
        return self._start(name, "device", encode(made), ahead=ahead, planted=planted, through=through)

    def raw(self, name: str, work: Work = honest, **more: Any) -> Device:
        """Start a raw device, and return it."""
        made = Device(self.credentials(name), work, **more)
        self.raw_devices.append(made)
        return made.start()

    def credentials(self, name: str) -> Credentials:
        place, address = self.fleet.folder_of(name), self.address(name)
        mine, peer = (
            load_enrolled(place / CURRENT, time.time()),
            load_enrolled(self.fleet.folder_of(COORDINATOR) / CURRENT, time.time()),
        )
        assert address.tls and address.tls.cert and address.tls.key
        return Credentials(
            self.name, name, mine.identity, mine.receive, peer.record.receive, address.host, address.port,
            address.tls.ca, address.tls.cert, address.tls.key,
        )  # fmt: skip

    def address(self, name: str) -> BrokerAddress:
        found = replace(self.broker.address, tls=self.fleet.tls(name))
        return replace(found, port=self.proxy.port) if self.proxy else found

    # -- the results

    @property
    def run(self) -> Path:
        """Return the folder with the results of the coordinator."""
        return Path(self.settings.get("folder", self.folder / "runs")) / self.settings.get("name", RUN)

    def rounds(self) -> list[dict[str, Any]]:
        """Return the lines of rounds.jsonl, without the last one, which may be half written.

        Raise ValueError if a line is not JSON.
        """
        with contextlib.suppress(FileNotFoundError):
            *lines, _ = (self.run / "rounds.jsonl").read_text().split("\n")
            return [json.loads(line, parse_constant=_no_json) for line in lines]
        return []

    def events(self, what: str = "") -> list[dict[str, Any]]:
        """Return the events on the standard output of the coordinators: all, or those named `what`."""
        logs = [process.log for process in self.processes if process.name == COORDINATOR]
        return [event for log in logs for event in events_in(log) if what in ("", event["event"])]

    def metrics(self) -> dict[str, float]:
        """Return every series that the coordinator exports, by its name with its labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def answers(self) -> bool:
        """Return whether a coordinator answers a request for its metrics."""
        with contextlib.suppress(OSError):
            return bool(self.metrics())
        return False

    def wait_until(
        self, check: Callable[[], Any], what: str, seconds: float = PATIENCE, every: float = 0.05
    ) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := check()):
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {seconds:.0f} s for {what}; {self.last_words()}")
            time.sleep(every)
        return found

    def stays(self, check: Callable[[], Any], what: str, seconds: float) -> None:
        """Check for all these seconds that the condition holds.

        A test cannot wait for an event that must not happen, so it looks for it during the whole time.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert check(), f"{what} for {seconds:.0f} s, but not; {self.last_words()}"
            time.sleep(0.1)

    def wait_for_end(self, process: Process, seconds: float = 2 * PATIENCE) -> int:
        """Wait for the end of a process, and return its exit code."""
        self.wait_until(
            lambda: process.child and process.child.poll() is not None, f"{process.name} to end", seconds
        )
        assert process.child is not None
        return int(process.child.returncode)

    def log_of(self, process: Process) -> str:
        return process.log.read_text(errors="replace")

    def last_words(self) -> str:
        return "; ".join(process.last_word() for process in self.processes)

    def _start(
        self, name: str, job: str, settings: dict[str, object], *options: str, ahead: float = 0.0,
        planted: str = "", out: int | None = None, through: Sequence[str] = (),
    ) -> Process:  # fmt: skip
        number = len(self.processes)
        file, log = self.folder / f"{name}-{number}.toml", self.folder / f"{name}-{number}.log"
        # Another checkout may not know a new setting, so an empty list is left out.
        said = {key: value for key, value in settings.items() if value != []}
        file.write_text(write_toml(said))
        arguments = [job, str(file), *options]
        if ahead:
            planted = AHEAD.format(seconds=ahead) + planted
        if self.forked and not through and out is None:
            made: Process = ForkedProcess(name, arguments, log, planted=planted)
        else:
            program = ["tests.support.source", with_fault(planted)] if planted else ["protofleet"]
            made = Process(name, [*through, sys.executable, "-m", *program, *arguments], log, out)
        self.processes.append(made)
        made.start()
        return made


def _no_json(word: str) -> float:
    raise ValueError(f"{word} is not JSON")
