"""The time from the submission of a run to its first task, while another run goes on with the same devices.

A further client of the broker reads the topics of the devices and notes when each message of the coordinator arrives.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from benchmarks.harness.measure import Figure, MeasureError
from benchmarks.harness.trees import Tree
from benchmarks.measures.queue_fleet import FEDERATION, QueueFleet
from protofleet.edge_client.conversation.hello_timer import SPREAD_SECONDS
from protofleet.protocol.link.base import unverified_header
from protofleet.protocol.wire.topics import Topics

OTHER = "other"  # Name of the run that goes on.
ENDLESS = 1_000_000
PAUSE_SECONDS = 0.5  # Pause between two rounds of the other run.
# After an announcement of the coordinator, a device may send its next hello this much later. Only then does the
# coordinator know its free place.
CALM_SECONDS = SPREAD_SECONDS + 2.0


@dataclass(frozen=True, slots=True)
class Noted:
    at: float  # Time of arrival on the monotonic clock.
    device: str
    kind: str
    run: str


class DownTopics:
    """A client of the broker that notes the messages to all devices inside a `with` block."""

    def __init__(self, port: int) -> None:
        self.noted: list[Noted] = []
        self._topics, self._port = Topics(FEDERATION), port
        self._client = Client(CallbackAPIVersion.VERSION2, "noting", protocol=MQTTProtocolVersion.MQTTv5)
        self._client.on_message = self._arrived

    def __enter__(self) -> DownTopics:
        self._client.connect("127.0.0.1", self._port)
        self._client.subscribe(f"{self._topics.prefix}down/+", 1)
        self._client.loop_start()
        return self

    def __exit__(self, *error: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _arrived(self, _c: Client, _d: object, message: MQTTMessage) -> None:
        at, place = time.monotonic(), self._topics.parse(message.topic)
        if place and (header := unverified_header(bytes(message.payload))):
            self.noted.append(Noted(at, place.device, header.kind, header.run))


@dataclass(frozen=True)
class FirstQuestion:
    devices: int = 4
    runs: int = 5
    figures: ClassVar = {
        "submit to first task, median": Figure("s"),
        "submit to first task, longest": Figure("s"),
        "submit to its reply, longest": Figure("s"),
    }

    @property
    def name(self) -> str:
        return f"first-question-{self.devices}"

    @property
    def what(self) -> str:
        return (
            f"{self.runs} runs that are submitted one after the other to {self.devices} devices, all of which must "
            "join, while another run goes on"
        )

    def take(self, tree: Tree, folder: Path) -> dict[str, float]:
        half, n = max(1, self.devices // 2), self.devices
        goes_on = {"quorum": half, "cohort": half, "gather": n, "pause_seconds": PAUSE_SECONDS}
        with QueueFleet(tree, folder, n) as fleet, DownTopics(fleet.broker.port) as topics:
            fleet.start_coordinator(slots=2)
            fleet.submit(OTHER, rounds=ENDLESS, policy={**goes_on, "settle_seconds": 0.0})
            self._wait_for_rounds(fleet)
            found = [self._one(fleet, topics, f"run-{i}") for i in range(self.runs)]
        tasks, replies = zip(*found, strict=True)
        return {
            "submit to first task, median": statistics.median(tasks),
            "submit to first task, longest": max(tasks),
            "submit to its reply, longest": max(replies),
        }

    def _one(self, fleet: QueueFleet, topics: DownTopics, run: str) -> tuple[float, float]:
        """Return the seconds from the submission of a run to its first task, and to the reply."""
        time.sleep(CALM_SECONDS)
        n = self.devices
        before, began = len(topics.noted), time.monotonic()
        fleet.submit(run, rounds=1, policy={"quorum": n, "gather": n, "settle_seconds": 0.0})
        replied = time.monotonic()
        fleet.until(lambda: any(is_task_of(one, run) for one in topics.noted[before:]), f"a task of {run}")
        self._wait_for_rounds(fleet)
        first = first_task(topics.noted, run)
        if (state := fleet.rows()[OTHER]["state"]) != "running":
            raise MeasureError(f"{OTHER} must go on meanwhile, and it is {state}")
        fleet.finish({run: 1})
        return first.at - began, replied - began

    def _wait_for_rounds(self, fleet: QueueFleet) -> None:
        """Wait for two more rounds of the other run."""
        done = len(fleet.rounds(OTHER))
        fleet.until(lambda: len(fleet.rounds(OTHER)) > done + 1, f"two more rounds of {OTHER}")


def is_task_of(one: Noted, run: str) -> bool:
    return (one.kind, one.run) == ("task", run)


def first_task(noted: Sequence[Noted], run: str) -> Noted:
    """Return the first task of a run on the topic of a free device; raise MeasureError if there is none.

    A device is free if its last task has a receipt.
    """
    busy: dict[str, bool] = {}
    for one in noted:
        if is_task_of(one, run) and not busy.get(one.device):
            return one
        if one.kind in ("task", "receipt"):
            busy[one.device] = one.kind == "task"
    raise MeasureError(f"no device was free when it got its task of {run}: {sorted(busy)}")
