"""Next to a folder `data`, each device of an experiment has its folder there, unless the file names another place."""

import json

import pytest

from protofleet.cli.main import main
from protofleet.lab.local.experiment import read_experiment
from protofleet.protocol.settings.reader import SettingsError
from tests.edge_client.data.files import write_class_folders

PLAIN = """
name = "mine"
rounds = 1
method = { name = "fedavg" }
network = { name = "mlp" }
"""
KITCHEN, GARAGE = {"cat": 20, "dog": 10}, {"cat": 2, "dog": 20}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(PLAIN)
    return path


@pytest.fixture
def beside(file):
    write_class_folders(file.parent / "data" / "kitchen", KITCHEN)
    write_class_folders(file.parent / "data" / "back_garage", GARAGE)
    return file


def test_each_folder_in_data_is_a_device_and_its_folders_are_the_classes(beside):
    found = read_experiment(beside, [])
    assert {name: (d.source, d.root, d.domain, d.parts) for name, d in found.shards.items()} == {
        "back-garage": ("folder", str(beside.parent / "data"), "back_garage", 1),
        "kitchen": ("folder", str(beside.parent / "data"), "kitchen", 1),
    }
    assert found.classes == 2


def test_the_command_data_shows_each_folder_as_a_device(beside, capsys):
    assert main(["data", str(beside), "--set", "data.validation=0", "--set", "data.size=8", "--json"]) == 0
    one, other = json.loads(capsys.readouterr().out)["data"]
    assert (one["name"], one["classes"], other["name"]) == ("back-garage", ["cat", "dog"], "kitchen")
    assert other["per_class"] == [16, 8], "a fifth of each is for the test"


def test_folders_divided_into_train_and_test_are_devices(file):
    for half, n in (("train", 9), ("test", 3)):
        write_class_folders(file.parent / "data" / "kitchen" / half, {"cat": n, "dog": n, "owl": n})
    found = read_experiment(file, [])
    assert list(found.shards) == ["kitchen"] and found.classes == 3


def test_class_folders_in_data_are_shared_by_all_devices(file):
    write_class_folders(file.parent / "data", KITCHEN)
    found = read_experiment(file, ["devices.count=3"])
    assert list(found.shards) == ["device-1", "device-2", "device-3"]
    assert {(d.source, d.root, d.domain, d.parts) for d in found.shards.values()} == {
        ("folder", str(file.parent / "data"), "", 3)
    }


@pytest.mark.parametrize(
    "said",
    [["data.source=digits"], ["data.root=/elsewhere", "data.source=folder"], ["domains.mnist.source=mnist"]],
)
def test_an_experiment_that_names_its_data_does_not_use_the_folder_data(beside, said):
    found = read_experiment(beside, said)
    assert str(beside.parent) not in {d.root for d in found.shards.values()}
    assert "kitchen" not in found.shards and found.classes == 10


def test_devices_and_classes_of_the_experiment_file_are_kept(beside):
    beside.write_text(PLAIN + "classes = 7\n[devices]\nclients = { kitchen = 2 }\n[data]\nsize = 16\n")
    found = read_experiment(beside, [])
    assert list(found.shards) == ["kitchen-1", "kitchen-2"] and found.classes == 7
    assert {d.size for d in found.shards.values()} == {16}


def test_a_folder_data_with_other_contents_is_ignored(file):
    write_class_folders(
        file.parent / "data" / "pacs" / "photo", KITCHEN
    )  # one folder deeper: a source's root
    (file.parent / "data" / "notes").mkdir()
    (file.parent / "data" / "notes" / "read.txt").write_text("x")
    assert {d.source for d in read_experiment(file, []).shards.values()} == {"digits"}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("[devices]\ncount = 3\n", "devices.count is 3, but .* folder for each device .back_garage, kitchen"),
        ("[devices]\nclients = { attic = 1 }\n", "'attic', but .*data has only folders for back_garage, kitchen"),
    ],
)  # fmt: skip
def test_devices_without_a_folder_and_folders_without_a_device_are_refused(beside, said, words):
    beside.write_text(PLAIN + said)
    with pytest.raises(SettingsError, match=words):
        read_experiment(beside, [])


def test_a_folder_with_a_name_that_no_device_can_have_is_refused(file, capsys):
    write_class_folders(file.parent / "data" / "living room", KITCHEN)
    assert main(["run", str(file)]) == 2
    err = capsys.readouterr().err
    assert (
        "data/living room: the name of the folder is the name of a device, but 'living room' is no name"
        in err
    )


def test_folders_with_different_classes_are_refused_before_the_run_starts(beside, capsys):
    write_class_folders(beside.parent / "data" / "shed", {"cat": 5, "owl": 5})
    assert main(["run", str(beside), "--runs", str(beside.parent / "runs")]) == 2
    out, err = capsys.readouterr()
    assert "data: 3 devices, after their folders in" in out and "back_garage, kitchen, shed" in out
    assert "class names differ: class 1 is 'dog' in back-garage and 'owl' in shed" in err
    assert not (beside.parent / "runs").exists()
