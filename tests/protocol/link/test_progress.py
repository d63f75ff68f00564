"""Tests of the progress of a long transfer, which is logged every few seconds."""

import pytest

from protofleet.lab.simulation.network import NetworkConditions
from protofleet.protocol.link.progress import REPORT_SECONDS, ProgressReports
from tests.protocol.ends import Ends, weights

MB = 1_000_000


def test_a_report_contains_the_rate_since_the_first_block_and_the_time_left():
    reports = ProgressReports(10 * MB, now=95.0)
    assert reports.report(2 * MB, 100.0) is None
    assert reports.report(3 * MB, 95.0 + REPORT_SECONDS - 0.1) is None, "too early"
    found = reports.report(4 * MB, 100.0 + REPORT_SECONDS)
    assert (found.bytes, found.size) == (4 * MB, 10 * MB)
    assert found.bytes_per_second == pytest.approx(2 * MB / REPORT_SECONDS)
    assert found.seconds_left == pytest.approx(6 * MB / (2 * MB / REPORT_SECONDS))
    assert reports.report(5 * MB, 101.0 + REPORT_SECONDS) is None, "not with every block"
    assert reports.report(8 * MB, 100.0 + 2 * REPORT_SECONDS).seconds_left == pytest.approx(20 / 3)


def test_the_first_block_alone_gives_no_report():
    assert ProgressReports(10 * MB, now=0.0).report(MB, 100.0) is None


@pytest.mark.parametrize(("delay", "reported"), [(0.0, False), (2.0, True)])
def test_only_a_slow_transfer_of_an_update_is_reported(tmp_path, delay, reported):
    ends = Ends(tmp_path, "a", NetworkConditions(delay=delay))
    found = []
    ends.coordinator.answers.on_progress = lambda device, progress: found.append((device, progress))
    ends.update("a", weights(5 * MB))
    ends.run(120.0)
    assert ends.heard["coordinator"], "it came"
    assert bool(found) is reported
    for device, progress in found:
        assert device == "a" and 0 < progress.bytes < progress.size and progress.seconds_left > 0
