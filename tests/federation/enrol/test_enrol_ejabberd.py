"""`enrol broker --kind ejabberd` writes the files of a node, and refuses what does not fit."""

import shutil

import pytest

from protofleet.cli.main import main
from protofleet.federation.brokers.ejabberd import RULES_FILE, SETTINGS_FILE
from tests.support.enrol import enrol_in


@pytest.fixture(scope="module")
def enrolled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("enrolled")
    enrol_in(folder, "fleet fleet board-1 board-2 --federation lab")
    enrol_in(
        folder, "broker localhost 127.0.0.1 --name node-1 --folder node-1 --kind ejabberd --root fleet/root"
    )
    return folder


@pytest.fixture
def lab(enrolled, tmp_path, monkeypatch):
    shutil.copytree(enrolled, tmp_path / "lab", symlinks=True)
    monkeypatch.chdir(tmp_path / "lab")
    return tmp_path / "lab"


def node(*more, name="node-1"):
    words = ["--name", name, "--folder", name, "--kind", "ejabberd", "--root", "fleet/root"]
    return main(["enrol", "broker", "localhost", *words, *more])


def test_a_node_gets_its_settings_and_its_rules(lab, capsys):
    assert node("--port", "8884", "--listen", "10.0.0.1", name="node-2") == 0
    said = capsys.readouterr().out
    assert f"ejabberdctl --config-dir {lab}/node-2 start" in said
    text = (lab / "node-2" / SETTINGS_FILE).read_text()
    assert "port: 8884" in text and 'ip: "10.0.0.1"' in text
    assert "federation lab" in (lab / "node-2" / RULES_FILE).read_text()
    assert not (lab / "node-2" / "mosquitto.conf").exists()


def test_the_command_repeated_after_a_revocation_writes_only_the_rules_again(lab, capsys):
    (lab / "node-1" / SETTINGS_FILE).write_text("edited")
    before = (lab / "node-1" / RULES_FILE).read_text()
    assert main(["enrol", "revoke", "board-2", "--root", "fleet/root"]) == 0
    assert node() == 0
    assert "(not changed)" in capsys.readouterr().out
    after = (lab / "node-1" / RULES_FILE).read_text()
    assert "board-2@localhost" in after and "board-2" not in before
    assert (lab / "node-1" / SETTINGS_FILE).read_text() == "edited"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--plain-port", "1883"], "--plain-port is for a mosquitto.conf; leave it out with --kind ejabberd"),
        (["--devices", "99"], "--devices is for a mosquitto.conf; leave it out with --kind ejabberd"),
        (["--port", "8884"], "ejabberd.yml exists; edit its port and its address there"),
        (["--user", "no-such-user"], "there is no user no-such-user"),
    ],
)
def test_an_option_that_does_not_fit_ejabberd_is_refused_in_one_line(lab, capsys, options, words):
    assert node(*options) == 2
    said = capsys.readouterr().err
    assert words in said and len(said.splitlines()) == 1


def test_a_fleet_with_a_capital_letter_in_a_name_is_refused_before_a_file_is_written(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    enrol_in(tmp_path, "fleet fleet Board-1 board-2 --federation Lab")
    assert node() == 2
    assert "Board-1: ejabberd makes all letters of a name small" in capsys.readouterr().err
    assert not (tmp_path / "node-1").exists()


def test_the_folder_of_another_party_is_refused(lab, capsys):
    shutil.copytree(lab / "fleet" / "coordinator", lab / "node-3", symlinks=True)
    assert node(name="node-3") == 2
    assert "no broker of this federation is enrolled in node-3" in capsys.readouterr().err


def test_a_renewed_certificate_is_installed_without_a_mosquitto_conf(lab, capsys):
    assert main(["enrol", "renew", "node-1", "--root", "fleet/root"]) == 0
    words = ["enrol", "install", "fleet/root/approvals/node-1.approval", "--folder", "node-1"]
    assert main([*words, "--port", "1"]) == 2
    assert (
        "--port can be used only for a mosquitto.conf, but node-1 has an ejabberd.yml"
        in capsys.readouterr().err
    )
    assert main(words) == 0
    assert "an approval has no rules for ejabberd" in capsys.readouterr().out
    assert not (lab / "node-1" / "mosquitto.conf").exists()


def test_a_revocation_with_an_ejabberd_node_as_its_broker_is_refused(lab, capsys):
    words = ["enrol", "revoke", "board-2", "--root", "fleet/root", "--broker", "node-1"]
    assert main(words) == 2
    assert "belongs to ejabberd, which reads no list of revoked names" in capsys.readouterr().err
    assert main(words[:-2]) == 0, "the refused command has revoked the name"
