"""Masked sums of 20 devices over a real broker, of which a fifth falls silent, and the bytes that they cost."""

from contextlib import contextmanager
from dataclasses import replace

import pytest

from protofleet.methods.contract.plan import Network
from protofleet.protocol.settings.secagg import SecaggSettings
from tests.support.federation_over_broker import Federation
from tests.support.run_policy import RunPolicy
from tests.support.small_enrolment import SmallEnrolment
from tests.support.small_federation import plan
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
    lost_at = ""

    def __init__(self, *given):
        super().__init__(*given)
        self.enrolment = SmallEnrolment(self.folder / "records", self.topics.federation, self.keys)

    def make_plan(self, method):
        return replace(plan(method, 1), secagg=self.settings, network=self.network)

    def keyring_of(self, name):
        return self.enrolment.keyring_of(name)

    def device(self, name, i):
        """Start a device; if it is lost, it falls silent when it gets the task of the step `lost_at`."""
        agent, inbox = super().device(name, i)
        if name in LOST:
            take = agent.tasks.take
            agent.tasks.take = lambda question: question.phase == self.lost_at or take(question)
        return agent, inbox


@contextmanager
def ran(folder, broker, federation, **changes):
    made = type("Changed", (Summed,), changes)(folder, broker.address, federation, "fedavg")
    try:
        yield made.run()
    finally:
        made.close()


@pytest.mark.parametrize("step", STEPS)
def test_a_fifth_of_20_devices_falls_silent_in_a_step_and_the_sum_has_the_bits_of_the_rest(
    tmp_path, broker, federation, monkeypatch, step
):
    recorder = SumRecorder(monkeypatch)
    with ran(tmp_path, broker, federation, lost_at=step) as run:
        assert run.service.finished and not run.service.run.diverged
    recorder.check()
    (_, _, survivors, _, _) = recorder.sums[-1]
    lost = LOST if STEPS.index(step) <= STEPS.index("train.masked") else []
    assert survivors == tuple(name for name in MANY if name not in lost)
    assert len(recorder.sums) == 1


def test_masked_weights_cost_at_most_a_twentieth_more_than_plain_weights(tmp_path, broker, federation):
    network = Network("mlp", feature_size=256)
    up = []
    for settings in (None, SETTINGS):
        changes = {"settings": settings, "network": network}
        with ran(tmp_path / str(len(up)), broker, f"{federation}{len(up)}", **changes) as run:
            assert run.service.finished
            meter = run.service.run.link.meter
            up.append(sum(size for (way, _), size in meter.wire.items() if way == "up"))
    assert up[1] / up[0] <= 1.05, up
