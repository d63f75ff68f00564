"""Internal errors that messages of one peer cause, planted in real processes.

The error is logged and counted, and the run continues.
"""

import json
import urllib.request

import numpy as np
import pytest

from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.round.policy import Policy
from protofleet.federation.brokers.ports import free_port
from tests.hostile.device import Answer, honest
from tests.hostile.federation import Federation

# No device is dropped as a straggler, because that could be the device under test.
TOGETHER = Policy(quorum=2, gather=3, settle_seconds=1.0, straggler_factor=0.0)
SERVER_HALF = """
import protofleet.methods.fedavg as fedavg
mean = fedavg.weighted_mean
def raises(replies, wants):
    for reply in replies:
        if max(float(reply.payload[name].abs().max()) for name in wants) > {above}:
            raise ZeroDivisionError("no such weight \\x1b[2J")
    return mean(replies, wants)
fedavg.weighted_mean = raises
"""


def strikes_in_round_two(task):
    if task.phase != "train" or task.round != 2:
        return honest(task)
    arrays = {n: np.full_like(v, 999.0) if v.dtype.kind == "f" else v for n, v in task.arrays.items()}
    return Answer(arrays)


@pytest.mark.parametrize("killed", [False, True])
def test_an_answer_that_makes_the_server_half_fail_is_left_out_and_the_run_continues(tmp_path, killed):
    planted, limits = SERVER_HALF.format(above=900), CoordinatorLimits(outlier=0.0)
    with Federation(tmp_path, "one", "two", "liar", policy=TOGETHER, rounds=3, limits=limits) as f:
        coordinator = f.coordinator(planted=planted)
        liar = f.raw("liar", strikes_in_round_two)
        f.raw("one"), f.raw("two")
        f.wait_until(lambda: "back to round 2" in f.log_of(coordinator), "the way back")
        log = f.log_of(coordinator)
        if killed:
            coordinator.kill()
            coordinator = f.coordinator(planted=planted)
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        assert [line["round"] for line in f.rounds()] == [1, 2, 3, 4]
        assert {v for v, _ in liar.verdicts()} == {"accepted"}
        assert "the server half raised an error in round 2, after train" in log and "ZeroDivisionError" in log
        assert "\x1b" not in log
        back = [(event["round"], event["device"]) for event in f.events("went_back")]
        assert killed or back == [(2, "liar")]


def test_a_server_half_that_raises_on_all_answers_ends_the_run_as_diverged(tmp_path):
    with Federation(tmp_path, "one", "two", "three", policy=TOGETHER, rounds=2) as f:
        coordinator = f.coordinator(planted=SERVER_HALF.format(above=0))
        for name in ("one", "two", "three"):
            f.raw(name)
        assert f.wait_for_end(coordinator) == 4, f.last_words()
        last = f.log_of(coordinator).splitlines()[-1]
        assert last.startswith("protofleet: the run cannot continue: ") and "ZeroDivisionError" in last
        assert json.loads((f.run / "summary.json").read_text())["ended"].startswith("diverged: ")


DEVICE = """
from protofleet.edge_client.task_handler import TaskHandler
honest, left = TaskHandler.take, [1]
def raises(handler, question):
    if left:
        left.clear()
        raise ZeroDivisionError("no such task \\x1b[2J")
    return honest(handler, question)
TaskHandler.take = raises
"""


def test_a_device_continues_after_an_internal_error_in_the_work_for_a_message(tmp_path):
    """The coordinator repeats the task after the next hello."""
    with Federation(tmp_path, "one", rounds=1, policy=Policy(straggler_factor=0.0)) as f:
        coordinator, port = f.coordinator(), free_port()
        device = f.device("one", planted=DEVICE, metrics_port=port)
        f.wait_until(lambda: "an error occurred while a message" in f.log_of(device), "the error")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert "protofleet_device_errors_total 1.0" in answer.read().decode().splitlines()
        assert f.wait_for_end(coordinator) == 0 and f.wait_for_end(device) == 0, f.last_words()
        log = f.log_of(device)
        assert log.count("ZeroDivisionError") == 1 and "\x1b" not in log
        assert [line["participants"] for line in f.rounds()] == [["one"], ["one"]]


def test_the_traceback_of_an_ended_process_has_no_control_characters(tmp_path):
    planted = 'def raises(*given): raise ZeroDivisionError("no\\n2026-01-01 INFO forged \\x1b[2J")\n'
    with Federation(tmp_path, "one") as f:
        coordinator = f.coordinator(
            planted=f"{planted}import protofleet.coordinator.connection as m; m.RoundMachine = raises"
        )
        assert f.wait_for_end(coordinator) == 1
        log = f.log_of(coordinator)
        assert "Traceback" in log and "\\x1b[2J" in log and "\x1b" not in log
        assert not [line for line in log.splitlines() if line.startswith("2026-01-01")]
