"""One federation can have domains of several sources, which its file names."""

import pytest

from protofleet.cli.main import main
from protofleet.edge_client.data.shard import load_shard
from protofleet.lab.local.experiment import Experiment
from protofleet.protocol.settings.reader import SettingsError, decode, encode, tomllib, write_toml
from tests.edge_client.data.files import write_class_folders, write_mnist

FILE = """
name = "several"
rounds = 1
classes = 10
method = { name = "fedavg" }
network = { name = "mlp" }

[data]
size = 8
validation = 0.0
fraction = 0.5

[domains]
mnist = { source = "mnist", root = "ROOT/mnist" }
synth = { source = "folder", root = "ROOT/pictures", fraction = 0.25 }
mnistm = { source = "folder", root = "ROOT/pictures", samples = 20 }
"""


@pytest.fixture
def file(tmp_path):
    write_mnist(tmp_path / "mnist", 200, 30)
    for domain in ("synth", "mnistm"):
        for half, n in (("train", 8), ("test", 3)):
            write_class_folders(tmp_path / "pictures" / domain / half, {str(digit): n for digit in range(10)})
    return FILE.replace("ROOT", str(tmp_path))


def decoded(text):
    return decode(Experiment, tomllib.loads(text))


def test_each_device_gets_its_domain_from_its_source(file):
    found = decoded(file + "[devices]\nclients = { mnist = 2, synth = 1, mnistm = 1 }").shards
    loaded = {name: load_shard(data) for name, data in found.items()}
    assert {name: shard.domain for name, shard in loaded.items()} == {
        "mnist-1": "mnist", "mnist-2": "mnist", "synth": "synth", "mnistm": "mnistm",
    }  # fmt: skip
    sizes = {name: (len(shard.train.y), len(shard.test.y)) for name, shard in loaded.items()}
    assert sizes == {"mnist-1": (100, 30), "mnist-2": (100, 30), "synth": (20, 30), "mnistm": (20, 30)}


def test_every_domain_has_the_same_number_of_devices_by_default(file):
    assert list(decoded(file).shards) == ["mnist", "synth", "mnistm"]
    doubled = decoded(file + "[devices]\nper_domain = 2").shards
    assert list(doubled) == [f"{d}-{i}" for d in ("mnist", "synth", "mnistm") for i in (1, 2)]


def test_a_domain_may_have_no_device(file):
    assert list(decoded(file + "[devices]\nclients = { synth = 1 }").shards) == ["synth"]


def test_an_experiment_with_domains_can_be_written_and_read_again(file):
    experiment = decoded(file)
    assert decoded(write_toml(encode(experiment))) == experiment


def test_the_command_data_shows_the_samples_of_every_device(file, tmp_path, capsys):
    path = tmp_path / "several.toml"
    path.write_text(file)
    assert main(["data", str(path), "--set", "domains.synth.fraction=0.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "synth" in lines[1] and "train 40, validation 0, test 30" in lines[1]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            "[devices]\nclients = { usps = 1 }",
            "devices.clients has 'usps', which is not in .domains.; the domains are",
        ),
        (
            "[devices]\ncount = 3",
            "devices.count is 3, but it can divide only one source, and .domains. has 3",
        ),
        ("[domains.usbs]\nsource = 'usps'", "domains.usbs: usps has no domain 'usbs'; it has usps"),
        ("[domains.usps]\nsource = 'upsp'", "domains.usps: source is 'upsp'; did you mean usps\\?"),
        ("[domains.usps]\nroot = 'here'", "domains.usps.source is missing"),
        (
            "[domains.usps]\nsource = 'usps'\nsize = 3",
            "domains.usps.size is not a setting; .*there are fraction,",
        ),
        ("[domains.usps]\nsource = 'usps'\nfraction = 2.0", "domains.usps.fraction is 2.0, it must be"),
        ("[devices]\nclients = { mnist = 3 }", "fraction is 0.5, .* at most 0.333, .* for each of 3 clients"),
    ],
)
def test_a_mistake_is_refused_in_one_line_that_names_its_place(file, more, message):
    with pytest.raises(SettingsError, match=message) as error:
        decoded(f"{file}\n{more}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key, value", [("source", "usps"), ("root", "here"), ("domain", "mnist")])
def test_data_keys_that_the_domains_set_are_refused(file, key, value):
    with pytest.raises(SettingsError, match=rf"data.{key} is '{value}', but \[domains\] names the source"):
        decoded(file.replace("[data]\n", f"[data]\n{key} = '{value}'\n"))
