"""What collection does for the time of the suite: tests with long limits come first, and collections skip tests."""

import gc

from tests.conftest import own_limit


def test_tests_with_long_limits_come_first(request):
    limits = [own_limit(item) for item in request.session.items]
    assert limits == sorted(limits, reverse=True)


def test_a_garbage_collection_looks_at_no_collected_test(request):
    assert gc.get_freeze_count() > len(request.session.items)
    assert not any(found is request.node for found in gc.get_objects())
