"""Tests of the collection: its order, its imports, and the garbage collections after it."""

import gc

from tests.conftest import beginning_at, own_limit


def test_tests_with_long_limits_come_first(request):
    limits = [own_limit(item) for item in request.session.items]
    assert limits == sorted(limits, reverse=True)


def test_each_process_imports_all_test_modules_from_a_different_start():
    names = ["a", "b", "c", "d", "e"]
    orders = [beginning_at(part, 3, names) for part in range(3)]
    assert [order[0] for order in orders] == ["a", "b", "d"]
    assert all(sorted(order) == names for order in orders)


def test_the_garbage_collector_ignores_collected_tests(request):
    assert gc.get_freeze_count() > len(request.session.items)
    assert not any(found is request.node for found in gc.get_objects())
