"""docs/metrics.md and the code name the same metrics, with the same types and labels."""

import re
import time
from itertools import chain
from pathlib import Path

import pytest

from coordinator.journal import Journal
from coordinator.metrics import Metrics
from deploy.enrol.fleet import enrol_fleet
from edge_client.board import Board
from edge_client.metrics import DeviceMetrics
from protocol.broker import BrokerAddress
from protocol.place import Place
from tests.fleet.boards import jetson_files
from tests.worlds import simulation

ROW = re.compile(r"^\| `(protofleet_\w+)` \| (\w+) \| ([\w, ]*?) ?\|", re.MULTILINE)
TEXT = (Path(__file__).parent.parent / "docs" / "metrics.md").read_text()
DOCUMENTED = {
    name: (kind, tuple(filter(None, labels.strip().split(", ")))) for name, kind, labels in ROW.findall(TEXT)
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What a coordinator and a device show after a run, with everything there is to be read."""
    folder = tmp_path_factory.mktemp("metrics")
    run = simulation(folder / "run", "fedavg")
    board = Board(jetson_files(folder / "board"))
    metrics, device = Metrics(run.service), DeviceMetrics(next(iter(run.agents.values())), board)
    run.service.watchers.append(Journal(run.service, [metrics], 1000))
    run.run()
    tls = enrol_fleet(folder / "enrolled", "metrics", ["d"]).tls("d")
    metrics.registry.register(Place("1.0", "coordinator", folder, BrokerAddress(tls=tls)))
    return {"coordinator": [*metrics.registry.collect()], "device": [*device.registry.collect()]}


def test_every_metric_is_in_the_document_with_its_type_and_labels(shown):
    found = {}
    for family in chain(*shown.values()):
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {key for sample in family.samples for key in sample.labels if key != "le"}
        kind, known = found.get(name, (family.type, set()))
        found[name] = (kind, known | labels)
    for name, (kind, labels) in found.items():
        assert name in DOCUMENTED, f"{name} is not in docs/metrics.md"
        assert DOCUMENTED[name][0] == kind, f"{name} is a {kind}"
        if labels:
            assert set(DOCUMENTED[name][1]) == labels, f"{name} has the labels {sorted(labels)}"
    assert DOCUMENTED.keys() - found.keys() == set(), "documented, but nobody shows it"


def test_no_process_shows_a_name_twice(shown):
    for who, families in shown.items():
        names = [family.name for family in families]
        assert {name for name in names if names.count(name) > 1} == set(), who


def test_the_certificates_end_is_shown_as_it_is(shown):
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


def test_who_holds_which_class_is_shown_where_the_method_is_told(tmp_path):
    run = simulation(tmp_path, "fedhp")
    metrics = Metrics(run.service)
    run.service.watchers.append(Journal(run.service, [metrics], 1000))
    run.run()
    held = {}
    for agent in run.agents.values():
        for number in agent.data.train.y.unique().tolist():
            held[str(number),] = held.get((str(number),), 0) + 1
    assert {k: v for k, v in series(metrics, "protofleet_class_holders").items() if v} == held


def test_an_answer_to_an_earlier_round_is_as_many_rounds_behind(tmp_path):
    run = simulation(tmp_path, "fedavg").run()
    metrics = Metrics(run.service)
    late = {"device": "d", "phase": "train", "verdict": "late", "reason": ""}
    for behind in (0, 2):
        metrics.moment("dropped", {**late, "round": run.service.machine.round - behind})
    metrics.moment("answered", {"device": "d", "round": 1, "phase": "train"})
    assert series(metrics, "protofleet_update_staleness_rounds_sum") == {(): 2.0}
    assert series(metrics, "protofleet_update_staleness_rounds_count") == {(): 3.0}
