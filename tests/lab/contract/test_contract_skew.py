"""Tests of every method on uneven fleets through the wire: no run may stop, and all values must stay finite."""

import pytest

from protofleet.lab.contract import methods as checks
from protofleet.methods.contract.catalog import names
from tests.support.few_methods import few_steps, with_own_arrays

METHODS = names()
pytestmark = pytest.mark.slow  # Six runs of each of thirty methods.


@pytest.mark.parametrize("method", METHODS)
def test_a_class_that_nobody_holds_and_devices_with_one_class(method, tmp_path):
    checks.class_that_nobody_holds(few_steps(method), tmp_path)


@pytest.mark.parametrize("method", METHODS)
def test_a_fleet_of_one(method, tmp_path):
    checks.fleet_of_one(few_steps(method), tmp_path)


@pytest.mark.parametrize("method", METHODS)
def test_two_samples_are_enough(method, tmp_path):
    checks.two_samples_are_enough(few_steps(method), tmp_path)


@pytest.mark.parametrize("method", METHODS)
def test_a_device_that_comes_late_takes_part_from_then_on(method, tmp_path):
    checks.late_device_takes_part(few_steps(method), tmp_path)


@pytest.mark.parametrize("method", METHODS)
def test_devices_that_sit_rounds_out_keep_what_they_know(method, tmp_path):
    checks.devices_that_sit_out_go_on(few_steps(method), tmp_path)


# Methods with the same kinds of arrays send the same kinds of numbers.
@pytest.mark.parametrize("method", with_own_arrays(METHODS))
def test_whole_numbers_out_of_range_are_refused_and_the_others_go_on(method, tmp_path):
    checks.wild_numbers_are_refused(few_steps(method), tmp_path)
