"""The experiment files load the papers' Digits, here from small files in the published formats."""

from pathlib import Path

import numpy as np
import pytest

from protofleet.edge_client.data.shard import load_shard
from protofleet.lab.local.experiment import read_experiment
from tests.edge_client.data.files import write_class_folders, write_mnist, write_svhn, write_usps

FOLDER = Path(__file__).parents[3] / "experiments"
SIZES = {"mnist": (400, 60), "usps": (800, 40), "svhn": (600, 80)}  # numbers of samples for training and test
PICTURES = {"synth": "test", "mnistm": "test", "syn": "val"}  # 200 for training and 20 in this half


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Return a function that loads the shards of an experiment for a home folder that contains all of Digits."""
    home = tmp_path_factory.mktemp("home")
    cache = home / ".cache" / "protofleet"
    write_mnist(cache / "mnist", *SIZES["mnist"])
    for source in ("usps", "svhn"):
        (cache / source).mkdir()
    dice = np.random.default_rng(0)
    for name, n in zip(("usps.bz2", "usps.t.bz2"), SIZES["usps"], strict=True):
        write_usps(cache / "usps" / name, dice.uniform(-1, 1, (n, 256)), np.arange(n) % 10)
    for name, n in zip(("train", "test"), SIZES["svhn"], strict=True):
        images = dice.integers(0, 256, (n, 32, 32, 3), np.uint8)
        write_svhn(cache / "svhn" / f"{name}_32x32.mat", images, np.arange(n) % 10)
    for domain, half in PICTURES.items():
        for where, n in (("train", 20), (half, 2)):
            write_class_folders(cache / "digits-5" / domain / where, {str(digit): n for digit in range(10)})

    def loaded(file):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOME", str(home))
            patch.delenv("PROTOFLEET_DATA", raising=False)
            shards = read_experiment(FOLDER / file, ["data.size=16"]).shards
            return {name: load_shard(data) for name, data in shards.items()}

    return loaded


def sizes(shards):
    return {name: (len(s.train.y), len(s.validation.y), len(s.test.y)) for name, s in shards.items()}


@pytest.mark.slow
def test_the_devices_of_fedlsa_have_a_hundredth_of_a_domain_and_the_published_test_set(loaded):
    assert sizes(loaded("fedlsa/table2-digits-fedlsa.toml")) == {
        "mnist": (4, 0, 60),
        **{f"usps-{i}": (8, 0, 40) for i in (1, 2, 3, 4)},
        **{f"svhn-{i}": (6, 0, 80) for i in (1, 2)},
        **{f"syn-{i}": (2, 0, 20) for i in (1, 2, 3)},
    }


def test_the_devices_of_fedplcc_have_300_balanced_samples_and_the_published_test_set(loaded):
    found = loaded("fedplcc/table2-digit5-fedplcc.toml")
    assert sizes(found) == {
        "mnist": (300, 0, 60), "usps": (300, 0, 40), "svhn": (300, 0, 80),
        "synth": (200, 0, 20), "mnistm": (200, 0, 20),
    }  # fmt: skip
    assert found["usps"].counts().tolist() == [30] * 10


def test_the_devices_of_fedpall_test_on_a_fifth_and_train_on_a_tenth_of_the_rest(loaded):
    found = sizes(loaded("fedpall/table1-digits-fedpall.toml"))
    everything = {**{name: sum(both) for name, both in SIZES.items()}, "synth": 220, "mnistm": 220}
    assert found == {name: (round(0.08 * n), 0, round(0.2 * n)) for name, n in everything.items()}


def test_folders_of_data_are_relative_to_the_file_that_names_them(tmp_path, monkeypatch):
    """In a chain of bases each path is relative to its file, and a path of `--set` to the working folder."""
    for folder in ("here", "tables/base"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "tables/base/common.toml").write_text(
        'rounds = 1\nmethod = { name = "fedavg" }\n[domains]\n'
        'near = { source = "folder", root = "../pictures" }\nusps = { source = "usps", root = "~/usps" }\n'
    )
    (tmp_path / "tables/one.toml").write_text('base = "base/common.toml"\nname = "one"\n')
    (tmp_path / "tables/two.toml").write_text(
        'name = "two"\nrounds = 1\nmethod = { name = "fedavg" }\ndata = { source = "folder", root = "mine" }\n'
        "devices = { count = 2 }\n"
    )
    monkeypatch.chdir(tmp_path / "here")
    one = read_experiment(Path("../tables/one.toml"), [])
    near = Path(one.domains["near"].root)
    assert near.is_absolute() and near.resolve() == (tmp_path / "tables/pictures").resolve()
    assert one.domains["usps"].root == "~/usps"
    two = read_experiment(Path("../tables/two.toml"), [])
    assert Path(two.data.root).resolve() == (tmp_path / "tables/mine").resolve()
    assert read_experiment(Path("../tables/two.toml"), ["data.root=there"]).data.root == "there"
