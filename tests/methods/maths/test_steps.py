"""Tests of the number of local steps, against exact fractions."""

from fractions import Fraction

import pytest

from protofleet.methods.maths.steps import effective_steps, steps_of


def exact(steps, momentum):
    """Return the sum over all gradients of the weight that momentum gives to each one."""
    rho = Fraction(momentum)
    return sum(sum(rho**j for j in range(steps - i)) for i in range(steps))


@pytest.mark.parametrize("momentum", [0.0, 0.1, 0.5, 0.9, 0.999, 1 - 1e-6, 1 - 2**-53])
@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 25])
def test_effective_steps_is_the_sum_of_the_weights_of_all_gradients(steps, momentum):
    assert effective_steps(steps, momentum) == pytest.approx(float(exact(steps, momentum)), rel=1e-13)


def test_effective_steps_without_momentum_is_the_number_of_steps():
    assert [effective_steps(steps, 0.0) for steps in (1, 6, 10**9)] == [1.0, 6.0, 1e9]
    assert effective_steps(1, 0.9) == 1.0


def test_a_last_batch_that_is_not_full_counts_as_a_step():
    assert [steps_of(3, 8, examples) for examples in (0, 1, 8, 9, 24)] == [0, 3, 3, 6, 9]
