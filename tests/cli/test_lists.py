"""Tests that lists of choices are printed as a table or as JSON, and that an unknown name gets the nearest name."""

import json
import time

import pytest
import torch

from protofleet import methods
from protofleet.cli.main import main
from protofleet.federation.brokers.ports import free_port
from protofleet.methods.contract.catalog import names
from protofleet.methods.nets import catalog as nets
from protofleet.runtime.command.listing import Listing
from tests.support.small_experiment import TWO


def test_the_command_methods_with_json_prints_only_json(capsys):
    assert main(["methods", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    found = {one["name"]: one for one in said["methods"]}
    assert sorted(found) == names() and said["broken"] == {}
    assert found["fedproto"]["mixed_networks"] and not found["fedavg"]["mixed_networks"]
    assert main(["methods", "fedprox", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["mu"]["default"] == 0.01
    assert main(["methods", "--cost", "--json"]) == 0
    costs = {one["setting"]: one["rows"] for one in json.loads(capsys.readouterr().out)["settings"]}
    (fedsa,) = (rows[1] for title, rows in costs.items() if "FedSA, CIFAR-10:" in title)
    assert fedsa["method"] == "fedsa" and fedsa["up"]["prototypes"] == 5120


def test_the_command_networks_lists_parameters_bytes_and_smallest_images(capsys):
    assert main(["networks", "--json"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["networks"]}
    assert sorted(found) == nets.names()
    model = nets.build("cnn_bn", classes=10)
    assert found["cnn_bn"]["parameters"] == sum(p.numel() for p in model.parameters())
    assert found["cnn_bn"]["bytes"] == sum(t.nbytes for t in model.state_dict().values())
    assert found["mlp"]["ranks"] == [1, 2, 3] and found["cnn1d"]["ranks"] == [2]
    for one in found.values():
        if 3 not in one["ranks"]:
            continue
        side = one["smallest"]
        with torch.device("meta"):
            nets.build(one["name"], classes=10, image=(3, side, side))
            with pytest.raises(ValueError, match="takes images from"):
                nets.build(one["name"], classes=10, image=(3, side - 1, side - 1))
    assert main(["networks"]) == 0
    out = capsys.readouterr().out
    assert "cnn_bn               391,466      1.6 MB  images from 8 x 8" in out
    assert "vectors, series from 2 steps, images from 2 x 2" in out and "series from 8 steps" in out


def test_the_command_data_with_json_prints_the_data_of_each_device(tmp_path, capsys):
    path = tmp_path / "two.toml"
    path.write_text(TWO)
    assert main(["data", str(path), "--json"]) == 0
    one, other = json.loads(capsys.readouterr().out)["data"]
    assert (one["name"], one["domain"], other["name"]) == ("optdigits-1", "optdigits", "optdigits-2")
    assert one["train"] + one["validation"] == 20 and len(one["per_class"]) == 10


def test_devices_with_equal_data_share_one_line_that_fits_the_terminal(capsys, monkeypatch):
    alike = [(f"pi-{i}", "optdigits train 54, classes: 0, 1, 2, 3, 4") for i in range(1, 101)]
    Listing().folded(
        [*alike, ("odd", "mnist train 7, classes: 0, 1"), ("even", "mnist train 7, classes: 0, 1")]
    )
    assert capsys.readouterr().out.splitlines() == [
        "pi-1 to pi-100 (100) optdigits train 54, classes: 0, 1, 2, 3, 4",
        "odd, even        mnist train 7, classes: 0, 1",
    ]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "44")
    Listing().folded(alike)
    assert capsys.readouterr().out.splitlines() == [
        "pi-1 to pi-100 (100) optdigits train 54,",
        "    classes: 0, 1, 2, 3, 4",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["deploy", "statsu"], "STEP is 'statsu'; did you mean status? there are known-hosts, plan"),
        (["enrol", "lst"], "STEP is 'lst'; did you mean list? there are root"),
        (
            ["run", "FILE", "--fersh"],
            "--fersh is no option; did you mean --fresh? there are --at-once, --cancel",
        ),
        (["deploy", "status", "--flet=x"], "--flet is no option; did you mean --fleet? there are --fleet"),
        (["networks", "cnn_bn"], "cnn_bn is one argument too many (see protofleet networks --help)"),
        (["run", "FILE", "--set", "metod.name=x"], "metod is not a setting; did you mean method?"),
        (["run", "FILE", "--set", "data.domain=optdigit"], "did you mean optdigits? there are mnist"),
        (["methods", "fedlas"], "no method 'fedlas'; did you mean fedlsa? there are adcol"),
        (
            ["run", "FILE", "--resum"],
            "--resum is no option; did you mean --resume? there are --at-once, --cancel",
        ),
        (
            ["run", "FILE", "--seeds", "a"],
            "it is 'a', it must be a whole number; name the file before --seeds",
        ),
        (["data", "--fetch", "basic_motion"], "did you mean basic-motions? there are digits, mnist"),
        (["rnu"], "COMMAND is 'rnu'; did you mean run? there are run, sweep"),
        (["run", "FILE", "--set", "method.name=fedavgg"], "did you mean fedavg? there are adcol"),
        (["run", "FILE", "--set", "network.name=cnn_bm"], "did you mean cnn_bn? there are cnn1d, cnn23"),
        (["run", "FILE", "--set", "data.source=digit"], "did you mean digits? there are digits"),
        (["run", "FILE", "--set", "method.lrr=1"], "did you mean lr? there are "),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_name(tmp_path, capsys, words, said):
    path = tmp_path / "two.toml"
    path.write_text(TWO)
    assert main([str(path) if word == "FILE" else word for word in words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "fault"),
    [("x = 1 +", ":1: invalid syntax"), ("import os\n\nnot_there()", ":3: NameError: name 'not_there'")],
)
def test_a_broken_method_file_is_named_with_its_line_and_the_others_are_listed(
    tmp_path, capsys, monkeypatch, text, fault
):
    path = tmp_path / "broken_one.py"
    path.write_text(text)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    assert main(["methods"]) == 1
    out, err = capsys.readouterr()
    assert "fedavg" in out and "singleset" in out and "Traceback" not in err
    assert f"protofleet: the method broken_one cannot be loaded: {path}{fault}" in err
    assert main(["methods", "broken_one"]) == 2
    capsys.readouterr()
    assert main(["methods", "--json"]) == 1
    out, err = capsys.readouterr()
    assert list(json.loads(out)["broken"]) == ["broken_one"] and len(err.splitlines()) == 1
    assert main(["methods", "--quiet"]) == 1
    assert capsys.readouterr() == ("", err)


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """Return a folder in which each command has something to list."""
    folder = tmp_path_factory.mktemp("listed")
    (folder / "two.toml").write_text(TWO)
    banned = folder / "run" / "coordinator" / "banned"
    banned.mkdir(parents=True)
    (banned / "loud").write_text(f"{int(time.time())} 1\n")
    (folder / "device.toml").write_text(f'name = "one"\nmetrics_port = {free_port()}\n')
    root = str(folder / "root")
    assert main(["enrol", "root", root]) == 0
    assert main(["enrol", "coordinator", "--root", root, "--folder", f"{root}/c"]) == 0
    return folder


LISTS = {
    "methods": (["methods"], 0),
    "one method": (["methods", "fedavg"], 0),
    "costs": (["methods", "--cost"], 0),
    "networks": (["networks"], 0),
    "settings": (["settings"], 0),
    "one table": (["settings", "policy"], 0),
    "data": (["data", "two.toml"], 0),
    "bans": (["unban", "--folder", "run"], 0),
    "enrolled": (["enrol", "list", "--root", "root"], 0),
    "health": (["health", "device.toml"], 1),
}


@pytest.mark.parametrize(("words", "code"), LISTS.values(), ids=LISTS)
def test_each_list_is_one_json_object_and_prints_only_errors_with_quiet(
    listed, capsys, monkeypatch, words, code
):
    monkeypatch.chdir(listed)
    assert main([*words, "--json"]) == code
    out, err = capsys.readouterr()
    assert isinstance(json.loads(out), dict) and err == ""
    assert main([*words, "--quiet"]) == code
    out, err = capsys.readouterr()
    assert out == "" and bool(err) == bool(code)
    assert all(line.startswith("protofleet: FAIL ") for line in err.splitlines())
    assert main([*words, "--quiet", "--json"]) == 2
    assert "not allowed with argument" in capsys.readouterr().err


def test_enrolled_parties_and_bans_are_listed_as_json(listed, capsys, monkeypatch):
    monkeypatch.chdir(listed)
    assert main(["enrol", "list", "--root", "root", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["enrolled"]
    assert [(entry["name"], entry["part"], entry["state"]) for entry in entries] == [
        ("coordinator", "coordinator", "valid"),
        ("coordinator.standby", "standby", "valid"),
    ]
    assert main(["unban", "--folder", "run", "--json"]) == 0
    ban = json.loads(capsys.readouterr().out)["banned"]["loud"]
    assert ban["times"] == 1 and 3000 < ban["until"] - time.time() < 3700


def test_codecs_are_listed_with_the_bits_of_a_number(capsys):
    assert main(["codecs", "--json"]) == 0
    found = {one["name"]: one["bits"] for one in json.loads(capsys.readouterr().out)["codecs"]}
    assert list(found) == ["lossless", "safe", "medium", "small", "smallest"]
    up = [bits["weights"]["up"] for bits in found.values()]
    assert up == sorted(up, reverse=True) and up[-1] < 0.7
    assert 4 < found["small"]["prototypes"]["down"] < 4.1
    assert main(["codecs"]) == 0
    assert "one weight of 10 up, of 4 down" in capsys.readouterr().out
