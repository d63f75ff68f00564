"""The stored sums of reserved disk space equal the sum of all reservations, without a look at each of them."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.gate.gate import Gate
from protofleet.coordinator.gate.reservations import Reservations
from protofleet.coordinator.spool.spool import Spool
from protofleet.methods.contract.base import Ask
from tests.support.steps import steps_of

DEVICES = ("a", "b", "c")
DEEDS = st.tuples(
    st.sampled_from(["reserves", "is complete", "is freed"]), st.sampled_from(DEVICES), st.integers(0, 9)
)


@given(st.lists(DEEDS))
def test_the_stored_sums_equal_the_sums_of_all_reservations(deeds):
    reserved, sizes, complete = Reservations(), {}, set()
    for deed, device, size in deeds:
        if deed == "reserves":
            reserved.reserve(device, size)
            sizes[device] = size
        elif deed == "is complete":
            reserved.completed(device)
            complete |= {device} & sizes.keys()
        else:
            reserved.free(device)
            sizes.pop(device, None)
            complete.discard(device)
        unfinished = {d: n for d, n in sizes.items() if d not in complete}
        assert reserved.unfinished == unfinished and reserved.total == sum(sizes.values())
        assert reserved.complete == sum(sizes[d] for d in complete)
        for other in DEVICES:
            assert reserved.beside(other) == sum(n for d, n in sizes.items() if d != other)
            assert reserved.unfinished_beside(other) == sum(n for d, n in unfinished.items() if d != other)


def steps_of_a_reservation(folder, others):
    spool = Spool(folder, durable=False)
    gate = Gate(CoordinatorLimits(), SimpleNamespace(), spool, {}, SimpleNamespace(), ())
    gate.open(Ask("train", {}, {}), others + 1)
    for i in range(others):
        gate.reserve(f"device-{i:03}", 20_000)
        if i % 2:
            gate.completed(f"device-{i:03}")
    steps = steps_of(lambda: gate.reserve("one-more", 20_000))
    spool.close()
    return steps


def test_the_steps_of_a_reservation_do_not_grow_with_the_other_reservations(tmp_path):
    few, many = (steps_of_a_reservation(tmp_path / str(n), n) for n in (50, 500))
    assert many < 1.2 * few
