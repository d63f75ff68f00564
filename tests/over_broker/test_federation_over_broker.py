"""The same agents and service over a real broker give the same bits, and every byte is accounted for."""

import queue
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from protofleet.coordinator.round.events import Stage
from protofleet.federation.brokers.local import LocalBroker
from protofleet.methods.contract.catalog import names
from protofleet.protocol.transport.base import Arrived, StopRequest
from tests.support.federation_over_broker import DEVICES, AtAnswer, Federation, running
from tests.support.few_methods import of_each_shape, with_own_arrays
from tests.support.small_federation import assert_same, simulation


@pytest.mark.parametrize("method", of_each_shape(with_own_arrays(names())))
def test_a_federation_over_mosquitto_ends_with_the_simulators_bits(method, tmp_path, broker, federation):
    with running(tmp_path / "real", broker.address, federation, method) as real:
        assert real.service.finished
        assert_same(
            SimpleNamespace(service=real.service, agents=real.agents),
            simulation(tmp_path / "sim", method).run(),
        )


def test_a_federation_over_the_embedded_broker_ends_with_the_same_bits(tmp_path, embedded, federation):
    with running(tmp_path / "real", embedded.address, federation, "fedavg") as real:
        assert_same(
            SimpleNamespace(service=real.service, agents=real.agents),
            simulation(tmp_path / "sim", "fedavg").run(),
        )


def test_the_meters_count_the_same_bytes_as_the_broker(tmp_path, federation, peer):
    with LocalBroker(tmp_path / "broker", "mosquitto", sys_seconds=1) as own:
        with running(tmp_path / "run", own.address, federation, "fedavg") as run:
            sent = Counter()
            for part in (run.service.run.link, *(agent.link for agent in run.agents.values())):
                sent[part.direction] += part.meter.frames[part.direction]
            wills = 0  # All parties leave in good order, so the broker publishes no will.
            assert counted(own, "publish/bytes/received", sum(sent.values()) + wills, peer)
        coordinator, devices = run.service.run.link.meter, [a.link.meter for a in run.agents.values()]
        assert coordinator.frames["up"] == sum(m.frames["up"] for m in devices)
        for kind in {k for d, k in coordinator.wire if d == "up"}:
            assert coordinator.wire["up", kind] == sum(m.wire["up", kind] for m in devices)
            assert coordinator.payload["up", kind] == sum(m.payload["up", kind] for m in devices)
        assert {m.payload["down", "weights"] for m in devices} == {coordinator.payload["down", "weights"]}


def counted(broker, name, expected, peer):
    """Wait until the broker's own counter has this value; it publishes its counters every second."""
    watcher = peer("watcher", broker.address, subscriptions=[f"$SYS/broker/{name}"])
    seen = []
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            item = watcher.inbox.get(timeout=2)
        except queue.Empty:
            continue
        if isinstance(item, Arrived):
            seen.append(int(item.frame))
            if seen[-1] == expected:
                return True
    raise AssertionError(f"the broker counted {seen}, the meters {expected}")


def test_a_killed_coordinator_continues_over_the_broker_with_the_same_bits(tmp_path, broker, federation):
    made = Federation(tmp_path / "real", broker.address, federation, "fedavg")
    service, inbox = made.coordinator()
    killed = AtAnswer(2, lambda: inbox.put(StopRequest("killed")))  # It stops at once.
    service.run.observers.append(killed)
    made.start(service, inbox)
    for i, name in enumerate(DEVICES):
        made.start(*made.device(name, i))
    made.threads[0].join(30)
    assert killed.done.is_set() and service.run.machine.stage is not Stage.FINISHED
    service.link.transport.kill()
    service.run.spool.close()
    made.start(*made.coordinator())
    for thread in made.threads:
        thread.join(60)
        assert not thread.is_alive()
    made.close()
    assert_same(
        SimpleNamespace(service=made.service, agents=made.agents),
        simulation(tmp_path / "sim", "fedavg").run(),
    )
