"""A device keeps the loss of rounding only for updates that the coordinator uses."""

import random

import numpy as np
import pytest

from protofleet.edge_client.coded_answer import code_answer
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.file import Answer
from protofleet.edge_client.work_queue import Question
from protofleet.methods.contract.plan import Network, Plan
from protofleet.protocol.settings.codec import CodecSettings, CodecStage
from protofleet.protocol.wire.messages import NOTHING

RICE = CodecStage("rice", "broadcast", feedback=True)
SPARSE = CodecStage("ternary", "broadcast", keep=8, feedback=True)
CHANCY = CodecStage("int4", "broadcast", feedback=True, rounding="stochastic")
SHOWN = {"weights.w": np.zeros((32, 40), np.float32)}
PHASES = ("train", "mix")


def plan(stage):
    codec = CodecSettings({"weights": stage})
    return Plan("fedavg", 3, 9, network=Network("mlp"), shape=(8,), codec=codec)


def trained(number, phase):
    dice = np.random.default_rng([number, PHASES.index(phase)])
    return {"weights.w": dice.standard_normal((32, 40)).astype(np.float32)}


class Device:
    def __init__(self, folder, stage):
        self.plan, self.folder = plan(stage), folder
        self.restart()
        self.state.begin("run", self.plan.digest.hex())

    def restart(self):
        self.state = DeviceState(self.folder, durable=False)

    def answer(self, number, phase, took):
        """Answer a task as the job runner does, and return the bytes of the update."""
        question = Question(f"{number:03}{phase}".encode().hex().ljust(64, "0"), number, phase, b"", 1, took)
        coded = code_answer(self.plan, "a", self.state, question, trained(number, phase), SHOWN)
        name = self.state.store.put(coded.arrays).object.hex()
        answer = Answer(question.name, number, phase, "", name, 5, {}, *(took or ()))
        self.state.save_answer(answer, NOTHING, 1, coded.residuals)
        self.state.keep_only(set())
        return coded.arrays["weights.~"].tobytes()

    def residual(self, phase):
        """Return the residual of the last update."""
        name = self.state.saved.residuals[-1].objects[phase]
        return self.state.store.open(bytes.fromhex(name))["weights.w"]


@pytest.mark.parametrize("stage", [RICE, SPARSE, CHANCY])
@pytest.mark.parametrize("seed", range(8))
def test_an_unused_update_does_not_change_later_updates(tmp_path, stage, seed):
    """The coordinator uses some updates. The others are late or refused, or their round begins again.

    A device that never worked in those rounds sends the same bytes in the rounds whose updates are used.
    """
    dice = random.Random(seed)
    whole, part = Device(tmp_path / "whole", stage), Device(tmp_path / "part", stage)
    took = None
    for number in range(1, 9):
        used = dice.random() < 0.6
        sent = whole.answer(number, "train", took)
        if dice.random() < 0.3:
            whole.restart()
        if used:
            assert part.answer(number, "train", took) == sent
            assert np.array_equal(part.residual("train"), whole.residual("train"))
            took = (number, "train")


def test_each_phase_starts_from_the_residual_of_the_last_used_phase(tmp_path):
    device, other = Device(tmp_path / "a", RICE), Device(tmp_path / "b", RICE)
    device.answer(1, "train", None)
    device.answer(1, "mix", (1, "train"))
    # The round begins again without the mix, and then the next round begins.
    device.answer(2, "train", (1, "train"))
    other.answer(1, "train", None)
    assert other.answer(2, "train", (1, "train")) == device.answer(2, "train", (1, "train"))
    assert [(one.round, one.phase) for one in device.state.saved.residuals] == [(1, "train"), (2, "train")]


def test_earlier_residuals_are_kept_while_the_round_can_begin_again(tmp_path):
    device = Device(tmp_path / "a", RICE)
    device.answer(1, "train", None)
    device.answer(2, "train", (1, "train"))
    device.answer(2, "mix", (2, "train"))
    kept = [(one.round, one.phase) for one in device.state.saved.residuals]
    assert kept == [(1, "train"), (2, "train"), (2, "mix")]
    objects = {name for one in device.state.saved.residuals for name in one.objects.values() if name}
    assert all(device.state.store.has(bytes.fromhex(name)) for name in objects)
    # No update of round 2 was used, so the update of round 3 starts from the residual of round 1.
    fresh = Device(tmp_path / "b", RICE)
    fresh.answer(1, "train", None)
    assert device.answer(3, "train", (1, "train")) == fresh.answer(3, "train", (1, "train"))


def test_the_same_task_gets_the_same_bytes_in_every_process(tmp_path):
    for stage in (RICE, CHANCY):
        one, two = Device(tmp_path / f"1{stage.form}", stage), Device(tmp_path / f"2{stage.form}", stage)
        two.state.boot(10**9)
        assert one.answer(1, "train", None) == two.answer(1, "train", None)


def test_a_new_run_begins_without_a_residual(tmp_path):
    device = Device(tmp_path, RICE)
    first = device.answer(1, "train", None)
    device.state.begin("another", device.plan.digest.hex())
    assert device.state.saved.residuals == [] and device.answer(1, "train", None) == first


def test_a_damaged_residual_is_computed_again_from_the_earlier_one(tmp_path):
    device = Device(tmp_path, RICE)
    device.answer(1, "train", None)
    sent = device.answer(2, "train", (1, "train"))
    newest = device.state.saved.residuals[-1].objects["train"]
    (path,) = tmp_path.glob(f"objects/{newest}*")
    path.write_bytes(b"nothing")
    device.restart()
    lost = device.state.saved.lost
    assert (lost.round, lost.took_round, lost.took_phase) == (2, 1, "train")
    assert device.answer(2, "train", (lost.took_round, lost.took_phase)) == sent
