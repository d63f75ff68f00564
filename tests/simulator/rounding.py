"""The promise about rounding: no number differs by more than its stage allows, computed without the coder's code."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from protofleet.protocol.coding.coder import planned_form
from protofleet.protocol.coding.forms import Form
from protofleet.protocol.coding.update import Stages
from protofleet.protocol.settings.codec import BROADCAST, STOCHASTIC
from protofleet.protocol.wire.arrays import NAMES
from protofleet.protocol.wire.kinds import kind_in
from protofleet.protocol.wire.messages import Arrays
from tests.simulator.promises import demand

TOPS: Mapping[Form, int] = {Form.INT8: 127, Form.INT4: 7, Form.RICE: 7}  # The largest code of each form.
SCALE_ROUNDING = 2.0**-7  # A scale is rounded up to a bfloat16.
FLOAT32_ROUNDING = 2.0**-22


def check_rounding(wanted: Arrays, held: Arrays, decoded: Arrays, stages: Stages, where: str) -> None:
    """Check each array that is rounded by rows as a difference from the array in `held`.

    With the nearest code, an error is at most half a scale; with a random code, it is at most a scale.
    """
    for name in wanted:
        stage = stages.get(kind_in(name))
        if stage is None or stage.against != BROADCAST or name not in held:
            continue
        value = np.asarray(wanted[name])
        top = TOPS.get(planned_form(name, NAMES[value.dtype], value.shape, True, stage))
        if top is None or not value.size:
            continue
        rows = value.shape[0] if value.ndim > 1 else 1
        exact, base, got = (
            np.asarray(one, np.float64).reshape(rows, -1) for one in (value, held[name], decoded[name])
        )
        scale = np.abs(exact - base).max(1) / top * (1 + SCALE_ROUNDING)
        allowed = scale * (1.0 if stage.rounding == STOCHASTIC else 0.5)
        allowed += FLOAT32_ROUNDING * (np.abs(exact).max(1) + np.abs(base).max(1))
        worst = (np.abs(exact - got).max(1) - allowed).max()
        demand(
            worst <= 0, f"I11: {where}: a number of {name} is off by {worst:.3g} more than its scale allows"
        )
