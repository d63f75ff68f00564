"""The device notices each change of `current`, by any program, and no remote party chooses what it runs."""

import json

import pytest
from prometheus_client import CollectorRegistry

from protofleet.edge_client.serving.metrics import ModelCollector
from protofleet.edge_client.serving.serving import ModelServing
from protofleet.edge_client.serving.versions import ModelVersions, Version
from protofleet.methods.contract.plan import read_plan
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import Disk
from tests.support.small_federation import plan

PLAN = "ab" * 32


class RecordingHook:
    failures = 0

    def __init__(self):
        self.of = []

    def changed(self, version):
        self.of.append(version.name)

    def stop(self):
        self.of.append("stopped")


def write(versions, round, waits=False):
    card = {"plan_sha256": PLAN, "round": round, "tensors": f"{round:064x}", "validation": 0.5}
    fresh = Version(0, versions.folder, PLAN, round, 0.5, card["tensors"], "global")
    versions.write(fresh, lambda folder: (folder / "card.json").write_text(json.dumps(card)), waits=waits)


@pytest.fixture
def versions(tmp_path):
    return ModelVersions(tmp_path / "models", disk=Disk(durable=False))


def begun(versions):
    serving = ModelServing(versions, lambda: PLAN, RecordingHook())
    serving.begin()
    return serving


def test_each_change_of_current_by_any_program_is_counted_and_runs_the_hook(versions):
    serving = begun(versions)
    write(versions, 1)  # as the training does, in any process
    serving.happened("answered", round=2)
    write(versions, 2, waits=True)
    serving.happened("answered", round=2)
    assert serving.hook.of == ["v000001"]
    serving.happened("accepted", round=2, learned=2)
    ModelVersions(versions.folder).rollback()  # as `protofleet model` does
    serving.check()
    serving.check()
    assert serving.hook.of == ["v000001", "v000002", "v000001"] and serving.changes == 3
    serving.stop()
    assert serving.hook.of[-1] == "stopped"


def test_a_starting_device_runs_the_hook_and_repairs_an_interrupted_write(versions):
    write(versions, 1)
    (versions.folder / "current").unlink()
    (versions.folder / "v000002.new").mkdir()
    serving = begun(versions)
    assert serving.hook.of == ["v000001"] and serving.changes == 0
    assert not (versions.folder / "v000002.new").exists()


def test_a_failure_to_move_links_is_counted_and_logged_once(versions, caplog):
    class Broken(Disk):
        def before_step(self, step, what):
            raise PermissionError(1, "Operation not permitted")

    write(versions, 1)
    write(versions, 2, waits=True)
    serving = begun(ModelVersions(versions.folder, disk=Broken()))
    for round in (2, 2):
        serving.happened("accepted", round=round, learned=round)
    assert serving.failures == 2 and caplog.text.count("training goes on") == 1


def test_the_metrics_state_the_round_of_each_link(versions):
    registry, serving = CollectorRegistry(), begun(versions)
    registry.register(ModelCollector(serving, lambda: 4))
    for round in (1, 2):
        write(versions, round)
        serving.check()
    versions.pin(1)
    found = {which: registry.get_sample_value("protofleet_device_model_round", {"which": which})
             for which in ("current", "champion", "pinned")}  # fmt: skip
    assert found == {"current": 1, "champion": 1, "pinned": 1}
    assert registry.get_sample_value("protofleet_device_model_changes_total") == 2
    assert registry.get_sample_value("protofleet_device_model_write_failures_total") == 4


@pytest.mark.parametrize("key", ["models", "on_model"])
def test_a_plan_cannot_set_the_served_model_or_the_hook_of_a_device(key):
    """A remote override cannot set them either: see tests/edge_client/host/test_overrides.py."""
    table = json.loads(plan("fedavg").encode())
    for value in (["reload"], {"on_model": ["reload"]}):
        with pytest.raises(SettingsError, match=f"plan.{key} is not a setting"):
            read_plan(json.dumps(table | {key: value}).encode())
