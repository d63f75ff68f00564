"""docs/metrics.md equals the generated page, and describes every metric that a run exports to Prometheus."""

import re
import time
from itertools import chain

import pytest

from protofleet.coordinator.observe.metrics import Metrics
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.process_metrics import process_registry
from protofleet.coordinator.observe.run_labels import RunLabels
from protofleet.coordinator.observe.series import QueueSeries
from protofleet.edge_client.gpu.admission import Usage
from protofleet.edge_client.gpu.metrics import UsageCollector
from protofleet.edge_client.host.sensors import Sensors
from protofleet.edge_client.metrics import DeviceMetrics
from protofleet.edge_client.serving.metrics import ModelCollector
from protofleet.edge_client.serving.serving import ModelServing
from protofleet.edge_client.serving.versions import ModelVersions
from protofleet.federation.enrol.local_federation import enrol_federation
from protofleet.protocol.settings.budget import BudgetSettings
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.runtime.host.metrics import HostMetrics
from tests.deploy.fleet.boards import jetson_files
from tests.support.small_federation import simulation
from tools.pages.metrics import PAGE, generate, meaning

ROWS = re.findall(
    r"^\| `(protofleet_\w+)` \| (\w+) \| ([\w, ]*?) ?\| (.+) \|$", PAGE.read_text(), re.MULTILINE
)
DOCUMENTED = {name: (kind, tuple(filter(None, labels.split(", ")))) for name, kind, labels, _ in ROWS}
MEANINGS = {name: words for name, _, _, words in ROWS}


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Return all metrics that a coordinator and a device export after a run, with every source of metrics present."""
    folder = tmp_path_factory.mktemp("metrics")
    budget = BudgetSettings(bytes_per_device=10**9, price_per_gb=2.0)
    run = simulation(folder / "run", "fedavg", budget=budget)
    board = Sensors(jetson_files(folder / "board"))
    metrics, device = (
        Metrics(run.service.run.view),
        DeviceMetrics(next(iter(run.agents.values())).view, board),
    )
    keep_journal(run.service.run, [metrics])
    run.run()
    tls = enrol_federation(folder / "enrolled", "metrics", ["d"]).tls("d")
    device.registry.register(UsageCollector(Usage()))
    serving = ModelServing(ModelVersions(folder / "models"), str, None)
    device.registry.register(ModelCollector(serving, lambda: 0))
    host = HostMetrics("1.0", "coordinator", folder, BrokerAddress(tls=tls))
    page = RunLabels(process := process_registry(run.service.context, host, 0.0))
    QueueSeries(process)
    with page.showing(metrics.registry):
        coordinator = [*page.collect()]
    return {"coordinator": coordinator, "device": [*device.registry.collect()]}


def named(families):
    for family in families:
        yield family.name + ("_total" if family.type == "counter" else ""), family


def test_the_page_of_metrics_equals_the_generated_page():
    """If this fails, write the page again with `python -m tools.pages.metrics`."""
    assert PAGE.read_text() == generate()


def test_every_exported_metric_is_on_the_page_with_type_labels_and_meaning(shown):
    for name, family in named(chain(*shown.values())):
        assert name in DOCUMENTED, (
            f"{name} is not on the page: tools/pages/metrics.py does not know its source"
        )
        kind, labels = DOCUMENTED[name]
        assert (kind, MEANINGS[name]) == (family.type, meaning(family.documentation)), name
        for sample in family.samples:
            assert {*sample.labels} - {"le"} == {*labels}, f"{name} has the labels {sorted(sample.labels)}"


def test_every_metric_on_the_page_is_exported(shown):
    assert DOCUMENTED.keys() - {name for name, _ in named(chain(*shown.values()))} == set()
    assert len(ROWS) == len(DOCUMENTED), "a name is on the page twice"


def test_only_four_gauges_and_three_counters_have_the_label_device():
    """The page states the same numbers."""
    assert [kind for kind, labels in DOCUMENTED.values() if "device" in labels] == [
        "gauge",
        "gauge",
        "counter",
        "gauge",
        "gauge",
        "counter",
        "counter",
    ]


def test_no_process_exports_a_metric_twice(shown):
    for who, families in shown.items():
        names = [family.name for family in families]
        assert {name for name in names if names.count(name) > 1} == set(), who


def test_the_expiry_of_the_certificate_is_exported(shown):
    name = "protofleet_certificate_expiry_timestamp_seconds"
    ends = next(family for family in shown["coordinator"] if family.name == name).samples[0].value
    assert 364 < (ends - time.time()) / 86_400 < 366


def series(metrics, name):
    return {
        tuple(sample.labels.values()): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name
    }


@pytest.mark.slow
def test_the_class_holders_are_exported_if_the_method_counts_them(tmp_path):
    run = simulation(tmp_path, "fedhp")
    metrics = Metrics(run.service.run.view)
    keep_journal(run.service.run, [metrics])
    run.run()
    held = {}
    for agent in run.agents.values():
        for number in agent.tasks.runner.data.train.y.unique().tolist():
            held[str(number),] = held.get((str(number),), 0) + 1
    assert {k: v for k, v in series(metrics, "protofleet_class_holders").items() if v} == held


def test_the_staleness_of_a_late_answer_is_the_number_of_rounds_since_its_task(tmp_path):
    run = simulation(tmp_path, "fedavg").run()
    metrics = Metrics(run.service.run.view)
    late = {"device": "d", "phase": "train", "verdict": "late", "reason": ""}
    for behind in (0, 2):
        metrics.entry("dropped", {**late, "round": run.service.run.machine.round - behind})
    metrics.entry("answered", {"device": "d", "round": 1, "phase": "train"})
    assert series(metrics, "protofleet_update_staleness_rounds_sum") == {(): 2.0}
    assert series(metrics, "protofleet_update_staleness_rounds_count") == {(): 3.0}
