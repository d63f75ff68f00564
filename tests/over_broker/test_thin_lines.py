"""Devices behind 250 kbit/s, 300 ms and 2 % loss: real processes, a real broker, and a proxy as the line."""

import json
import time
from dataclasses import replace

import pytest

from benchmarks.programs.fleet import Clockwork, EndRun, conduct, members
from benchmarks.programs.large import plan_of
from benchmarks.programs.thin_line import Line, ThinLine
from protofleet.coordinator.round.policy import Policy
from protofleet.federation.brokers.local import LocalBroker
from protofleet.protocol.link.meter import UP
from protofleet.protocol.transport.address import SMALLEST_BLOCK

MEGABYTES = 0.4
THIN, FAST = ("thin-1", "thin-2"), "fast"


class Answers(Clockwork):
    """An observer of the seconds from the task to each update of the first round."""

    def __init__(self):
        super().__init__()
        self.seconds, self.up, self.progress = {}, 0, []

    def transfer_progressed(self, device, progress):
        self.progress.append((device, progress, time.monotonic() - self.asked_at))

    def answered(self, run, update, now):
        self.seconds[update.device] = time.monotonic() - self.asked_at
        if len(self.seconds) == 3:
            self.up = sum(size for (way, _), size in run.meter.payload.items() if way == UP)
            raise EndRun


@pytest.mark.slow
def test_two_devices_on_slow_lines_finish_in_time_and_do_not_delay_a_third(tmp_path):
    plan, answers, line = plan_of(MEGABYTES, rounds=1, steps=1), Answers(), Line()
    (tmp_path / "shape.json").write_text(json.dumps({"classes": plan.classes, "size": plan.size}))
    policy = Policy(quorum=3, cohort=3, settle_seconds=600.0, patience_seconds=1200.0)
    with (
        LocalBroker(tmp_path / "broker", "mosquitto") as broker,
        ThinLine(broker.address.port, line) as one,
        ThinLine(broker.address.port, line) as other,
    ):
        ports = dict(zip(THIN, (one.port, other.port), strict=True))
        address = replace(broker.address, block_bytes=SMALLEST_BLOCK)  # A fleet has this size.
        devices = members(tmp_path, [*THIN, FAST], address, 2, ports)
        with devices, pytest.raises(EndRun):
            conduct(tmp_path, plan, policy, address, answers)
    assert answers.up >= 3 * 0.99e6 * MEGABYTES
    one_way = 8e6 * MEGABYTES / line.bits_per_second
    assert max(answers.seconds[name] for name in THIN) <= 1.5 * 2 * one_way, "the model down, the update up"
    assert answers.seconds[FAST] < one_way / 2, "before a slow line has transferred half of the model"
    for device, progress, after in answers.progress:
        left = answers.seconds[device] - after
        assert progress.seconds_left == pytest.approx(left, rel=0.5, abs=2.0)
    assert {device for device, _, _ in answers.progress} == set(THIN)
