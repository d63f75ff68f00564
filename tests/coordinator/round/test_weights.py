"""The weight of a device is at most a fixed multiple of the median of its cohort, for any claim of the device."""

from hypothesis import given
from hypothesis import strategies as st

from protofleet.coordinator.round.policy import Policy
from protofleet.coordinator.round.weights import capped, weight_cap
from protofleet.lab.local.experiment import LocalPolicy

CLAIMS = st.lists(st.integers(0, 1 << 40), max_size=9)


def test_a_claim_of_a_million_examples_counts_as_three_times_the_median():
    assert capped({"a": 10, "b": 12, "c": 11, "liar": 1_000_000}, 3.0) == {
        "a": 10, "b": 12, "c": 11, "liar": 33
    }  # fmt: skip


def test_the_cap_uses_the_lower_median_and_ignores_zeros():
    assert weight_cap([10, 1_000_000], 3.0) == 30
    assert weight_cap([0, 0, 0, 7], 3.0) == 21
    assert weight_cap([0, 0], 3.0) == weight_cap([], 3.0) == weight_cap([1, 1, 99], 0.0) == float("inf")


@given(CLAIMS, st.sampled_from([1.0, 2.5, 3.0]))
def test_weights_within_the_cap_are_not_changed(claims, factor):
    claims = {f"d{i}": claim for i, claim in enumerate(claims)}
    found = capped(claims, factor)
    cap = weight_cap(claims.values(), factor)
    assert found.keys() == claims.keys()
    assert all(found[d] is claims[d] if claims[d] <= cap else found[d] == cap for d in claims)


def test_a_coordinator_caps_weights_by_default_and_a_local_run_does_not():
    assert Policy().weight_cap == 3.0 and LocalPolicy().weight_cap == 0.0
