"""A coordinator whose disk takes 10 ms for each sync, with a hundred robots.

It is a real process over a real broker.
"""

import pytest

from benchmarks.harness.compare import once
from benchmarks.harness.trees import this_tree
from benchmarks.measures.answers import Answers

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_no_update_is_sent_again_if_each_sync_takes_ten_milliseconds(tmp_path):
    found = once(Answers(100, rounds=3, sync_seconds=0.01), this_tree(tmp_path))
    assert found["answers said again"] == 0
    assert found["syncs an answer"] > 0, "else the disk was not slow"
