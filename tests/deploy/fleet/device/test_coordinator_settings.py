"""A coordinator loads the settings that its root has signed, and can be started so that it loads no others."""

import time

import pytest

from protofleet.cli.main import main
from protofleet.deploy.fleet.device.coordinator_settings import load_settings
from protofleet.federation.enrol.authority import make_authority
from protofleet.federation.enrol.local_federation import enrol
from protofleet.protocol.security.signed_settings import SETTINGS, SignedSettings, issue_settings
from protofleet.protocol.security.statements import StatementError, armoured

TEXT = """
name = "first"
federation = "lab"
rounds = 3
classes = 10
folder = "{folder}"
method = {{ name = "fedavg" }}
"""


@pytest.fixture
def signed(tmp_path):
    authority = make_authority(tmp_path / "root", "lab", 1, durable=False)
    enrol(authority, tmp_path / "keys", "coordinator", 30)

    def write(name="coordinator", version=0, keys=authority.keys, text=TEXT):
        text = text.format(folder=tmp_path / "runs")
        settings = SignedSettings("lab", name, version or int(time.time()), text)
        path = tmp_path / "coordinator.settings"
        path.write_text(armoured(SETTINGS, issue_settings(settings, keys)))
        return path

    return write


def test_a_coordinator_loads_the_settings_that_its_root_has_signed(signed, tmp_path):
    loaded = load_settings(signed(version=7), str(tmp_path / "keys"), ["rounds=4"])
    assert (loaded.version, loaded.settings.rounds) == (7, 4)
    assert loaded.settings.enrolled == str(tmp_path / "keys")


def test_signed_settings_without_a_run_are_settings_of_a_queue(signed, tmp_path):
    path = signed(text='federation = "lab"\nfolder = "{folder}"\nslots = 3\n')
    loaded = load_settings(path, str(tmp_path / "keys"), [])
    assert loaded.service.queue.slots == 3 and loaded.service.own.enrolled == str(tmp_path / "keys")


def test_settings_for_a_device_or_with_the_signature_of_another_root_are_refused(signed, tmp_path):
    with pytest.raises(StatementError, match="signed for board-1 in lab, but not for the coordinator"):
        load_settings(signed("board-1"), str(tmp_path / "keys"), [])
    stranger = make_authority(tmp_path / "other", "lab", 1, durable=False)
    with pytest.raises(StatementError):
        load_settings(signed(keys=stranger.keys), str(tmp_path / "keys"), [])


def test_an_unsigned_or_older_settings_file_is_refused_with_one_line(signed, tmp_path, capsys):
    plain = tmp_path / "plain.toml"
    plain.write_text(TEXT.format(folder=tmp_path / "runs"))
    assert main(["coordinator", str(plain), "--enrolled", str(tmp_path / "keys")]) == 2
    assert "is not signed" in capsys.readouterr().err
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/settings.version").write_text("9\n")
    assert main(["coordinator", str(signed(version=8)), "--enrolled", str(tmp_path / "keys")]) == 2
    said = capsys.readouterr().err
    assert "is version 8, but version 9 was used before" in said and len(said.splitlines()) == 1
