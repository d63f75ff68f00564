import numpy as np
import pytest

from protofleet.protocol.secagg.control_arrays import SumStep
from protofleet.protocol.secagg.presence import presence_field, presence_words
from tests.support.secagg_fleet import NAMES, Fleet, terms


@pytest.mark.parametrize(("devices", "bits"), [(3, 8), (127, 8), (128, 16), (512, 16)])
def test_the_presence_vector_uses_the_fewest_bits_for_the_number_of_devices(devices, bits):
    field = presence_field(devices)
    assert field.bits == bits
    total = np.zeros(1, np.uint32)
    for _ in range(devices):
        total = field.add(total, presence_words(field, np.array([7])))
    assert field.signed(total).tolist() == [devices]


def test_each_device_reads_the_number_of_holders_from_the_sum_that_it_computes():
    counts = {"a": [9, 1, 1, 0], "b": [1, 0, 5, 0], "c": [2, 0, 0, 0], "d": [1, 0, 7, 3]}
    field = presence_field(5)
    agreed = terms(5, stage="presence", length=4, field=field)
    vectors = {name: np.sign(row).astype(float) for name, row in zip(NAMES, counts.values(), strict=False)}
    vectors[NAMES[4]] = np.ones(4)
    fleet = Fleet(agreed, vectors, {NAMES[4]: SumStep.MASKED})
    evidence = fleet.run().evidence
    for name in NAMES[:4]:
        total = fleet.instances[name].checked_sum(evidence)
        assert field.signed(total).tolist() == [4, 1, 3, 1]
    words = presence_words(field, np.array(counts["a"]))
    assert np.array_equal(words, field.encode(vectors[NAMES[0]]))
