"""A page of several runs has each series once, names the run in it, and keeps a bounded number of runs."""

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strictly_parsed

from protofleet.coordinator.observe.metrics import Metrics
from protofleet.coordinator.observe.process_metrics import process_registry
from protofleet.coordinator.observe.run_labels import KEPT_SECONDS, RunLabels
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.runtime.host.metrics import HostMetrics
from tests.support.small_federation import simulation


def values(registry, name):
    """Return the values of a metric by the label `run` and the label `how`, if it has one."""
    found = [s for family in registry.collect() for s in family.samples if s.name == name]
    return {" ".join(filter(None, (s.labels.get("run"), s.labels.get("how")))): s.value for s in found}


def of_a_run(round):
    Gauge("protofleet_round", "its round", registry=(made := CollectorRegistry())).set(round)
    return made


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def page(clock):
    return RunLabels(CollectorRegistry(), places=2, clock=clock)


def test_two_runs_have_each_series_once_with_their_names_and_the_process_has_its_series_once(tmp_path):
    sims = {name: simulation(tmp_path / name, "fedavg") for name in ("red", "blue")}
    host = HostMetrics("1.0", "coordinator", tmp_path, BrokerAddress())
    whole = RunLabels(process := process_registry(sims["red"].service.context, host, 0.0), places=2)
    alone = {name: Metrics(one.service.run.view).registry for name, one in sims.items()}
    with whole.showing(alone["red"], "red"), whole.showing(alone["blue"], "blue"):
        text = generate_openmetrics(whole).decode()
        families = list(
            strictly_parsed(text)
        )  # This parser refuses a name, a text or a series that occurs twice.
        said = [line for line in generate_latest(whole).decode().splitlines() if line.startswith("# HELP")]
    assert len(said) == len({*said}) and len({family.name for family in families}) == len(families)
    own = {family.name for family in process.collect()}
    for family in families:
        for sample in family.samples:
            wanted = {None} if family.name in own else {"red", "blue"}
            assert sample.labels.get("run") in wanted, f"{sample.name} {sample.labels}"
    assert "protofleet_coordinator_connected" in own and "protofleet_round" not in own
    one = RunLabels(process)
    with one.showing(alone["red"]):
        named = [line for line in generate_latest(one).decode().splitlines() if 'run="' in line]
    assert [line.partition("{")[0] for line in named] == ["protofleet_run_info"]


def test_a_run_that_has_ended_keeps_its_last_values_for_an_hour(page, clock):
    with page.showing(of_a_run(7), "red"):
        pass
    clock.now = KEPT_SECONDS - 1
    assert values(page, "protofleet_round") == {"red": 7.0}
    clock.now = KEPT_SECONDS
    assert list(page.collect()) == []


def test_one_ended_run_per_slot_is_kept_and_the_oldest_is_removed_first(page):
    for number in range(5):
        with page.showing(of_a_run(number), f"run-{number}"), page.showing(of_a_run(9), "other"):
            assert len(values(page, "protofleet_round")) <= 4
    assert values(page, "protofleet_round") == {"other": 9.0, "run-4": 4.0}


def test_a_run_that_cannot_continue_is_shown_as_failed_until_it_continues(page):
    page.fail("never-begun")
    with page.showing(of_a_run(3), "red"):
        assert values(page, "protofleet_run_over") == {"red failed": 0.0, "never-begun failed": 1.0}
    page.fail("red")
    assert values(page, "protofleet_run_over")["red failed"] == 1.0
    assert values(page, "protofleet_round") == {"red": 3.0}
    with page.showing(of_a_run(3), "red"):
        assert values(page, "protofleet_run_over")["red failed"] == 0.0


def test_a_run_whose_folder_is_missing_hides_no_other_run(page):
    gone = of_a_run(1)

    def raises():
        raise FileNotFoundError("its folder")

    Gauge("protofleet_disk_free_bytes", "its disk", registry=gone).set_function(raises)
    with page.showing(gone, "red"), page.showing(of_a_run(2), "blue"):
        assert values(page, "protofleet_round") == {"blue": 2.0}
    assert values(page, "protofleet_round") == {"blue": 2.0}


def test_a_request_for_some_names_returns_these_series_of_all_runs(page):
    with page.showing(of_a_run(1), "red"), page.showing(of_a_run(2), "blue"):
        found = page.restricted_registry(["protofleet_round"])
        assert values(found, "protofleet_round") == {"red": 1.0, "blue": 2.0}
        assert values(found, "protofleet_run_over") == {}
