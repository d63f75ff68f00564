"""Tests of settings that the root has signed: settings that a device accepts, and reasons to refuse others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from protofleet.deploy.fleet.device import probe
from protofleet.edge_client.host.loaded_settings import load_settings
from protofleet.federation.enrol.local_federation import enrol_federation
from protofleet.protocol.security.signed_settings import SETTINGS, SignedSettings, is_signed, issue_settings
from protofleet.protocol.security.statements import StatementError, StatementFault, armoured
from protofleet.protocol.settings.reader import SettingsError

TEXT = 'name = "a"\nfederation = "lab"\nfolder = "{folder}"\nthreads = 2\n'


@pytest.fixture
def fleet(tmp_path):
    return enrol_federation(tmp_path / "fleet", "lab", ["a", "b"])


@pytest.fixture
def signed(fleet, tmp_path):
    """Return a function that writes a signed settings file and reads it as device `a` would."""

    def read(text=TEXT, version=1, name="a", federation="lab", by=None, change=lambda data: data):
        told = SignedSettings(federation, name, version, text.format(folder=tmp_path / "state"))
        path = tmp_path / "device.settings"
        path.write_text(armoured(SETTINGS, change(issue_settings(told, (by or fleet.authority()).keys))))
        assert is_signed(path)
        return load_settings(path, str(fleet.folder_of("a")), [])

    return read


def why(call, **options):
    with pytest.raises(StatementError) as error:
        call(**options)
    return error.value.why


def test_a_device_accepts_settings_that_its_root_has_signed(signed, fleet):
    given = signed(version=7)
    assert (given.version, given.settings.name, given.settings.threads) == (7, "a", 2)
    assert given.settings.enrolled == str(fleet.folder_of("a"))


def test_plain_settings_need_no_signature(tmp_path):
    path = tmp_path / "device.toml"
    path.write_text('name = "a"\n')
    assert not is_signed(path)
    assert load_settings(path, "", ["threads=3"]).settings.threads == 3


def test_signed_settings_with_a_changed_value_are_refused(signed):
    assert (
        why(signed, change=lambda d: d.replace(b"threads = 2", b"threads = 3"))
        is StatementFault.BAD_SIGNATURE
    )


def test_settings_that_another_root_has_signed_are_refused(signed, tmp_path):
    other = enrol_federation(tmp_path / "other", "lab", ["a"]).authority()
    assert why(signed, by=other) is StatementFault.UNKNOWN_ROOT


def test_settings_for_another_device_or_federation_are_refused(signed):
    assert why(signed, name="b") is StatementFault.WRONG_NAME
    assert why(signed, federation="sea") is StatementFault.WRONG_FEDERATION


def test_an_earlier_version_is_refused_and_the_same_version_is_accepted(signed):
    signed(version=5)
    signed(version=5)
    assert why(signed, version=4) is StatementFault.SUPERSEDED
    assert signed(version=6).version == 6


def test_a_misspelt_key_in_signed_settings_is_refused_with_a_suggestion(signed):
    with pytest.raises(SettingsError, match="thread is not a setting; did you mean threads"):
        signed(text=TEXT.replace("threads", "thread"))


def test_signed_settings_are_refused_without_an_enrolment_folder(signed, tmp_path):
    signed()
    with pytest.raises(SettingsError, match="use --enrolled FOLDER"):
        load_settings(tmp_path / "device.settings", "", [])


def started(folder, *words):
    """Run `protofleet device ...` as a process and return its exit code and its standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "protofleet", "device", *words], cwd=folder, capture_output=True, text=True,
        timeout=120, check=False, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    return done.returncode, done.stderr


def test_an_enrolled_device_refuses_settings_without_their_signature(signed, fleet, tmp_path):
    signed()
    path = tmp_path / "device.settings"
    mine = f'security = "off"\nenrolled = "{fleet.folder_of("a")}"\n'
    path.write_text(mine + TEXT.format(folder=tmp_path / "begun"))
    code, said = started(tmp_path, str(path), "--enrolled", str(fleet.folder_of("a")))
    assert code == 2 and len(said.splitlines()) == 1, said
    assert "device.settings is not signed, but --enrolled demands a signature by the root of" in said
    assert not (tmp_path / "begun").exists()
    # The first line of the signature is now after the part of the file that is searched for it.
    path.write_text("\n" * 300 + path.read_text())
    with pytest.raises(SettingsError, match="is not signed"):
        load_settings(path, str(fleet.folder_of("a")), [])


def test_the_probe_reports_deployed_settings_without_a_signature(fleet, tmp_path, monkeypatch, capsys):
    (tmp_path / "plain").write_text('name = "a"\n')
    monkeypatch.setattr(probe, "SETTINGS_FILE", tmp_path / "plain")
    monkeypatch.setattr(probe, "KEY_FOLDER", fleet.folder_of("a"))
    assert probe.main(["settings", str(tmp_path / "plain")]) == 1
    assert "is not signed" in capsys.readouterr().err
    probe.main(["tell"])
    assert "broker=the installed settings are not accepted: " in capsys.readouterr().out
