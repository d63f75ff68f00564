"""The speed of 64 MiB from a device to the coordinator, and of a plain publish of 64 MiB on the same broker.

Our transfer is timed from the offer of a finished update. It ends when the coordinator has checked every block
and has renamed the complete file on its disk. The plain publish is timed from `publish` to the receiver's
`on_message`. The bytes of the plain publish are not checked and not stored. Each receiver has its own process.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from benchmarks.harness.busy import BusyProcesses
from benchmarks.programs.keys import make_keys
from protofleet.federation.brokers.local import LocalBroker
from protofleet.protocol.link.block_qos import BlockQos
from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.link.coordinator_run import CoordinatorRunLink
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.security.keys import Identity, load_keyring, load_keys, load_public
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.transport.base import Arrived, Connected, Item
from protofleet.protocol.transport.mqtt import Mqtt
from protofleet.protocol.wire.messages import Update
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.reasons import Rejected
from protofleet.protocol.wire.topics import Topics

SIZE = 64 << 20
TOPICS = Topics("bench")
PLAIN = "bench/plain"
# If a transfer takes more than this number of seconds, it has failed. With busy processes, the plain publish takes
# up to half a minute.
WAIT_SECONDS = 600.0
NOBODY = BusyProcesses(0)


class TakeAll:
    def is_expected(self, update: Update) -> bool:
        return True

    def admit(self, update: Update, size: int, name: bytes) -> bool:
        return True

    def unusable(self, update: Update, fault: Rejected) -> None:
        raise fault


def measure(qos: int = 1, busy: int = 0, size: int = SIZE) -> dict[str, float]:
    """Measure one transfer of our protocol, and then one plain publish.

    The order of the two transfers changes the results less than noise does.
    `qos` is the QoS of our blocks. `busy` is the number of processes that use a core during both transfers.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in (COORDINATOR, "a"):
            make_keys(folder / "keys", name)
        with (
            LocalBroker(folder / "broker", "mosquitto", extra_lines=("max_packet_size 268435455",)) as broker,
            BusyProcesses(busy) as others,
        ):
            ours, plain = (
                timed(folder, broker.address, how, size, qos=qos, beside=others) for how in ("ours", "plain")
            )
    return {"ours over plain": plain / ours, "ours": size / 1e6 / ours, "plain": size / 1e6 / plain}


def timed(
    folder: Path, address: BrokerAddress, how: str, size: int = SIZE, through: BrokerAddress | None = None,
    qos: int = 1, beside: BusyProcesses = NOBODY,
) -> float:  # fmt: skip
    """Return the seconds from the start of sending in this process until the receiving process has all bytes.

    Our transfer reaches the broker at the address `through`.
    """
    receiver = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.programs.transfer", how, str(folder), str(address.port)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert receiver.stdout is not None
    receiver.stdout.readline()  # The receiver prints a line when its subscription is active.
    if how == "ours":
        sent = send_ours(folder, through or address, receiver, size, qos, beside)
    else:
        sent = send_plain(address, receiver, size, beside)
    arrived = float(json.loads(receiver.stdout.readline()))
    receiver.wait(30)
    return arrived - sent


def send_plain(
    address: BrokerAddress, receiver: subprocess.Popen[str], size: int, beside: BusyProcesses = NOBODY
) -> float:
    client = paho.Client(CallbackAPIVersion.VERSION2, "bench-plain-out", protocol=paho.MQTTv5)
    client.connect(str(address.host), int(address.port or 0))
    client.loop_start()
    payload = np.random.default_rng(0).bytes(size)
    with beside.running():
        sent = time.monotonic()
        client.publish(PLAIN, payload, qos=1).wait_for_publish(WAIT_SECONDS)
        receiver.wait(WAIT_SECONDS)
    client.disconnect()
    client.loop_stop()
    return sent


def send_ours(
    folder: Path, address: BrokerAddress, receiver: subprocess.Popen[str], size: int, qos: int = 1,
    beside: BusyProcesses = NOBODY,
) -> float:  # fmt: skip
    inbox: queue.SimpleQueue[Item] = queue.SimpleQueue()
    ring = {COORDINATOR: load_public(folder / "keys" / "coordinator.pub")}
    me = Identity("a", int(time.time()), load_keys(folder / "keys" / "a.key"))
    transport = Mqtt("bench-a", address, inbox, subscriptions=TOPICS.device_subscriptions("a"))
    transport.connect()
    link = DeviceLink(me, ring, TOPICS, transport, ObjectStore(folder / "a"))
    link.block_qos = BlockQos(qos)
    arrays = {"weights.w": np.random.default_rng(time.time_ns()).standard_normal(size // 4, dtype=np.float32)}
    name = link.store.put(arrays).object
    while not isinstance(inbox.get(), Connected):
        pass
    with beside.running():
        sent = time.monotonic()
        link.send_update(Update("a", 1, "train", 1), name)
        while receiver.poll() is None:
            try:
                item = inbox.get(timeout=0.2)
            except queue.Empty:
                continue
            if isinstance(item, Arrived):
                link.arrived(item.topic, item.frame, time.monotonic())
    transport.close()
    return sent


def receive_plain(address: BrokerAddress) -> float:
    arrived: queue.SimpleQueue[float] = queue.SimpleQueue()
    client = paho.Client(CallbackAPIVersion.VERSION2, "bench-plain-in", protocol=paho.MQTTv5)
    client.on_message = lambda client, data, message: arrived.put(time.monotonic())
    client.on_subscribe = lambda *_: print("ready", flush=True)
    client.on_connect = lambda *_: subscribe(client)
    client.connect(str(address.host), int(address.port or 0))
    client.loop_start()
    return arrived.get()


def subscribe(client: paho.Client) -> None:
    client.subscribe(PLAIN, 1)


def receive_ours(folder: Path, address: BrokerAddress) -> float:
    inbox: queue.SimpleQueue[Item] = queue.SimpleQueue()
    me = Identity(COORDINATOR, int(time.time()), load_keys(folder / "keys" / "coordinator.key"))
    transport = Mqtt("bench-c", address, inbox, subscriptions=TOPICS.coordinator_subscriptions())
    ring = load_keyring(folder / "keys" / "public")
    transport.connect()
    # Each store is kept, because a new store would compute all hashes again. The product keeps its stores too.
    stores: dict[str, ObjectStore] = {}
    link = CoordinatorLink(me, ring, TOPICS, transport)
    run = CoordinatorRunLink(link, "", lambda d: stores.setdefault(d, ObjectStore(folder / "spool" / d)))
    run.answers.admission_controller = TakeAll()
    link.add(run)
    while not isinstance(inbox.get(), Connected):
        pass
    # The broker sends the SUBACK after the CONNACK. If an offer came earlier, it would be lost, and our transfer
    # would look slow.
    time.sleep(0.2)
    print("ready", flush=True)
    while True:
        item = inbox.get()
        if isinstance(item, Arrived) and link.arrived(item.topic, item.frame, time.monotonic()):
            arrived = time.monotonic()
            transport.close()
            return arrived


if __name__ == "__main__":
    how, place, port = sys.argv[1:]
    address = BrokerAddress(port=int(port))
    print(receive_plain(address) if how == "plain" else receive_ours(Path(place), address), flush=True)
