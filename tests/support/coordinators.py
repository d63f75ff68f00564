"""Several coordinators of one federation, as real processes with separate folders, at one Mosquitto."""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho

from protofleet.federation.brokers.local import LocalBroker
from protofleet.protocol.link.standby import SeenState, StandbyLink
from protofleet.protocol.security.keys import Keys, save_keys, save_public
from protofleet.protocol.settings.reader import write_toml
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.reasons import Rejected
from protofleet.protocol.wire.topics import Topics
from protofleet.runtime.children import Child
from tests.chaos.world import Process
from tests.support.forked_program import forked_program
from tests.support.secured_broker import start_enrolled

PATIENCE = 60.0
WATCHER = "board-1"  # The device whose certificate an observer uses.
ENCODED_TLS = ("ca", "cert", "key")


@dataclass
class Host(Process):
    """A coordinator on its own host: another folder, and another name of the machine."""

    planted: str = ""

    def spawn(self) -> Child:
        return forked_program(self.command, self.log, planted=self.planted)

    @property
    def pid(self) -> int:
        assert self.child is not None
        return self.child.pid

    @property
    def code(self) -> int | None:
        return self.child.poll() if self.child else None

    @property
    def lines(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()

    @property
    def last_line(self) -> str:
        return self.lines[-1] if self.lines else ""


class Silent:
    """A transport that keeps its messages and sends none."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []

    def publish(self, topic: str, frame: bytes, retain: bool = False, qos: int = 1) -> None:
        self.sent.append((topic, frame))


class Observer:
    """A client that keeps all frames on the topic of the coordinator's state."""

    def __init__(self, world: Coordinators) -> None:
        self._link = StandbyLink(world.keys, world.topics, Silent())
        self._topic, self._probes = world.topics.coord_state, world.topics.coord_probe
        self.frames: list[bytes] = []
        self.seen: list[SeenState] = []
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._client.on_connect = lambda *_: self._client.subscribe(self._topic, 1)
        self._client.on_message = lambda _c, _d, message: self._arrived(message.payload, message.retain)
        world.connect(self._client, WATCHER)
        self._client.loop_start()

    def _arrived(self, frame: bytes, retained: bool) -> None:
        with contextlib.suppress(Rejected):
            self.seen.append(self._link.arrived(self._topic, frame, retained))
            self.frames.append(frame)

    def listen_to_probes(self) -> None:
        """Subscribe to probes, and answer none of them."""
        self._client.subscribe(self._probes, 1)

    def publish(self, topic: str, frame: bytes, retain: bool = False) -> None:
        self._client.publish(topic, frame, 1, retain).wait_for_publish(10)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    @property
    def leader(self) -> SeenState | None:
        """Return the newest state, if its field `online` is true."""
        newest = self.seen[-1] if self.seen else None
        return newest if newest and newest.state.online else None


class Thief:
    """A client that connects with the client id of the coordinator, and sends no messages."""

    def __init__(self, world: Coordinators, before: Callable[[], None] = lambda: None) -> None:
        """Connect; `before` is called when the certificate has been read."""
        name = f"{world.federation}.{COORDINATOR}"
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5)
        world.connect(self._client, COORDINATOR, before)
        self._client.loop_start()

    def close(self) -> None:
        self._client.loop_stop()
        self._client.disconnect()


class Coordinators:
    """A federation of coordinators without devices; with `secured`, the broker demands certificates."""

    def __init__(self, folder: Path, secured: bool = False) -> None:
        self.folder, self.secured = folder, secured
        self.hosts: list[Host] = []
        self._ends = contextlib.ExitStack()
        if secured:
            made = start_enrolled(folder / "enrolled", WATCHER)
            self.federation, self._fleet, self.broker = made.federation, made.fleet, made.broker
            self.keys = self._enrolled_keys()
        else:
            self.federation, self._fleet, self.keys = f"f{uuid.uuid4().hex[:8]}", None, Keys.new()
            (folder / "keys").mkdir(parents=True)
            save_keys(folder / "keys" / "coordinator.key", self.keys)
            save_public(folder / "keys" / "one.pub", Keys.new().public)
            self.broker = LocalBroker(folder / "broker", "mosquitto")
            self.broker.start()
        self._ends.callback(self.broker.stop)
        self.topics = Topics(self.federation)

    def _enrolled_keys(self) -> Keys:
        from protofleet.runtime import credentials

        assert self._fleet is not None
        place = str(self._fleet.folder_of(COORDINATOR))
        keys, _ = credentials.of_coordinator(place, self.federation, "", str(self._fleet.root / "records"))
        return keys

    def __enter__(self) -> Coordinators:
        return self

    def __exit__(self, *error: object) -> None:
        for host in self.hosts:
            host.kill()
        self._ends.close()

    # -- the coordinators

    def start(
        self, name: str, *options: str, run: str = "", planted: str = "", folder: str = "", **settings: Any
    ) -> Host:
        """Start a coordinator with its own folder: of one run if it is named, otherwise of a queue."""
        place = self.folder / name
        place.mkdir(exist_ok=True)
        table: dict[str, Any] = {
            "federation": self.federation, "folder": folder or str(place / "runs"), "threads": 1,
            "broker": self._broker_table(), **self._key_settings(), **settings,
        }  # fmt: skip
        if run:
            table |= {
                "name": run, "rounds": 2, "classes": 3, "size": 8, "network": {"name": "mlp"},
                "method": {"name": "fedavg", "lr": 0.02},
            }  # fmt: skip
        (place / "settings.toml").write_text(write_toml(table))
        number = len(self.hosts)
        host = Host(
            name, ["coordinator", str(place / "settings.toml"), *options], place / f"{number}.log",
            planted=planted,
        )  # fmt: skip
        self.hosts.append(host)
        host.start()
        return host

    def _key_settings(self) -> dict[str, Any]:
        if self._fleet is None:
            keys = self.folder / "keys"
            return {"key": str(keys / "coordinator.key"), "devices": str(keys)}
        return {
            "enrolled": str(self._fleet.folder_of(COORDINATOR)), "devices": str(self._fleet.root / "records"),
        }  # fmt: skip

    def _broker_table(self) -> dict[str, Any]:
        address = self.broker.address
        table: dict[str, Any] = {"host": address.host, "port": address.port}
        if address.tls is not None:
            table["tls"] = {key: str(getattr(address.tls, key)) for key in ENCODED_TLS}
        return table

    # -- what can be seen

    def connect(
        self, client: paho.Client, party: str, before: Callable[[], None] = lambda: None
    ) -> None:  # fmt: skip
        """Connect a client; if the broker demands certificates, use that of a party."""
        if self._fleet is not None:
            tls = self._fleet.tls(party)
            client.tls_set(tls.ca, tls.cert, tls.key)
        before()
        client.connect(self.broker.address.host, self.broker.address.port)

    def own_file(self, name: str) -> Path:
        """Return the path of a file that the enrolment of the coordinator has installed."""
        assert self._fleet is not None
        return Path(self._fleet.tls(COORDINATOR).cert or "").with_name(name)

    def observe(self) -> Observer:
        observer = Observer(self)
        self._ends.callback(observer.close)
        return observer

    def wait_until(self, check: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := check()):
            if time.monotonic() > deadline:
                logs = "\n".join(f"{host.log}: {host.lines[-5:]}" for host in self.hosts)
                raise AssertionError(f"waited {seconds:.0f} s for {what}:\n{logs}")
            time.sleep(0.05)
        return found

    def wait_for_end(self, host: Host) -> int:
        self.wait_until(lambda: host.code is not None, f"{host.name} to end")
        assert host.code is not None
        return host.code


def pid_of(state: SeenState) -> int:
    found = re.search(r" pid ([0-9]+) ", state.state.who)
    assert found, state
    return int(found[1])
