"""A device of version 1.0 takes part in one run of a queue, together with devices that take part in two runs.

The coordinator, the new devices and Mosquitto are real processes; a script plays the old device in bytes.
"""

import json

import pytest

from protofleet.coordinator.round.policy import Policy
from tests.hostile import wire
from tests.hostile.device import Answer, honest
from tests.hostile.federation import Federation
from tests.hostile.old_coordinator import INLINE
from tests.hostile.test_run_queue import EXPERIMENT, Operator

pytestmark = [pytest.mark.broker, pytest.mark.slow]
ALL_THREE = EXPERIMENT.replace("rounds = 2", "rounds = 4").replace(
    "quorum = 2\ngather = 2", "quorum = 3\ngather = 3"
)


def old_device(f):
    """Start the old device, whose updates follow from the broadcast."""

    def work(task):
        if task.phase == "evaluate":
            return honest(task)
        body = wire.body({k: (v * v.dtype.type(0.75)).astype(v.dtype) for k, v in task.arrays.items()})
        return Answer(body if len(body) < INLINE else made.offer(body))

    made = f.raw("old", work)
    return made


def participants(operator, run):
    lines = (operator.runs / run / "rounds.jsonl").read_text().splitlines()
    return {device for line in map(json.loads, lines) for device in line["participants"]}


def test_a_run_of_a_queue_with_an_old_device_has_the_same_bits_as_the_run_alone(tmp_path, capsys):
    with Federation(tmp_path, "one", "two", "old") as f:
        service, operator = f.service(slots=2), Operator(f, capsys)
        f.wait_until(f.answers, "the service")
        for name, text in (("red", ALL_THREE), ("blue", EXPERIMENT)):
            assert operator.submit(name, text=text) == 0
        old = old_device(f)
        for device in ("one", "two"):
            f.device(device, stays=True)
        operator.wait_for(120.0, red="finished", blue="finished")
        assert participants(operator, "red") == {"one", "two", "old"}
        assert participants(operator, "blue") == {"one", "two"}
        assert {heard.header["run"] for heard in old.heard if heard.kind == "task"} == {"red"}
        assert "Traceback" not in f.log_of(service)

        old.stop()
        service.kill()
        old_device(f)
        policy = Policy(quorum=3, gather=3, settle_seconds=0.2)
        assert f.wait_for_end(f.coordinator(name="alone", rounds=4, policy=policy), 120.0) == 0
        assert operator.bits("red") == operator.bits("alone") != operator.bits("blue")
