"""The coordinator accepts claims of devices only within limits, and a refused update leaves no file or metric."""

import numpy as np
import pytest
import torch

from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.observe.metrics import BoundedLabels
from protofleet.coordinator.spool.spool import Accepted, Spool
from protofleet.methods.contract.bridge import LazyPayload
from protofleet.methods.contract.wants import SLICE, TensorSpec, problem_with
from protofleet.protocol.wire.arrays import Body, encode
from protofleet.protocol.wire.reasons import Reason
from tests.federations.test_malice import METHOD, POLICY, D, good
from tests.support.lying_device import add_liar
from tests.support.small_federation import simulation


class Watched:
    """A body that notes which of its bytes are read."""

    def __init__(self, arrays):
        self.body, self.reads = b"".join(encode(arrays)), []

    def read(self, start, stop):
        self.reads.append(stop - start)
        return bytearray(self.body[start:stop])

    def payload(self):
        found = LazyPayload(Body(self.read, len(self.body)))
        self.reads.clear()
        return found


def test_an_update_whose_last_array_has_a_wrong_shape_is_refused_before_its_numbers_are_read():
    watched = Watched({"a": np.zeros(1000, np.float32), "b": np.zeros((2, 3), np.int8)})
    wants = {"a": TensorSpec(("n",)), "b": TensorSpec((3, 2), "int8")}
    assert problem_with(wants, watched.payload()).reason is Reason.WRONG_SHAPE
    assert watched.reads == []


def test_a_large_array_is_checked_in_slices_up_to_its_end():
    numbers = np.zeros(2 * SLICE + 5, np.float32)
    wants = {"features": TensorSpec(("n",), low=-1, high=1, most=1 << 30)}
    watched = Watched({"features": numbers})
    assert problem_with(wants, watched.payload()) is None
    assert max(watched.reads) == 4 * SLICE and sum(watched.reads) == numbers.nbytes
    for bad, reason in (
        (np.nan, Reason.NOT_FINITE),
        (2.0, Reason.OUT_OF_BOUNDS),
        (-2.0, Reason.OUT_OF_BOUNDS),
    ):
        numbers[-1] = bad
        assert problem_with(wants, Watched({"features": numbers}).payload()).reason is reason


def test_the_norm_of_an_array_covers_all_slices_and_is_compared_with_the_limit():
    """One device must not outweigh all others. The squares of allowed values would overflow a float32."""
    wants = {"weights": TensorSpec(("n",), most=1 << 30)}
    numbers = np.full(2 * SLICE, 3.0, np.float32)
    norm = float(np.linalg.norm(numbers.astype(np.float64)))
    for bound, reason in ((norm * 1.001, None), (norm * 0.999, Reason.OUT_OF_BOUNDS), (np.inf, None)):
        problem = problem_with(wants, Watched({"weights": numbers}).payload(), norm=bound)
        assert (problem and problem.reason) == reason
    assert problem_with({"weights": TensorSpec((1,))}, {"weights": torch.tensor([1e30])}, norm=1e29).reason
    assert problem_with({"weights": TensorSpec((1,))}, {"weights": torch.tensor([1e30])}, norm=1e31) is None


def test_an_update_above_the_norm_limit_of_the_settings_is_refused(tmp_path):
    run = simulation(tmp_path, METHOD, policy=POLICY, limits=CoordinatorLimits(norm=500.0))
    liar = add_liar(run)
    boosted = good(prototypes=np.full((3, D), 1e3, np.float32))
    liar.answers = lambda liar, place: liar.update(place, boosted)
    run.run()
    assert run.service.finished
    assert {verdict for verdict, _ in liar.verdicts()} == {"refused"}
    assert "a norm of" in liar.verdicts()[0][1] and run.service.run.link.meter.rejected[Reason.OUT_OF_BOUNDS]


def test_counts_are_compared_with_the_examples_only_if_they_count_examples():
    counts = {"counts": torch.tensor([5, 6])}
    for of_examples, examples, reason in ((True, 11, None), (True, 10, Reason.BAD_CLAIM), (False, 10, None)):
        problem = problem_with(
            {"counts": TensorSpec((2,), "int64", of_examples=of_examples)}, counts, examples
        )
        assert (problem and problem.reason) == reason


def test_a_liar_cannot_create_metric_series_without_limit():
    names = BoundedLabels(3)
    assert [names.label(f"view-{i}") for i in range(5)] == ["view-0", "view-1", "view-2", "other", "other"]
    assert names.label("view-1") == "view-1"


def test_the_metrics_of_a_refused_update_reach_no_observer(tmp_path):
    told = []

    class Refused:
        def answered(self, service, update, now):
            told.append(update.device)

        def happened(self, *what):
            pass

        stepped = happened

    def lie(liar, place):
        if place[1] == "train":
            liar.update(place, good(labels=np.array([0, 1, 9])), metrics={"accuracy.test.global": 1.0})

    run = simulation(tmp_path, METHOD, policy=POLICY, observers=[Refused()])
    add_liar(run, answers=lie)
    run.run()
    assert set(told) == {"device-0", "device-1", "device-2"}


def test_a_refused_update_is_deleted_unless_the_same_bytes_were_accepted(tmp_path):
    spool = Spool(tmp_path, durable=False)
    kept, gone = spool.store("a").put_bytes(b"kept"), spool.store("a").put_bytes(b"gone")
    spool.accept(1, "train", Accepted("a", b"", kept, 5, {}))
    spool.discard_answer("a", kept)
    spool.discard_answer("a", gone)
    assert spool.store("a").names() == [kept]
    assert spool.bytes_of_answers() == 4
    spool.close()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_is_found_at_each_position(dtype, value):
    for at in (0, 7, 8, 99):
        sent = {"weights.w": torch.ones(100, dtype=dtype)}
        wants = {"weights.w": TensorSpec((100,), str(dtype).removeprefix("torch."))}
        assert problem_with(wants, sent) is None
        sent["weights.w"][at] = value
        assert problem_with(wants, sent).reason is Reason.NOT_FINITE


@pytest.mark.parametrize("value", [1e150, 1e155, 1e200])
def test_finite_values_are_accepted_even_if_their_squares_overflow(value):
    sent = {"weights.w": torch.full((100,), value, dtype=torch.float64)}
    wants = {"weights.w": TensorSpec((100,), "float64")}
    assert problem_with(wants, sent) is None
    assert problem_with(wants, sent, norm=1e149).reason is Reason.OUT_OF_BOUNDS
    largest = {"weights.w": torch.full((100,), torch.finfo(torch.float32).max)}
    assert problem_with({"weights.w": TensorSpec((100,))}, largest) is None
