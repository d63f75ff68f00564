"""Devices that use the real protocol but train nothing: `python -m benchmarks.programs.robots '{"names": ...}'`.

Many devices run in one process, on one thread. They use the product's link and stores, and the product's
times for hellos and repeated messages. Their updates are random prototypes, or the model of the broadcast
with changed numbers. For every line on standard input, the program prints a line of JSON with the counts so
far. At the end of the input, or after a signal, all devices leave.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import resource
import selectors
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from protofleet.edge_client.conversation.answer_delivery import AnswerDelivery
from protofleet.edge_client.conversation.hello_timer import HelloTimer, is_birth
from protofleet.edge_client.received_delta import delta_reader
from protofleet.edge_client.state.file import Answer
from protofleet.methods.contract.plan import Plan, read_plan
from protofleet.protocol.coding.update import chance_of, encode_arrays
from protofleet.protocol.link.base import Received
from protofleet.protocol.link.clocks import Clock
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.security.keys import Identity
from protofleet.protocol.settings.named_codecs import read_codec
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.transport.reconnect import Backoff, ConnectionEnd
from protofleet.protocol.wire import forms
from protofleet.protocol.wire.messages import (
    NO_ANSWER,
    NOTHING,
    Bye,
    Finished,
    Hello,
    Message,
    Receipt,
    Refusal,
    RoundStatus,
    State,
    Task,
    Welcome,
)
from protofleet.protocol.wire.reasons import DisconnectReason, Rejected
from protofleet.protocol.wire.topics import Topics
from protofleet.runtime import credentials

CLASSES, WIDTH, EXAMPLES = 10, 512, 60  # 10 x 512 numbers of float32 are 20,480 bytes of prototypes.
METRICS = {
    "accuracy.test.personal": 0.5, "loss.test.personal": 1.0, "samples.test": 20.0, "seconds.work": 0.0,
}  # fmt: skip
TICK_SECONDS = 0.1  # Seconds between two searches for robots that must send something again.
KEEPALIVE_SECONDS = 60
LOOK_SECONDS = 10.0  # Longest time between two checks of a robot; a check sends a ping if it is due.
RETRY_SECONDS = (
    0.5,
    30.0,
)  # Shortest and longest pause before a lost connection is tried again. The product uses the same values.
MAX_PACKET = 268_435_455


@dataclass(frozen=True)
class Wish:
    """The settings of all robots of this process."""

    names: list[str]
    federation: str
    enrolled: str  # A folder that contains a folder of keys for each name.
    folder: str
    port: int
    host: str = "127.0.0.1"
    hold_seconds: float = 0.0  # Seconds from a robot's task to its update.
    # Number of runs that each robot says it could take on. A robot can take part in a run only if this is 0.
    free_places: int = 0


class Robot:
    """One device: its connection, its link, and the messages that it waits for."""

    def __init__(self, wish: Wish, number: int, counts: Counter[str]) -> None:
        self.name, self.number, self.wish, self.counts = wish.names[number], number, wish, counts
        keys, keyring = credentials.of_device(
            f"{wish.enrolled}/{self.name}", wish.federation, self.name, "", ""
        )
        self.topics = Topics(wish.federation)
        self.client = self._paho(f"{wish.federation}.{self.name}")
        store = ObjectStore(Path(wish.folder) / self.name, durable=False)
        me = Identity(self.name, int(time.time()), keys)
        self.link = DeviceLink(me, keyring, self.topics, self, store, clock=Clock(since=keys.not_before))  # type: ignore[arg-type]  # The link calls only methods that a robot has.
        self.delivery, self.timer = AnswerDelivery(self.link), HelloTimer(self.name)
        self.backoff, self.connected_at = Backoff(*RETRY_SECONDS), 0.0
        self.plan: Plan | None = None
        self.welcomed_by = 0
        self.answered: Answer | None = None
        self.hello_at = self.held_until = self.reconnect_at = float("inf")
        self.finished = self.connected = self.sent_hello = self.was_lost = False

    # Methods that the link calls, because the robot is the transport of the link.

    def publish(self, topic: str, frame: bytes, retain: bool = False, qos: int = 1) -> None:
        self.client.publish(topic, frame, 1, retain)

    def subscribe(self, topic: str) -> None:
        self.client.subscribe(topic, 1)

    def unsubscribe(self, topic: str) -> None:
        self.client.unsubscribe(topic)

    def reject_connection(self, why: str) -> None:
        raise BrokerError(why)

    # Methods for the connection to the broker.
    def connect(self) -> None:
        will = self.link.will(self.topics.device_state(self.name))
        self.client.will_set(will.topic, will.frame, 1, True)
        self.client.connect(self.wish.host, self.wish.port, KEEPALIVE_SECONDS)

    def lost(self, now: float) -> None:
        self.connected, self.was_lost, self.hello_at = False, True, float("inf")
        self.backoff.ended(ConnectionEnd("", without_disconnect=True), now - self.connected_at)
        self.reconnect_at = now + self.backoff.pause()

    def reconnect(self, now: float) -> None:
        self.reconnect_at = float("inf")
        try:
            self.client.reconnect()
        except OSError:
            self.lost(now)

    def _paho(self, client_id: str) -> Client:
        client = Client(CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv5)
        client.on_connect, client.on_message, client.on_disconnect = (
            self._connected,
            self._arrived,
            self._lost,
        )
        return client

    def _connected(self, _c: object, _d: object, _f: object, code: Any, told: Any) -> None:
        if code.is_failure:
            raise BrokerError(f"{self.name}: the broker refused the connection with code {code}")
        for topic in self.topics.device_subscriptions(self.name):
            self.subscribe(topic)
        self.link.adapt(getattr(told, "MaximumPacketSize", MAX_PACKET))
        self.timer.forget_last_here()
        self.link.publish(self.topics.device_state(self.name), State(True), retain=True)
        self.connected, self.connected_at = True, time.monotonic()
        if self.sent_hello and self.delivery.pending is None:
            self.hello_in_turn()
        else:
            self.timer.cancel_spread()
            self.hello()

    def _lost(self, _c: object, _d: object, _f: object, code: object, _p: object) -> None:
        if not self.finished:
            self.counts["connections lost"] += 1

    # Methods for the messages to and from the coordinator.
    @property
    def wake_at(self) -> float:
        if not self.connected:
            return self.reconnect_at
        return min(self.hello_at, self.delivery.wake_at, self.link.wake_at, self.held_until)

    def wake(self, now: float) -> None:
        if now >= self.reconnect_at:
            self.reconnect(now)
        if not self.connected:
            return
        self.link.wake(now)
        if now >= self.hello_at:
            self.hello()
        if self.answered and now >= self.held_until:
            self.held_until = float("inf")
            self.delivery.start(self.answered, now)
        if now >= self.delivery.wake_at:
            self._say(now)

    def hello_in_turn(self) -> None:
        """Send a hello after a random delay, because otherwise all devices would send it at the same moment."""
        self.timer.spread(time.monotonic())
        self.hello()

    def hello(self) -> None:
        if time.monotonic() < self.timer.not_before:
            self.hello_at = self.timer.not_before
            return
        self.sent_hello = True
        plan = self.plan if self.welcomed_by == self.link.epoch else None
        counts = (EXAMPLES // CLASSES,) * CLASSES if plan and plan.variant.needs_counts else ()
        last = self.answered if plan else None
        can = (*forms.DEVICE_FORMS, forms.RUNS) if self.wish.free_places else forms.DEVICE_FORMS
        self.link.send(
            Hello(
                self.name, CLASSES, EXAMPLES, f"domain-{self.number % CLASSES}", "robot",
                plan=plan.digest if plan else b"", counts=counts, can=can, capacity=self.wish.free_places,
                round=last.round if last else 0, phase=last.phase if last else NO_ANSWER if plan else "",
                base=bytes.fromhex(last.base) if last else b"",
            )
        )  # fmt: skip
        self.counts["hellos"] += 1
        self.counts["back again"] += self.was_lost
        self.was_lost = False
        now = time.monotonic()
        self.timer.hello_sent(now)
        self.hello_at = self.timer.next_hello(now)

    def _arrived(self, _c: object, _d: object, message: MQTTMessage) -> None:
        now = time.monotonic()
        try:
            for received in self.link.arrived(message.topic, bytes(message.payload), now):
                self._heard(received, now)
        except Rejected as fault:
            self.counts[f"rejected: {fault.reason.value}"] += 1

    def _heard(self, received: Received, now: float) -> None:
        self.timer.heard(received.message, received.epoch)
        self.hello_at = self.timer.next_hello(now)
        match received.message:
            case Welcome(text, about):
                plan = read_plan(text)
                codec = read_codec(about.codec, plan.variant.kinds.declared) if about.codec else None
                self.plan, self.welcomed_by = plan.with_lossless(codec), received.epoch
                # Without this reader, each robot would fetch the whole broadcast after each delta.
                self.link.apply_delta = delta_reader(self.plan, self.link.store)
                self.link.peer_forms, self.link.metric_names = frozenset(about.can), about.metrics
                self.hello()
            case Task() as task:
                self._asked(task, received, now)
            case Receipt() as receipt:
                self.counts[f"receipts: {receipt.verdict}"] += self.delivery.received(receipt, now)
            case message if is_birth(message):
                known = self.timer.was_welcomed and self.delivery.pending is None
                self.hello_in_turn() if known else self.hello()
            case State(online=True, now=RoundStatus() as status) if self._is_missed(status):
                self.hello() if status.waits is not None else self.hello_in_turn()
            case Refusal() as refusal:
                raise RuntimeError(f"{self.name} was refused: {refusal.reason}")
            case message if over(message):
                self._leave()

    def _is_missed(self, status: RoundStatus) -> bool:
        known = {self.link.asked, (self.answered.round, self.answered.phase) if self.answered else None}
        return status.names(self.name) and (status.round, status.phase) not in known

    def _asked(self, task: Task, received: Received, now: float) -> None:
        if self.answered and (self.answered.round, self.answered.phase) == (task.round, task.phase):
            if self.held_until == float("inf"):
                self.delivery.start(self.answered, now)
                self._say(now)
            return
        arrays, coding = self._arrays(task, received.object), self.plan.coding if self.plan else None
        if coding:
            shown = self.link.store.open(received.object) if received.object else NOTHING
            arrays = encode_arrays(arrays, coding.up, shown, NOTHING, chance_of(self.number)).arrays
        name = self.link.store.put(arrays).object
        self.link.store.keep({name, received.object})
        question = hashlib.sha256(f"{task.round}/{task.phase}".encode()).hexdigest()
        self.answered = Answer(
            question, task.round, task.phase, received.object.hex(), name.hex(), EXAMPLES, METRICS
        )
        self.link.least_round = task.round
        self.counts["answers"] += 1
        if self.wish.hold_seconds:
            self.held_until = now + self.wish.hold_seconds
            return
        self.delivery.start(self.answered, now)
        self._say(now)

    def _arrays(self, task: Task, broadcast: bytes) -> dict[str, Any]:
        if task.phase == "evaluate":
            return {}
        if broadcast and "weights" in (model := self.link.store.open(broadcast)).kinds:
            return {name: model[name] + np.float32(self.number / len(self.wish.names)) for name in model}
        draw = np.random.Generator(np.random.SFC64((self.number, task.round)))
        return {
            "prototypes": draw.standard_normal((CLASSES, WIDTH), dtype=np.float32),
            "labels": np.arange(CLASSES, dtype=np.int64),
            "counts": np.full(CLASSES, EXAMPLES // CLASSES, np.int64),
        }

    def _say(self, now: float) -> None:
        self.counts["answers said"] += self.delivery.pending is not None
        self.delivery.send(self.welcomed_by == self.link.epoch, now)

    def _leave(self) -> None:
        if not self.finished:
            self.finished = True
            self.hello_at = self.held_until = float("inf")
            self.delivery.cancel()
            self.link.send(Bye(DisconnectReason.FINISHED.value))
            self.counts["finished"] += 1


def over(message: Message) -> bool:
    return isinstance(message, Finished) or message == State(False, "finished")


class Robots:
    """All robots of one process. They share a selector for sockets and a heap of the times at which they must act."""

    def __init__(self, wish: Wish) -> None:
        self.counts: Counter[str] = Counter()
        self.all = [Robot(wish, number, self.counts) for number in range(len(wish.names))]
        self.selector = selectors.DefaultSelector()
        # For each robot, by its number: the handle of its socket, and the events for which the selector waits.
        self._watched: dict[int, tuple[int, int]] = {}
        self._due: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def run(self) -> None:
        self.selector.register(sys.stdin, selectors.EVENT_READ)
        for robot in self.all:
            robot.connect()
            self._settle(robot, time.monotonic())
            # Without this call, the broker would get no bytes of the first robot until the last robot has
            # connected.
            self._move_bytes(0.0)
        while self._move_bytes(TICK_SECONDS):
            self._wake_those_due(time.monotonic())

    def _move_bytes(self, seconds: float) -> bool:
        """Send and receive bytes on all sockets that are ready. Return False if standard input has ended."""
        for key, events in self.selector.select(seconds):
            if key.data is not None:
                self._move(key.data, events)
            elif sys.stdin.readline():
                self.tell()
            else:
                return False
        return True

    def tell(self) -> None:
        connected = sum(robot.connected for robot in self.all)
        print(json.dumps({"connected": connected, **self.counts}), flush=True)

    def _wake_those_due(self, now: float) -> None:
        while self._heap and self._heap[0][0] <= now:
            due, number = heapq.heappop(self._heap)
            if due != self._due.get(number):
                continue  # The robot's time has been changed after this entry was added.
            robot = self.all[number]
            if not robot.finished:
                robot.wake(now)
            robot.client.loop_misc()
            self._settle(robot, now)

    def _move(self, robot: Robot, events: int) -> None:
        if events & selectors.EVENT_READ:
            robot.client.loop_read()
        if events & selectors.EVENT_WRITE:
            robot.client.loop_write()
        self._settle(robot, time.monotonic())

    def _settle(self, robot: Robot, now: float) -> None:
        """Tell the selector which events of a robot's socket to wait for, and set the time of its next check."""
        self._watch(robot, now)
        due = now + LOOK_SECONDS if robot.finished else min(robot.wake_at, now + LOOK_SECONDS)
        # If the heap has an earlier time than `due`, the earlier time stays in the heap. The check at the earlier
        # time finds nothing to do, but it costs less than a change of the heap.
        if not now < self._due.get(robot.number, 0.0) <= due:
            self._due[robot.number] = due
            heapq.heappush(self._heap, (due, robot.number))

    def _watch(self, robot: Robot, now: float) -> None:
        sock, known = robot.client.socket(), self._watched.get(robot.number)
        handle = sock.fileno() if sock is not None else -1
        if known is not None and known[0] != handle:
            self._forget(robot, known[0])
            known = None
        if sock is None:
            if robot.reconnect_at == float("inf") and not robot.finished:
                robot.lost(now)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if robot.client.want_write() else 0)
        if known is None:
            self.selector.register(sock, events, robot)
        elif known[1] != events:
            self.selector.modify(sock, events, robot)
        self._watched[robot.number] = handle, events

    def _forget(self, robot: Robot, handle: int) -> None:
        """Remove a closed socket from the selector, unless another robot has the same handle now."""
        del self._watched[robot.number]
        key = self.selector.get_map().get(handle)
        if key is not None and key.data is robot:
            self.selector.unregister(handle)


def main(wish: Wish) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    Robots(wish).run()


if __name__ == "__main__":
    main(Wish(**json.loads(sys.argv[1])))
