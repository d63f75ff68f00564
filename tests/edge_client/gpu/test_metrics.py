"""The metrics describe how devices share a GPU."""

from prometheus_client import CollectorRegistry

from protofleet.edge_client.gpu.admission import Usage
from protofleet.edge_client.gpu.metrics import UsageCollector


def test_the_metrics_state_peak_memory_wait_time_and_out_of_memory_count():
    registry, usage = CollectorRegistry(), Usage()
    registry.register(UsageCollector(usage))
    usage.peak_bytes, usage.wait_seconds, usage.out_of_memory = 5, 2.5, 1
    names = ("peak_bytes", "wait_seconds_total", "out_of_memory_total")
    assert [registry.get_sample_value(f"protofleet_device_gpu_{name}") for name in names] == [5, 2.5, 1]
