"""An update of a paused run waits until the run continues, and delays nothing else."""

from __future__ import annotations

import pytest

from protofleet.edge_client.conversation.answer_delivery import RESEND_SECONDS
from protofleet.edge_client.conversation.hello_timer import SPREAD_SECONDS
from tests.support.two_runs import MOMENTS, SOON, TwoRuns


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda one: one.__name__)
def test_an_update_of_a_paused_run_is_sent_after_the_run_continues(tmp_path, moment):
    two = TwoRuns(tmp_path)
    two.go_on("red", "blue")
    moment(two)
    two.simulation.close_run("blue")
    two.lost = {}
    two.until(lambda: not two.two.view.awaits_receipt, SOON)
    sent = two.updates
    two.go_on("red", limit=SOON)
    two.simulation.run(until=lambda: two.updates > sent, limit=RESEND_SECONDS + 1.0)
    assert two.updates == sent, "no coordinator would receive the update"
    two.runs["blue"] = two.simulation.open_run("blue")
    two.go_on("red", "blue", limit=SPREAD_SECONDS + 2 * SOON)


def test_a_device_can_be_drained_while_an_update_waits_for_a_paused_run(tmp_path):
    two = TwoRuns(tmp_path)
    two.go_on("blue")
    two.has_sent()
    two.two.drain()
    assert not two.two.places.drained
    two.simulation.close_run("blue")
    two.until(lambda: two.two.finished, SOON)


def test_a_device_of_one_run_does_not_wait_for_a_receipt_of_a_paused_run(tmp_path):
    two = TwoRuns(tmp_path, ("blue",), runs=1)
    two.go_on("blue")
    two.has_sent()
    assert two.two.view.awaits_receipt
    two.simulation.close_run("blue")
    two.lost = {}
    two.until(lambda: not two.two.view.awaits_receipt, SOON)
    two.runs["blue"] = two.simulation.open_run("blue")
    two.go_on("blue", limit=SPREAD_SECONDS + 2 * SOON)
