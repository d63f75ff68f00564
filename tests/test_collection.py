"""Tests with long limits come first, and the garbage collector skips all collected tests."""

import gc

from tests.conftest import own_limit


def test_tests_with_long_limits_come_first(request):
    limits = [own_limit(item) for item in request.session.items]
    assert limits == sorted(limits, reverse=True)


def test_a_garbage_collection_looks_at_no_collected_test(request):
    assert gc.get_freeze_count() > len(request.session.items)
    assert not any(found is request.node for found in gc.get_objects())
