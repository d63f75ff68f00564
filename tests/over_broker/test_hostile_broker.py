"""A broker that works against its federation: it reads, drops, alters, misplaces, repeats, delays and forges.

It can only make a run take longer. The result is the honest one to the bit, lies have their counters, and the
broker has read no tensor.
"""

import queue
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from protofleet.federation.enrol.local_federation import enrol_federation
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.transport.base import StopRequest
from protofleet.protocol.wire.reasons import Reason
from tests.support.federation_over_broker import DEVICES, Federation
from tests.support.malicious_broker import Malice, malicious_broker
from tests.support.small_federation import POLICY, assert_same, final_state, once_each, simulation

PACE = 20.0  # The factor by which the parties' clocks run fast, so that repeats come soon.


class HastyInbox(queue.SimpleQueue):
    def get(self, block=True, timeout=None):
        return super().get(block, timeout and timeout / PACE)


def malice_in(run, seed, rate=0.4):
    """Replace the `publish` of a simulated broker by a malicious one."""
    malice = Malice(
        run.broker.publish, lambda seconds, call: run.clock.call_at(run.clock.now + seconds, call), seed, rate
    )
    run.broker.publish = malice.publish
    return malice


def learned(run):
    return [v.numpy() for k, v in final_state(run).items() if k.startswith("server/") and v.numel() > 8]


def assert_lies_were_counted(malice, meters):
    assert set(malice.done) == {deed.__name__ for deed in malice.deeds}
    found = sum((meter.rejected for meter in meters), Counter())
    assert found[Reason.BAD_SIGNATURE] and found[Reason.WRONG_TOPIC], found


def run_to_the_coordinators_end(federation):
    """Run to the end of the coordinator, because the broker can drop the messages that tell devices of it."""
    federation.start(*federation.coordinator())
    for i, name in enumerate(DEVICES):
        federation.start(*federation.device(name, i))
    federation.threads[0].join(90)
    assert not federation.threads[0].is_alive(), "the coordinator did not come to its end"
    for inbox, thread in zip(federation.inboxes.values(), federation.threads[1:], strict=True):
        inbox.put(StopRequest("the test is over"))
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return once_each(lambda method: simulation(tmp_path_factory.mktemp(method), method).run())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("method", ["fedavg", "fedpall", "fedplcc"])
def test_a_run_over_a_hostile_broker_ends_with_the_bits_of_an_honest_broker(tmp_path, honest, method, seed):
    run = simulation(tmp_path, method)
    malice = malice_in(run, seed)
    run.run()
    assert run.service.finished
    assert_same(honest(method), run)
    assert_lies_were_counted(malice, run.meters.values())


@pytest.mark.parametrize("sealed", [True, False])
def test_a_hostile_broker_can_read_only_messages_that_are_not_sealed(tmp_path, sealed):
    run = simulation(tmp_path, "fedavg")
    for link in (run.service.link, *(agent.link for agent in run.agents.values())):
        link.sealed = sealed
    malice = malice_in(run, 0, rate=0.0)
    run.run()
    assert run.service.finished
    assert set(malice.has_read(learned(run))) == {not sealed}
    seen = b"".join(frame for _, frame in malice.seen)
    assert (b"weights" in seen) == (b"accuracy" in seen) == (not sealed), "names and metrics are sealed too"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedpall", "fedplcc"])
def test_a_real_broker_that_was_taken_over_cannot_change_or_read_a_run(
    tmp_path, broker, federation, honest, method
):
    """It uses TLS with the broker's own key, so the parties cannot tell it from the honest one."""
    fleet = enrol_federation(tmp_path / "enrolled", federation, DEVICES)
    with malicious_broker(broker.address, fleet.tls("broker"), seed=3, rate=0.3, pace=PACE) as taken_over:
        made = Federation(tmp_path / "run", broker.address, federation, method)
        made.coordinators_inbox = made.devices_inbox = HastyInbox
        made.policy = replace(POLICY, patience_seconds=3600.0)
        made.clock = lambda: PACE * time.monotonic()
        made.at = lambda name: BrokerAddress("127.0.0.1", taken_over.port, fleet.tls(name))
        try:
            run_to_the_coordinators_end(made)
        finally:
            made.close()
        malice = taken_over.malice
    assert made.service.finished
    assert_same(honest(method), SimpleNamespace(service=made.service, agents=made.agents))
    assert_lies_were_counted(
        malice, [party.link.meter for party in (made.service.run, *made.agents.values())]
    )
    if method == "fedavg":
        assert set(malice.has_read(learned(made))) == {False}
