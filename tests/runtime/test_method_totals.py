"""Tests that bytes are shown under the method that was in use when they were sent."""

from collections import Counter

from protofleet.edge_client.metrics import DeviceMetrics
from protofleet.runtime.metrics_page import MethodTotals
from tests.support.small_federation import simulation


def test_bytes_are_counted_under_the_method_that_was_in_use():
    counted = Counter({("up", "control"): 5})
    totals = MethodTotals(counted, "")
    for method, kind, size in (
        ("fedavg", "weights", 10),
        ("fedproto", "prototypes", 3),
        ("fedavg", "weights", 2),
    ):
        totals.begin(method)
        counted["up", kind] += size
    assert totals.now() == {
        ("", "up", "control"): 5,
        ("fedavg", "up", "weights"): 12,
        ("fedproto", "up", "prototypes"): 3,
    }
    totals.begin("fedavg")
    assert sum(totals.now().values()) == sum(counted.values()), "the same method again changes nothing"


def test_a_device_shows_its_bytes_under_the_method_of_its_plan(tmp_path):
    run = simulation(tmp_path, "fedproto")
    agent = run.agents["device-0"]
    metrics = DeviceMetrics(agent.view)
    agent.observe(metrics)
    run.run()
    shown = Counter()
    for family in metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "protofleet_message_wire_bytes_total":
                labels = sample.labels
                shown[labels["method"], labels["direction"], labels["kind"]] += sample.value
    assert {method for method, *_ in shown} == {"", "fedproto"}
    assert {kind for method, _, kind in shown if not method} == {"control"}, (
        "hello and plan, before it has one"
    )
    by_place = Counter()
    for (_, *place), size in shown.items():
        by_place[tuple(place)] += size
    assert by_place == agent.link.meter.wire
