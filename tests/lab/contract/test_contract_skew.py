"""Tests of every method on uneven fleets through the wire: no run may stop, and all values must stay finite."""

import pytest

from protofleet.lab.contract import methods as checks
from protofleet.methods.contract.catalog import names
from tests.support.few_methods import few_steps, with_own_arrays

METHODS = names()
# Methods with the same kinds of arrays send the same kinds of numbers.
ONE_OF_ALIKE = with_own_arrays(METHODS)
pytestmark = pytest.mark.slow  # Up to six runs of each method.


@pytest.mark.parametrize("method", METHODS)
def test_a_run_works_with_a_class_without_samples_and_devices_with_one_class(method, tmp_path):
    checks.class_that_nobody_holds(few_steps(method), tmp_path)


@pytest.mark.parametrize("method", ONE_OF_ALIKE)
def test_a_run_works_with_one_device(method, tmp_path):
    checks.fleet_of_one(few_steps(method), tmp_path)


@pytest.mark.parametrize("method", ONE_OF_ALIKE)
def test_a_run_works_with_a_device_that_has_two_samples(method, tmp_path):
    checks.two_samples_are_enough(few_steps(method), tmp_path)


@pytest.mark.parametrize("method", ONE_OF_ALIKE)
def test_a_device_that_starts_late_takes_part_in_the_last_phase(method, tmp_path):
    checks.late_device_takes_part(few_steps(method), tmp_path)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_works_if_each_device_takes_part_in_only_some_rounds(method, tmp_path):
    checks.devices_that_sit_out_go_on(few_steps(method), tmp_path)


@pytest.mark.parametrize("method", ONE_OF_ALIKE)
def test_labels_and_counts_out_of_range_are_refused_and_the_run_continues(method, tmp_path):
    checks.wild_numbers_are_refused(few_steps(method), tmp_path)
