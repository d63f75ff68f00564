"""The arrays of a round, which follow from a method's server half and its cost."""

from collections import Counter

import pytest

from protofleet.methods.contract.base import Member
from protofleet.methods.contract.catalog import names
from protofleet.methods.contract.cost import Cost
from protofleet.methods.contract.overview import Reference
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.round_arrays import UnknownArraysError, round_arrays

REFERENCE = Reference()
QUICK = ("fedavg", "fedpall", "fedproto", "fedlsa")


def found_for(method, cost=None):
    plan = Plan(method, REFERENCE.classes, 2, size=REFERENCE.size, network=REFERENCE.network)
    each = (REFERENCE.examples // REFERENCE.classes,) * REFERENCE.classes
    members = [Member(f"device-{i}", REFERENCE.examples, each) for i in range(REFERENCE.devices)]
    said = cost or plan.variant.cost(REFERENCE.sizes(plan))
    return round_arrays(plan, members, said), said


def bytes_by_kind(arrays):
    found = Counter()
    for one in arrays:
        found[one.kind] += one.bytes
    return dict(found)


@pytest.mark.parametrize(
    "method", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names()]
)
def test_the_arrays_of_every_method_have_the_bytes_that_its_cost_states(method):
    found, cost = found_for(method)
    assert bytes_by_kind(found.up) == cost.bytes_up and bytes_by_kind(found.down) == cost.bytes_down


def test_the_arrays_of_a_round_have_a_phase_and_the_shapes_that_devices_send():
    found, _ = found_for("fedpall")
    up = {(one.phase, one.name): one.shape for one in found.up}
    assert up["train", "prototypes"] == (10, 512) and up["mix", "features"] == (240, 512)
    assert up["train", "labels"] == (10,) and up["mix", "labels"] == (240,)
    found, _ = found_for("fedavg")
    assert all(one.in_broadcast for one in (*found.up, *found.down))
    found, _ = found_for("fedproto")
    (prototypes,) = (one for one in found.up if one.name == "prototypes")
    assert prototypes.shape == (10, 512) and not prototypes.in_broadcast


def test_arrays_that_do_not_follow_from_the_cost_are_refused():
    with pytest.raises(
        UnknownArraysError, match="fedavg sends weights up in arrays whose shapes do not follow"
    ):
        found_for("fedavg", Cost(up={"weights": 7}, down={"weights": 7}))
