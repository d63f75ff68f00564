"""The samples of the devices and the plan of a run: pictures, series or vectors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from protofleet.methods.contract.plan import Network, Plan
from protofleet.protocol.settings.codec import CodecSettings, CodecStage
from protofleet.protocol.settings.input_shape import USUAL_SIDE
from protofleet.protocol.settings.secagg import SecaggSettings
from tests.simulator.scenario import Scenario
from tests.support.small_federation import SHAPE as PICTURE
from tests.support.small_federation import plan as small_plan
from tests.support.small_federation import shard

INT8 = CodecStage("int8", "broadcast")
# The stages of updates, by the name that a scenario draws. Weights of fewer than 1,024 numbers become int8 in each.
UPLINKS = {
    "int8": {"weights": CodecStage("int8", "broadcast", feedback=True)},
    "chance": {
        "weights": CodecStage("int4", "broadcast", feedback=True, rounding="stochastic"),
        "features": CodecStage("int4", rounding="stochastic"),
    },
    "sparse": {"weights": CodecStage("ternary", "broadcast", keep=4, feedback=True)},
    "packed": {
        "weights": CodecStage("rice", "broadcast", feedback=True, pack=True),
        "features": CodecStage("uint8", pack=True),
    },
}


def plan_of(s: Scenario) -> Plan:
    """Return the plan of a scenario.

    The plan for pictures has the same bytes as always, so that their seeds keep their histories.
    """
    network = "cnn1d" if len(s.axes) == 2 else "mlp"
    if s.method != "tally":
        held = {"any": shard(0, shape=s.axes or PICTURE)}
        return small_plan(s.method, s.policy.rounds, network=Network(network), shards=held, **s.hyper)
    # With series, tensors of two axes travel; with vectors, tensors of three axes. Only tensors of two axes and more
    # are sent as ternary numbers or with 4 bits.
    travels, size = ({"axes": 4 - len(s.axes)}, USUAL_SIDE) if s.axes else ({}, PICTURE[1])
    if s.uplink and not s.axes:
        travels = {"axes": 2}
    down = {"weights": INT8} if s.deltas else {}
    codec = CodecSettings(UPLINKS.get(s.uplink, {}), down) if s.uplink or s.deltas else None
    return Plan(
        "tally", 2, s.policy.rounds, s.seed % 1000, size, Network(network, feature_size=2), s.hyper | travels,
        shape=s.axes, codec=codec, secagg=sums_of(s),
    )  # fmt: skip


def sums_of(s: Scenario) -> SecaggSettings | None:
    """Return the settings of masked sums; devices work for up to `work_seconds` in each short phase too."""
    return SecaggSettings(patience_seconds=10.0 + s.work_seconds) if s.summed else None


def data_of(s: Scenario, i: int) -> Any:
    """Return the data of the i-th device."""
    shape = s.axes or PICTURE
    if s.method != "tally":
        return shard(i, n=12, shape=shape)
    x, y = torch.full((4 + i, *shape), 0.1 * i), torch.arange(4 + i) % 2
    part = SimpleNamespace(x=x, y=y)
    empty = SimpleNamespace(x=x[:0], y=y[:0])
    return SimpleNamespace(domain=f"domain-{i}", classes=2, names=(), train=part, validation=empty, test=part)
