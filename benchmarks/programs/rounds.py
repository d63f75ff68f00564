"""The cost of a round without the training: seconds of communication, and the ratio of wire bytes to array bytes."""

from __future__ import annotations

import json
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.programs.fleet import Clockwork, broker, conduct, members
from protofleet.coordinator.round.policy import Policy
from protofleet.methods.contract.plan import Network, Plan

DEVICES, ROUNDS = 10, 10
# Seconds after the end of the run within which a device process must end, even on a busy machine.
END_SECONDS = 300.0
# The network has 193*251 + 252*16 + 17*31 = 53,002 parameters, as many as the CNN in measurements of other systems.
MODEL = Plan("fedavg", 31, ROUNDS, size=8, network=Network("mlp", 251), hyper={"epochs": 1, "batch": 32})
# 10 classes x 512 features x 4 bytes = 20,480 bytes of prototypes in each direction.
PROTOTYPES = Plan("fedproto", 10, ROUNDS, size=32, network=Network("cnn4"), hyper={"epochs": 1, "batch": 32})


def measure(devices: int = DEVICES, rounds: int = ROUNDS) -> dict[str, object]:
    return {
        "devices": devices,
        "rounds": rounds,
        "fedavg_53002": one(replace(MODEL, rounds=rounds), 31, devices),
        "fedproto_20kB": one(replace(PROTOTYPES, rounds=rounds), 20, devices),
    }


def one(plan: Plan, examples: int, devices: int = DEVICES) -> dict[str, object]:
    names = [f"device-{i}" for i in range(devices)]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "shape.json").write_text(json.dumps({"classes": plan.classes, "size": plan.size}))
        observer = Clockwork()
        policy = Policy(quorum=devices, cohort=devices, settle_seconds=60.0)
        with broker(folder) as running, members(folder, names, running.address, examples) as processes:
            service = conduct(folder, plan, policy, running.address, observer)
            for process in processes.values():
                process.wait(END_SECONDS)
            described = running.describe()
        meters = [json.loads((folder / "devices" / n / "meter.json").read_text()) for n in names]
    talk = [seconds - work for phase, seconds, work in observer.phases if phase == "train"]
    meter = service.run.link.meter
    return {
        "broker": described,
        "communication_seconds_median": round(statistics.median(talk), 4),
        "communication_seconds": [round(t, 4) for t in talk],
        "round_seconds_median": round(
            statistics.median(s for phase, s, _ in observer.phases if phase == "train"), 4
        ),
        "wire_over_payload_at_the_coordinator": ratio(sum(meter.wire.values()), sum(meter.payload.values())),
        "wire_over_payload_at_the_devices": ratio(
            sum(m["wire"] for m in meters), sum(m["payload"] for m in meters)
        ),
    }


def ratio(wire: int, payload: int) -> float:
    return round(wire / payload, 5)
