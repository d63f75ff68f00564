"""A fleet on one machine: a root, a secured Mosquitto, a coordinator, and fake devices with real systemds."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from protofleet.federation.brokers.mosquitto import ListenerSettings
from protofleet.federation.brokers.ports import free_port
from protofleet.federation.enrol.local_federation import write_mosquitto_conf
from protofleet.protocol.settings.reader import merge, write_toml
from tests.containers.devices import Bench, FakeDevice

ROOT: Final = Path(__file__).parents[2]
TINY: Final = {"source": "digits", "domain": "mnist", "samples": 60, "test_samples": 20, "size": 16}

Done = subprocess.CompletedProcess[str]


class Rig:
    def __init__(self, folder: Path, bench: Bench, devices: dict[str, FakeDevice]) -> None:
        self.folder, self.bench, self.devices = folder, bench, devices
        self.federation, self.port = f"f{os.urandom(4).hex()}", free_port()
        self.gateway = next(iter(devices.values())).network("Gateway")
        self._processes: list[subprocess.Popen[bytes]] = []
        self.cli("enrol", "root", "root", "--federation", self.federation)
        self.cli("enrol", "coordinator", "--root", "root", "--folder", "coordinator")
        self.cli("enrol", "broker", self.gateway, "127.0.0.1", "--root", "root", "--folder", "broker",
                 "--port", str(self.port))  # fmt: skip
        write_mosquitto_conf(folder / "broker", ListenerSettings(self.port, "0.0.0.0", 0, getpass.getuser()))
        self.fleet()

    def cli(self, *words: str, check: bool = True, seconds: float = 900) -> Done:
        done = subprocess.run(
            self.command(*words), cwd=self.folder, env=self.environment(),
            capture_output=True, text=True, timeout=seconds,
        )  # fmt: skip
        assert not check or done.returncode == 0, (
            f"{words} ended with {done.returncode}: {done.stdout}{done.stderr}"
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    @staticmethod
    def command(*words: str) -> list[str]:
        return [sys.executable, "-m", "protofleet", *words]

    @staticmethod
    def environment() -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}

    def deploy(self, step: str, *words: str, check: bool = True, seconds: float = 900) -> Done:
        return self.cli("deploy", step, *words, check=check, seconds=seconds)

    def fleet(self, hosts: dict[str, dict[str, Any]] | None = None, **tables: Any) -> None:
        """Write fleet.toml, with the given tables on top."""
        known = {
            name: {"address": device.address, "user": "root", "key": str(self.bench.key)}
            for name, device in self.devices.items()
        }
        table: dict[str, Any] = {
            "root": "root",
            "broker": "broker",
            "known_hosts": str(self.bench.known_hosts),
            "software": {"dependencies": "system"},
            "care": {"health_seconds": 240.0, "soak_seconds": 120.0, "drain_seconds": 60.0},
            "device": {
                "compute": "cpu", "threads": 1, "data": TINY,
                "broker": {"host": self.gateway, "port": self.port},
            },
            "hosts": merge(known, hosts or {}),
        }  # fmt: skip
        (self.folder / "fleet.toml").write_text(write_toml(merge(table, tables)))

    def start_broker(self) -> None:
        program = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin")
        assert program, "there is no mosquitto"
        self._start([program, "-c", str(self.folder / "broker" / "mosquitto.conf")], "broker")

    def start_coordinator(
        self,
        name: str = "run",
        rounds: int = 1000,
        quorum: int = 1,
        gather: int = 0,
        network: str = "mlp",
        batch: int = 16,
    ) -> subprocess.Popen[bytes]:
        tls = {part: str(self.folder / "coordinator/current" / file) for part, file in
               (("ca", "ca.crt"), ("cert", "tls.crt"), ("key", "tls.key"))}  # fmt: skip
        table = {
            "name": name, "federation": self.federation, "rounds": rounds, "classes": 10, "size": TINY["size"],
            "enrolled": "coordinator", "devices": "root/records", "threads": 1,
            "method": {"name": "fedavg", "epochs": 1, "batch": batch},
            "network": {"name": network, "feature_size": 32},
            "policy": {"quorum": quorum, "grace_seconds": 20.0, "patience_seconds": 60.0, "settle_seconds": 1.0,
                       "gather": gather},
            "broker": {"host": "127.0.0.1", "port": self.port, "tls": tls},
        }  # fmt: skip
        (self.folder / f"{name}.toml").write_text(write_toml(table))
        return self._start(self.command("coordinator", f"{name}.toml"), name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def history(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "deploy.log").read_text().splitlines()]

    def wait(self, what: Any, seconds: float = 60.0) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := what()):
            assert time.monotonic() < deadline, f"not within {seconds} s; {self.log('run')[-2000:]}"
            time.sleep(0.2)
        return found

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(60)

    def _start(self, command: list[str], name: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment(),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        self._processes.append(process)
        return process
