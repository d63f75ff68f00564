"""Measure the bytes of a round on the wire for one device, without the bytes of arrays, by kind of message.

A federation runs in one process, with sealed messages. The size of every PUBLISH is measured where the broker
receives the packet. The measured size is the size that the PUBLISH would have on a socket.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgpack

from benchmarks.programs.member import MadeUp, made_up
from protofleet.coordinator.round.policy import Policy
from protofleet.lab.simulation.federation import Simulation
from protofleet.methods.contract.plan import Network, Plan
from protofleet.protocol.link.meter import DOWN, UP
from protofleet.protocol.transport.base import packet_bytes

CLASSES, SIZE, DEVICES, ROUNDS = 10, 8, 4, 20
POLICY = Policy(
    quorum=DEVICES,
    cohort=DEVICES,
    patience_seconds=20.0,
    grace_seconds=1.0,
    settle_seconds=0.5,
)
KINDS = ("task", "block", "want", "update", "receipt")
# Width of the embedding, by the size of ten prototypes (with their labels and counts).
WIDTHS = {
    "10 kB": 256,
    "3.5 kB": 85,
}
BLOCK = b"PF\x02"


class Scale:
    """A meter that measures the size of every packet on its way into the simulated broker."""

    def __init__(self, run: Simulation) -> None:
        # Bytes by (device, kind of message). Messages to all devices are counted for the device "".
        self.bytes: Counter[tuple[str, str]] = Counter()
        self._publish = run.broker.publish
        run.broker.publish = self.publish  # type: ignore[method-assign]

    def publish(self, topic: str, frame: bytes, retain: bool) -> None:
        level, place = topic.split("/")[3:5]
        device = place if level in ("up", "down", "dev") else ""
        self.bytes[device, kind_of(frame)] += packet_bytes(topic, len(frame))
        self._publish(topic, frame, retain)

    def of(self, devices: Sequence[str], kind: str) -> float:
        """Return the mean number of bytes per device in messages of this kind; messages to all devices count too."""
        return self.bytes["", kind] + sum(self.bytes[device, kind] for device in devices) / len(devices)


def kind_of(frame: bytes) -> str:
    """Return the kind of a message. The kind is not encrypted, so a broker can read it too."""
    if frame[:3] == BLOCK:
        return "block"
    header: list[str] = msgpack.unpackb(frame[5 : 5 + int.from_bytes(frame[3:5], "little")])
    return header[3]


def weighed(folder: Path, width: int) -> tuple[Simulation, Scale]:
    """Run FedProto until the run ends, and return the run and its meter."""
    shards = {
        name: measured(made_up(name, CLASSES, SIZE, 40)) for name in map("device-{}".format, range(DEVICES))
    }
    plan = Plan("fedproto", CLASSES, ROUNDS, 1, SIZE, Network("mlp", embedding_size=width))
    run = Simulation(plan, shards, POLICY, folder)
    scale = Scale(run)
    run.run()
    return run, scale


def measured(data: MadeUp) -> MadeUp:
    """Return data with validation and test samples, so that an update carries metrics."""
    return replace(data, validation=data.train, test=data.train)


def share(run: Simulation, scale: Scale, devices: Sequence[str]) -> dict[str, float]:
    """Return the bytes of one device in a round. The bytes outside the arrays are divided by kind of message.

    The evaluation counts as one more round.
    """
    rounds, payload = ROUNDS + 1, run.service.run.link.meter.payload
    up = sum(n for (way, _), n in payload.items() if way == UP) / len(run.agents)
    down = sum(n for (way, _), n in payload.items() if way == DOWN)
    arrays = {"update": up, "block": down}
    found = {kind: (scale.of(devices, kind) - arrays.get(kind, 0)) / rounds for kind in KINDS}
    return {"arrays up": up / rounds, "arrays down": down / rounds, **found}


def beside(found: dict[str, float]) -> float:
    """Return the bytes of a round that do not belong to arrays."""
    return sum(found[kind] for kind in KINDS)


def ratio(found: dict[str, float]) -> float:
    """Return the bytes on the wire divided by the bytes of arrays, for both directions together."""
    payload = found["arrays up"] + found["arrays down"]
    return (payload + beside(found)) / payload


def ratio_up(found: dict[str, float]) -> float:
    """Return the bytes on the wire divided by the bytes of arrays, only for updates and requests for their blocks."""
    return (found["arrays up"] + found["want"] + found["update"]) / found["arrays up"]


def measure() -> dict[str, object]:
    said: dict[str, object] = {}
    for name, width in WIDTHS.items():
        with tempfile.TemporaryDirectory() as folder:
            run, scale = weighed(Path(folder), width)
        found = share(run, scale, list(run.agents))
        said[name] = {
            **{key: round(value, 1) for key, value in found.items()}, "beside": round(beside(found), 1),
            "wire / payload": round(ratio(found), 3), "wire / payload up": round(ratio_up(found), 3),
        }  # fmt: skip
    return said
