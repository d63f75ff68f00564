import numpy as np
import pytest

from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.secagg.field import Field


@pytest.mark.parametrize("bits", [8, 16, 24, 32])
@pytest.mark.parametrize("devices", [1, 3, 20])
def test_the_largest_sum_that_fits_is_exact_and_one_bit_more_is_refused(bits, devices):
    steps = (2**bits - 1) // (2 * devices)  # the most steps for which 2 * devices * steps + 1 words are there
    field = Field(devices, float(steps), 0, bits)
    for sign in (-1, 1):
        words = field.encode(np.full(1, sign * float(steps)))
        total = words
        for _ in range(devices - 1):
            total = field.add(total, words)
        assert field.decode(total).tolist() == [sign * devices * steps]
    with pytest.raises(ValueError, match=f"needs {bits + 1} bits, but bits is {bits}"):
        Field(devices, float(steps + 1), 0, bits)


def test_a_sum_of_words_is_the_plain_sum_of_rounded_numbers():
    field, dice = Field(20, 30.0, 10, 24), np.random.default_rng(1)
    numbers = dice.uniform(-30, 30, (20, 500))
    total = np.zeros(500, np.uint32)
    for row in numbers:
        total = field.add(total, field.encode(row))
    plain = np.array([sum(round(x * 1024) for x in column) for column in numbers.T.tolist()]) / 1024
    assert np.array_equal(field.decode(total), plain)
    assert np.array_equal(field.subtract(total, total), np.zeros(500))


@pytest.mark.parametrize("number", [30.0001, -31.0, np.inf, -np.inf, np.nan])
def test_a_number_outside_of_the_limit_is_refused_and_never_clipped(number):
    with pytest.raises(SecaggError, match="1 of 3 numbers are outside of -30 to 30; number 1 is") as error:
        Field(3, 30.0, 10, 24).encode(np.array([1.0, number, 2.0]))
    assert error.value.why is SecaggFault.OUT_OF_RANGE


def test_positive_and_negative_halves_are_rounded_to_even():
    assert Field(3, 30.0, 0, 8).rounded(np.array([0.5, 1.5, 2.5, -0.5, -1.5])).tolist() == [0, 2, 2, 0, -2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bits": 33}, "bits is 33, it must be between 8 and 32"),
        ({"bits": 7}, "bits is 7"),
        ({"fraction": 31}, "fraction is 31, it must be between 0 and 30"),
        ({"devices": 0}, "devices is 0, it must be between 1 and 512"),
        ({"limit": 0.0}, "limit is 0"),
        ({"limit": float("nan")}, "limit is nan"),
        ({"limit": float("inf")}, "limit is inf"),
    ],
)
def test_an_invalid_field_is_refused_with_the_value_and_the_limit(change, words):
    with pytest.raises(ValueError, match=words):
        Field(**{"devices": 3, "limit": 1.0, "fraction": 4, "bits": 24, **change})
