import json
import socket

import pytest
import torch

from protofleet.cli.main import main
from protofleet.coordinator.round.policy import Policy
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.shard import load_shard
from protofleet.lab.leakage.own_folder import observed_by
from protofleet.lab.local.experiment import recorded
from protofleet.lab.report.leakage_file import read_leakage
from protofleet.lab.simulation.federation import Simulation
from protofleet.protocol.settings.reader import encode, write_toml
from protofleet.protocol.wire.arrays import encode as body
from tests.lab.leakage.observations import TRAINED, small

pytestmark = pytest.mark.slow


def write_body(path, arrays):
    path.write_bytes(b"".join(map(bytes, body(arrays))))


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Return a simulated run of FedProto on two devices, with the settings of the devices."""
    experiment = small("fedproto", rounds=2, **TRAINED)
    folder = tmp_path_factory.mktemp("federation")
    shards = {name: load_shard(data) for name, data in experiment.shards.items()}
    Simulation(experiment.plan, shards, Policy(quorum=2, settle_seconds=0.1), folder).run()
    devices = {
        name: DeviceSettings(name, folder=str(folder / name), data=data)
        for name, data in experiment.shards.items()
    }
    (folder / "plan.json").write_bytes(experiment.plan.encode())
    return folder, experiment, devices


@pytest.fixture
def no_network(monkeypatch):
    def refused(*args, **kwargs):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refused)
    monkeypatch.setattr(socket, "create_connection", refused)


def test_a_device_measures_its_own_updates_and_opens_no_socket(federation, no_network, capsys):
    folder, _, devices = federation
    settings = folder / "mfeat.toml"
    settings.write_text(write_toml(encode(devices["mfeat"])))
    command = ["leakage", "mine", str(settings), "--plan", str(folder / "plan.json"), "--attacker", "A3"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "membership by the class row" in said and "mfeat" in said and "optdigits" not in said
    found = read_leakage(folder / "mfeat")
    assert found.source == "device" and found.headline.device == "mfeat"
    page = (folder / "mfeat" / "leakage.html").read_text()
    assert "Nothing was sent" in page and "<td></td>" not in page


def test_a_device_reads_its_stored_update_and_the_state_of_its_client_half(federation):
    folder, experiment, devices = federation
    observed = observed_by(devices["optdigits"], experiment.plan)
    assert observed.devices == ["optdigits"]
    assert {(one.number, one.phase) for one in observed.exchanges} == {(2, "train")}
    assert set(observed.exchanges[0].answer) == {"prototypes", "labels", "counts"}
    half = observed.truths["optdigits"].half
    first = experiment.plan.model().head.weight
    assert half.number == 2 and not torch.equal(half.model.head.weight, first)


def test_a_plan_of_another_run_is_refused_in_one_line(federation, capsys):
    folder, _, devices = federation
    settings, other = folder / "mfeat.toml", folder / "other.json"
    settings.write_text(write_toml(encode(devices["mfeat"])))
    other.write_bytes(small("fedavg", **TRAINED).plan.encode())
    assert main(["leakage", "mine", str(settings), "--plan", str(other)]) == 2
    assert "name the plan of that run with --plan" in capsys.readouterr().err
    assert main(["leakage", "mine", str(settings)]) == 2
    said = capsys.readouterr().err
    assert "the device keeps no model of the run" in said and said.count("\n") == 1


@pytest.fixture
def run(tmp_path):
    """Return the folder of a run that has its experiment, and nothing else."""
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "experiment.toml").write_text(write_toml(recorded(small("fedncm"))))
    return folder


def test_a_replay_of_a_run_writes_a_page_and_a_file(run, capsys):
    assert main(["leakage", str(run), "--replay", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["source"] == "repeated" and shown["page"] == str(run / "leakage.html")
    found = read_leakage(run)
    assert found.headline.attack == "membership by the class row" and found.headline.attacker == "A1"
    page = (run / "leakage.html").read_text()
    assert found.headline.device in page and "0.5 is chance" in page


def test_only_one_device_and_one_kind_are_measured_if_they_are_named(run, tmp_path, capsys):
    page = tmp_path / "page.html"
    command = ["leakage", str(run), "--replay", "--device", "mfeat", "--kinds", "counts", "--page", str(page)]
    assert main(command) == 0
    found = read_leakage(run)
    assert {row.device for row in found.devices} == {"mfeat"} and {row.kind for row in found.devices} == {
        "counts"
    }
    assert page.exists() and not (run / "leakage.html").exists()
    assert main(["leakage", str(run), "--replay", "--device", "mnist"]) == 2
    assert "--device is 'mnist'; there are mfeat, optdigits" in capsys.readouterr().err


def test_a_round_that_the_experiment_does_not_have_is_refused_before_the_replay(run, capsys, monkeypatch):
    monkeypatch.setattr("protofleet.lab.leakage.sources.repeated", pytest.fail)
    assert main(["leakage", str(run), "--replay", "--round", "9"]) == 2
    assert "--round is 9, and small has" in capsys.readouterr().err


def test_a_round_in_the_middle_is_replayed(tmp_path):
    run = tmp_path / "three"
    run.mkdir()
    (run / "experiment.toml").write_text(write_toml(recorded(small("fedproto", rounds=3))))
    assert main(["leakage", str(run), "--replay", "--round", "2"]) == 0
    assert read_leakage(run).rounds == (2,)


def test_a_kind_that_no_update_has_is_refused(run, capsys):
    assert main(["leakage", str(run), "--replay", "--kinds", "features"]) == 2
    assert "--kinds is features, but the answers have only" in capsys.readouterr().err


def test_stored_updates_are_measured_without_ground_truth(federation, tmp_path, capsys):
    folder, experiment, devices = federation
    run = tmp_path / "run"
    place = run / "kept" / "2.train"
    place.mkdir(parents=True)
    (run / "kept" / "plan.json").write_bytes(experiment.plan.encode())
    examples = {}
    for name, settings in devices.items():
        one = observed_by(settings, experiment.plan).exchanges[0]
        write_body(place / f"{name}.answer", one.answer)
        write_body(place / "broadcast.body", one.broadcast)
        examples[name] = one.examples
    (place / "answers.json").write_text(json.dumps({"examples": examples, "counts": {}}))
    assert main(["leakage", str(run), "--attacker", "A3"]) == 0
    assert "no ground truth: not measured" in capsys.readouterr().out
    page = (run / "leakage.html").read_text()
    assert "no ground truth: not measured" in page and "<td></td>" not in page
    assert "smallest class" in page
    (place / "mfeat.answer").write_bytes(b"nonsense")
    assert main(["leakage", str(run)]) == 1
    assert "cannot be read" in capsys.readouterr().err
