"""Masked sums at a broker with small packets: the bytes of a task for one device must fit into a packet."""

from dataclasses import replace

import pytest

from protofleet.protocol.transport.base import Connected, packet_bytes
from tests.support.summed_simulation import POLICY, summed

LEAST = 5120  # Bytes of the smallest packet limit, in which a task has room for 1024 bytes for one device.
MOST = 13  # Devices: the shares of 12 others have 12 * 82 = 984 bytes.


def at_small_packets(folder, monkeypatch, devices):
    """Return a run at a broker with the smallest packets, and the reasons for which it rejects its connection."""
    monkeypatch.setattr("protofleet.lab.simulation.network.MAX_PACKET", LEAST)
    run = summed(folder, devices=devices, policy=replace(POLICY, rounds=1, gather=devices))
    rejected = []
    run.broker.clients["coordinator"].reject_connection = rejected.append
    return run, rejected


def test_the_shares_of_the_largest_possible_cohort_are_sent(tmp_path, monkeypatch):
    run, rejected = at_small_packets(tmp_path, monkeypatch, MOST)
    sizes, publish = [], run.broker.publish

    def measured(topic, frame, retain):
        sizes.append(packet_bytes(topic, len(frame)))
        publish(topic, frame, retain)

    monkeypatch.setattr(run.broker, "publish", measured)
    run.run(limit=600)
    assert run.service.finished and not run.service.run.diverged and not rejected
    assert 984 < max(sizes) <= LEAST


@pytest.mark.parametrize("restart", [False, True])
def test_a_larger_cohort_is_refused_with_the_fix_before_the_training(tmp_path, monkeypatch, restart):
    run, rejected = at_small_packets(tmp_path, monkeypatch, MOST + 1)
    run.run(until=lambda: bool(rejected), limit=60)
    if restart:
        rejected.clear()
        run.kill("coordinator")
        run.boot_coordinator()
        run.broker.clients["coordinator"].reject_connection = rejected.append
        run.run(until=lambda: bool(rejected), limit=60)
    (reason,) = rejected
    words = (
        f"the broker accepts packets of {LEAST} bytes, but a task of a masked sum has 1066 bytes for one device "
        "only; raise the broker's packet limit to 5162 or more, or ask fewer devices in a round (policy.cohort)"
    )
    assert reason.startswith(words) and "\n" not in reason
    assert not any(agent.state.saved.answers for agent in run.agents.values())


def test_the_run_continues_at_a_broker_with_larger_packets(tmp_path, monkeypatch):
    run, rejected = at_small_packets(tmp_path, monkeypatch, MOST + 1)
    run.run(until=lambda: bool(rejected), limit=60)
    run.broker.clients["coordinator"].deliver(Connected(2 * LEAST, 20))
    run.run(limit=600)
    assert run.service.finished and not run.service.run.diverged
    assert len(rejected) == 1 and run.service.run.machine.attempt == 0
