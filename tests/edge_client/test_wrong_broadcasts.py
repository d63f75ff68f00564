"""If a coordinator sends wrong arrays and then right ones, no device ends or learns from the wrong ones."""

import pytest
import torch

from protofleet.methods.contract.base import Ask
from protofleet.protocol.wire.reasons import DisconnectReason
from tests.support.small_federation import POLICY, assert_same, simulation

FAULTS = {
    "not finite": lambda name, value: {name: torch.full_like(value, float("nan"))},
    "missing": lambda name, value: {},
    "wrong shape": lambda name, value: {name: value[..., :-1]},
    "one too many": lambda name, value: {name: value, "weights.surplus": value},
}


def spoil_once(sim, fault):
    """Spoil the first broadcast of round 2; the coordinator makes it again from its last save."""
    server, left = sim.service.run.server_runner.server, [fault]
    honest = server.round

    def round_of_a_liar():
        story = honest()
        ask = next(story)
        while True:
            if server.number == 2 and left:
                spoil = FAULTS[left.pop()]
                name = next(name for name, value in ask.payload.items() if value.is_floating_point())
                rest = {other: value for other, value in ask.payload.items() if other != name}
                ask = Ask(ask.phase, {**rest, **spoil(name, ask.payload[name])}, ask.wants)
            replies = yield ask
            try:
                ask = story.send(replies)
            except StopIteration:
                return

    server.round = round_of_a_liar


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        ("fedavg", "missing"),
        ("fedproto", "not finite"),
        ("fedplcc", "wrong shape"),
        ("fedavg", "one too many"),
    ],
)
def test_devices_refuse_wrong_arrays_and_compute_the_same_bits_from_right_ones(
    tmp_path, caplog, method, fault
):
    sim = simulation(tmp_path / "run", method)
    spoil_once(sim, fault)
    sim.run()
    said = [
        r.getMessage() for r in caplog.records if "wrong_arrays: the broadcast of round 2" in r.getMessage()
    ]
    assert sim.service.finished and sim.service.context.departures[DisconnectReason.WRONG_ARRAYS] >= 3
    assert said and all("\n" not in line for line in said)
    assert_same(sim, simulation(tmp_path / "other", method, policy=POLICY).run())
