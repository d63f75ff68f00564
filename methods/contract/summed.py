"""The vector that a device adds to a masked sum of a run: its places, its field, and the noise on it.

Coordinator and devices compute them from the plan, so that their terms agree.
"""

from __future__ import annotations

from collections.abc import Mapping

from protofleet.methods.contract.contribution import VectorLayout, layout_of
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.private_rows import ROWS, rows_with_noise
from protofleet.methods.contract.private_sums import SUMS
from protofleet.methods.contract.shared_noise import SharedNoise, noise_field, samples_field, shared_noise
from protofleet.protocol.secagg.field import Field


def summed_layout(
    plan: Plan, phase: str, arrays: Mapping[str, tuple[str, tuple[int | str, ...]]]
) -> VectorLayout:
    """Return the places of arrays with these dtypes and shapes; raise ValueError if the phase's mean lacks one.

    Under `dp`, arrays of whole numbers are not in the vector, and come back as the broadcast has them. Rows of
    classes are a table with a row for every class. Sums over samples replace all arrays of the phase.
    """
    if (sums := plan.sums) is not None:
        arrays = {SUMS: ("float64", (sums.numbers,))}
    elif rows_with_noise(plan) is not None:
        dtype, shape = arrays[ROWS]
        arrays = {ROWS: (dtype, (plan.classes, *shape[1:]))}
    elif plan.dp is not None:
        arrays = {name: one for name, one in arrays.items() if one[0].startswith("float")}
    return layout_of(plan.summed_phases[phase], arrays, plan.classes)


def summed_field(plan: Plan, devices: int) -> Field:
    """Return the field of a sum of at most so many devices; raise ValueError if the sum could wrap."""
    settings = plan.secagg
    assert settings is not None, "only a run with [secagg] has sums"
    if plan.sums is not None:
        return samples_field(settings, devices)
    if plan.dp is not None:
        return noise_field(plan.dp, settings, devices)
    return Field(devices, settings.limit, settings.fraction(devices), settings.bits)


def noise_of_sum(plan: Plan, numbers: int, devices: int) -> SharedNoise | None:
    """Return the noise on a vector of so many numbers, or None in a run without `dp`."""
    if plan.dp is None or plan.secagg is None:
        return None
    return shared_noise(plan.dp, plan.secagg, numbers, devices, plan.sums)
