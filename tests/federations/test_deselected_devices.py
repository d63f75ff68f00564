"""A device that one of its two runs no longer selects continues with the other run."""

from __future__ import annotations

import pytest

from protofleet.edge_client.conversation.hello_timer import SPREAD_SECONDS
from tests.support.two_runs import DEVICES, MOMENTS, SOON, TwoRuns


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda one: one.__name__)
def test_a_device_that_loses_the_label_of_one_run_continues_with_its_other_run(tmp_path, moment):
    two = TwoRuns(tmp_path)
    two.go_on("red", "blue")
    moment(two)
    two.assign("device-0")
    two.lost = {}
    blue = two.runs["blue"].machine
    two.until(lambda: blue.roster == {"device-0"} and not two.two.view.awaits_receipt, SOON)
    two.go_on("red", limit=SOON)
    two.assign(*DEVICES)
    two.go_on("red", "blue", limit=SPREAD_SECONDS + 2 * SOON)
    assert not two.service.context.bans.ignored
