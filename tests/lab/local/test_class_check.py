"""`protofleet data` and `protofleet run` compare the names of classes before any process starts."""

import pytest

from protofleet.cli.main import main
from protofleet.coordinator.config import CoordinatorSettings
from protofleet.protocol.settings.reader import decode, read_toml
from tests.edge_client.data.files import write_class_folders

PETS, OTHER = ("cat", "dog", "owl"), ("cat", "cow", "owl")
COORDINATOR = (
    'name = "run"\nrounds = 1\nclasses = {n}\nfederation = "lab"\n{more}\n[method]\nname = "fedavg"\n'
)
EXPERIMENT = """
name = "pets"
rounds = 1
classes = 3
method = {{ name = "fedavg", epochs = 1, batch = 8, lr = 0.05 }}
network = {{ name = "mlp" }}
compute = "cpu"
data = {{ source = "folder", root = "{root}", size = 8 }}
devices = {{ clients = {{ street = 1, field = 1 }} }}
broker = {{ kind = "embedded" }}
"""
FLEET = """
root = "root"
[device]
data = { source = "folder", root = "/data", classes = ["cat", "dog", "owl"] }
[hosts.board-1]
address = "10.0.0.1"
[hosts.board-2]
address = "10.0.0.2"
"""


def folders(root, names):
    write_class_folders(root, dict.fromkeys(names, 10))


def device(tmp_path, name, names):
    folders(tmp_path / name, names)
    path = tmp_path / f"{name}.toml"
    path.write_text(f'name = "{name}"\n[data]\nsource = "folder"\nroot = "{tmp_path / name}"\nsize = 8\n')
    return str(path)


def coordinator(tmp_path, n=3, more=""):
    path = tmp_path / "coordinator.toml"
    path.write_text(COORDINATOR.format(n=n, more=more))
    return str(path)


def fleet(tmp_path, more=""):
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET + more)
    return str(path)


def experiment(tmp_path, field=PETS):
    folders(tmp_path / "data" / "street", PETS)
    folders(tmp_path / "data" / "field", field)
    path = tmp_path / "pets.toml"
    path.write_text(EXPERIMENT.format(root=tmp_path / "data"))
    return str(path)


def refused(capsys, *arguments):
    """Run a command that must end with exit code 2, and return its one line of errors."""
    assert main(list(arguments)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_devices_with_the_same_class_names_are_listed_with_these_names(tmp_path, capsys):
    files = [device(tmp_path, "a", PETS), device(tmp_path, "b", PETS)]
    assert main(["data", *files, coordinator(tmp_path, more='class_names = ["cat", "dog", "owl"]')]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[0].startswith("a, b ")
    assert all(line.endswith("classes: cat, dog, owl") for line in lines)


def test_the_first_difference_between_two_devices_is_reported_with_both_lists(tmp_path, capsys):
    line = refused(capsys, "data", device(tmp_path, "a", PETS), device(tmp_path, "b", OTHER))
    assert line.startswith(
        "protofleet: class names differ: class 1 is 'dog' in a and 'cow' in b; "
        "a: cat, dog, owl; b: cat, cow, owl"
    )


@pytest.mark.parametrize(
    ("n", "more", "words"),
    [
        (3, 'class_names = ["cat", "cow", "owl"]', "class 1 is 'cow' in coordinator and 'dog' in a"),
        (4, "", "classes is 4, but a has 3 classes: cat, dog, owl"),
    ],
)
def test_the_file_of_a_coordinator_is_compared_with_its_devices(tmp_path, capsys, n, more, words):
    assert words in refused(capsys, "data", coordinator(tmp_path, n, more), device(tmp_path, "a", PETS))


def test_a_fleet_file_is_checked_if_it_states_the_classes_of_its_devices(tmp_path, capsys):
    assert main(["data", fleet(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{name:16} {f'at 10.0.0.{i}':12} classes: cat, dog, owl"
        for i, name in ((1, "board-1"), (2, "board-2"))
    ]
    odd = fleet(tmp_path, '[hosts.board-2.device.data]\nclasses = ["cat", "owl", "dog"]\n')
    assert "class 1 is 'dog' in board-1 and 'owl' in board-2" in refused(capsys, "data", odd)


def test_a_run_is_not_started_if_its_domains_have_different_classes(tmp_path, capsys):
    path = experiment(tmp_path, OTHER)
    words = "class 1 is 'dog' in street and 'cow' in field"
    assert words in refused(capsys, "data", path)
    for more in ([], ["--seeds", "1", "2"]):
        assert words in refused(capsys, "run", path, "--runs", str(tmp_path / "runs"), *more)
    assert not (tmp_path / "runs").exists()


def test_a_run_is_not_started_if_its_data_have_another_number_of_classes(tmp_path, capsys):
    line = refused(
        capsys, "run", experiment(tmp_path), "--set", "classes=5", "--runs", str(tmp_path / "runs")
    )
    assert (
        "classes is 5, but street has 3 classes: cat, dog, owl" in line and not (tmp_path / "runs").exists()
    )


def test_the_error_for_domain_folders_used_as_classes_names_a_fix(tmp_path, capsys):
    path = experiment(tmp_path)
    line = refused(capsys, "run", path, "--set", "devices={count=2}", "--runs", str(tmp_path / "runs"))
    assert "but device-1 has 2 classes: field, street; each of these is a folder of 3 classes: " in line
    assert 'devices.clients = { "field" = 1, "street" = 1 } makes a device of each' in line
    assert 'data.domain = "field" takes one alone' in line
    way_out = 'devices={clients={ "field" = 1, "street" = 1 }}'
    assert main(["data", path, "--set", way_out]) == 0


def test_the_coordinator_of_a_run_gets_the_names_of_the_classes(tmp_path):
    assert main(["run", experiment(tmp_path), "--runs", str(tmp_path / "runs")]) == 0
    written = read_toml(tmp_path / "runs" / "pets" / "coordinator.toml")
    assert decode(CoordinatorSettings, written).class_names == PETS


def test_the_error_names_a_data_folder_that_does_not_exist(tmp_path, capsys):
    path = tmp_path / "gone.toml"
    path.write_text(f'name = "gone"\n[data]\nsource = "folder"\nroot = "{tmp_path / "nowhere"}"\n')
    assert main(["data", str(path)]) == 1
    assert "nowhere" in capsys.readouterr().err
