"""Masked sums of 20 devices over a real broker, a fifth of which become silent, and the bytes that they need."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from protofleet.methods.contract.plan import Network
from protofleet.protocol.settings.secagg import SecaggSettings
from tests.support.federation_over_broker import Federation
from tests.support.run_policy import RunPolicy
from tests.support.small_enrolment import SmallEnrolment
from tests.support.small_federation import CLASSES, SHAPE, Shard, TensorSamples, plan
from tests.support.summed_simulation import STEPS, SumRecorder

pytestmark = pytest.mark.slow
MANY = [f"device-{i:02}" for i in range(20)]
LOST = MANY[3::5]  # a fifth of the devices
SETTINGS = SecaggSettings(limit=64.0, patience_seconds=4.0)


class Summed(Federation):
    """A federation of 20 enrolled devices as threads of this process."""

    names, seconds = MANY, 170
    policy = RunPolicy(
        rounds=1, quorum=14, gather=20, patience_seconds=60.0, settle_seconds=0.5, straggler_factor=6.0
    )
    settings = SETTINGS
    network = Network("mlp")
    method, classes = "fedavg", CLASSES
    lost_at = ""

    def __init__(self, *given):
        super().__init__(*given)
        self.enrolment = SmallEnrolment(self.folder / "records", self.topics.federation, self.keys)

    def make_plan(self, method):
        made = replace(plan(self.method, 1), classes=self.classes, network=self.network)
        return replace(made, secagg=self.settings)

    def shard_of(self, i):
        """Return a device's samples of all classes."""
        train = samples(self.classes, seed=i)
        return Shard("all", self.classes, train, train, train)

    def keyring_of(self, name):
        return self.enrolment.keyring_of(name)

    def device(self, name, i):
        """Start a device; a lost device becomes silent when it gets the task of the step `lost_at`."""
        agent, inbox = super().device(name, i)
        if name in LOST:
            take = agent.tasks.take
            agent.tasks.take = lambda question: question.phase == self.lost_at or take(question)
        return agent, inbox


def samples(classes, seed):
    """Return four samples of each class."""
    dice = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat(4)
    return TensorSamples(torch.randn(len(labels), *SHAPE, generator=dice), labels)


@contextmanager
def ran(folder, broker, federation, **changes):
    made = type("Changed", (Summed,), changes)(folder, broker.address, federation, "fedavg")
    try:
        yield made.run()
    finally:
        made.close()


@pytest.mark.parametrize("step", STEPS)
def test_the_sum_is_that_of_the_survivors_if_a_fifth_of_20_devices_becomes_silent(
    tmp_path, broker, federation, monkeypatch, step
):
    recorder = SumRecorder(monkeypatch)
    with ran(tmp_path, broker, federation, lost_at=step) as run:
        assert run.service.finished and not run.service.run.diverged
    recorder.check()
    survivors = recorder.sums[-1].survivors
    lost = LOST if STEPS.index(step) <= STEPS.index("train.masked") else []
    assert survivors == tuple(name for name in MANY if name not in lost)
    assert len(recorder.sums) == 1


def test_masked_weights_need_at_most_5_percent_more_bytes_than_plain_weights(tmp_path, broker, federation):
    plain, masked = bytes_up(tmp_path, broker, federation, SETTINGS, network=Network("mlp", feature_size=256))
    assert masked / plain <= 1.05, (plain, masked)


def test_masked_prototypes_of_24_bits_need_at_most_15_percent_more_bytes(tmp_path, broker, federation):
    """Ten prototypes of 512 numbers; the steps of both stages are in the bytes."""
    settings = replace(SETTINGS, bits=24)
    ten = {"method": "fedproto", "classes": 10, "network": Network("mlp", embedding_size=512)}
    plain, masked = bytes_up(tmp_path, broker, federation, settings, **ten)
    assert masked / plain <= 1.15, (plain, masked, masked / plain)


def bytes_up(folder, broker, federation, settings, **changes):
    """Return the bytes that all devices send in a plain run and in a run of masked sums."""
    found = []
    for number, chosen in enumerate((None, settings)):
        with ran(folder / str(number), broker, f"{federation}{number}", settings=chosen, **changes) as run:
            assert run.service.finished and not run.service.run.diverged
            wire = run.service.run.link.meter.wire
            found.append(sum(size for (way, _), size in wire.items() if way == "up"))
    return found
