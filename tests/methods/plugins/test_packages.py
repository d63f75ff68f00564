"""Tests of plug-ins in installed packages: they are listed without import and run by the hash of their files."""

import json
import re
import sys

import pytest

from protofleet.cli.main import main
from protofleet.lab.local.experiment import Experiment
from protofleet.methods.contract.plan import read_plan
from protofleet.methods.plugins import packages
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.methods.plugins.errors import PlugInError
from protofleet.methods.plugins.packages import digest_of, installed, modules
from protofleet.protocol.settings.reader import SettingsError, decode
from tests.methods.plugins.test_allowed import NETWORK
from tests.support.plug_ins import block, installed_package

FILES = {
    "novas/__init__.py": '"""Methods."""\n',
    "novas/fedexp.py": block("adding-a-method.md", "fedexp"),
    "novas/net.py": NETWORK,
    "novas/broken.py": "x = 1\nraise SystemExit(3)\n",
}
ENTRIES = {
    "methods": "fedexp = novas.fedexp:METHOD\nbroken = novas.broken:METHOD\nfedavg = novas.broken:METHOD",
    "networks": "nova_net = novas.net:NETWORK\nmlp = novas.broken:NETWORK",
    "data": "windows = novas.broken:DATA\nmnist = novas.broken:DATA",
}


@pytest.fixture
def site(tmp_path, monkeypatch):
    installed_package(tmp_path, "nova-methods", FILES, ENTRIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "novas"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("kind", "names", "clash"),
    [
        ("methods", ["broken", "fedexp"], "method fedavg"),
        ("networks", ["nova_net"], "network mlp"),
        ("data", ["windows"], "data mnist"),
    ],
)
def test_the_lists_show_plug_ins_with_package_and_version_without_importing_them(
    site, capsys, kind, names, clash
):
    assert main([kind, "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["plugins"] == [
        {"name": name, "package": "nova-methods", "version": "1.2"} for name in names
    ]
    assert (
        f"protofleet: {clash} of nova-methods 1.2 is not used: protofleet has one of this name\n" == said.err
    )
    assert not [name for name in sys.modules if name.startswith("novas")]
    assert main([kind]) == 0
    assert f"{names[-1]:16} a plug-in of the package nova-methods 1.2\n" in capsys.readouterr().out


def test_a_method_of_a_package_is_described_and_a_broken_one_is_refused_in_one_line(site, capsys):
    assert main(["methods", "fedexp"]) == 0
    said = capsys.readouterr().out
    assert "FedExP (Jhunjhunwala et al." in said and re.search(
        r"^Bytes of arrays up [\d,]+, down [\d,]+, with network", said, re.MULTILINE
    )
    assert main(["methods", "broken"]) == 2
    assert capsys.readouterr().err == f"protofleet: {site}/novas/broken.py:2: SystemExit: 3\n"


def test_a_plug_in_file_is_described_by_its_path(tmp_path, capsys):
    (tmp_path / "fedexp.py").write_text(FILES["novas/fedexp.py"])
    assert main(["methods", str(tmp_path / "fedexp.py")]) == 0
    assert "FedExP (Jhunjhunwala et al." in capsys.readouterr().out


def experiment():
    return decode(Experiment, {
        "name": "x", "rounds": 2, "classes": 10, "method": {"name": "fedexp"}, "network": {"name": "nova_net"},
        "data": {"source": "digits"}, "devices": {"count": 2},
    })  # fmt: skip


def test_an_experiment_names_plug_ins_of_packages_and_its_plan_has_their_hashes(site):
    plan = experiment().plan
    number = digest_of(installed("method")["fedexp"])
    assert json.loads(plan.encode())["plugins"] == {"method": number, "network": number}
    assert read_plan(plan.encode(), PlugIns((), (number,))) == plan
    with pytest.raises(
        PlugInError, match=f"fedexp is a plug-in with SHA-256 {number}, which this device does not"
    ):
        read_plan(plan.encode(), PlugIns())


def test_a_package_that_was_changed_after_its_installation_is_refused(site):
    plan = experiment().plan
    (number,) = set(json.loads(plan.encode())["plugins"].values())
    (site / "novas" / "net.py").write_text(NETWORK + "# changed\n")
    with pytest.raises(PlugInError, match="nova-methods 1.2: .*net.py was changed since it was installed"):
        read_plan(plan.encode(), PlugIns((), (number,)))


def test_an_unknown_name_is_refused_as_without_plug_ins(site):
    with pytest.raises(SettingsError, match="no method 'fedfoo'; did you mean"):
        decode(Experiment, {"name": "x", "rounds": 2, "method": {"name": "fedfoo"}})


def test_packages_are_read_again_only_if_the_import_path_changes(tmp_path, monkeypatch):
    read, reading = [], packages.entry_points
    monkeypatch.setattr(packages, "entry_points", lambda group: read.append(group) or reading(group=group))
    monkeypatch.syspath_prepend(str(tmp_path / "none"))
    before = [modules() for _ in range(3)]
    assert len(read) == len(packages.GROUPS)
    installed_package(tmp_path / "more", "nova-methods", FILES, ENTRIES)
    monkeypatch.syspath_prepend(str(tmp_path / "more"))
    assert modules() == before[0] | {"novas"} and before == [before[0]] * 3
