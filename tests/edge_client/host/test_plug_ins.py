"""Only the owner's plain settings and the root's signed settings can allow a plug-in on a device."""

from dataclasses import fields

import pytest

from protofleet.edge_client.host.loaded_settings import load_settings
from protofleet.edge_client.host.overrides import Overrides
from protofleet.federation.enrol.local_federation import enrol_federation
from protofleet.protocol.security.signed_settings import SETTINGS, SignedSettings, issue_settings
from protofleet.protocol.security.statements import StatementError, StatementFault, armoured
from protofleet.protocol.settings.reader import SettingsError
from tests.edge_client.host.test_overrides import Lab

HASH = "ab" * 32
TEXT = f'name = "a"\nfederation = "lab"\n[plugins]\nfiles = ["fedexp.py", "/opt/x.py"]\nallow = ["{HASH}"]\n'


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    return enrol_federation(tmp_path_factory.mktemp("fleet"), "lab", ["a"])


def test_plain_settings_allow_plug_in_files_relative_to_their_folder(tmp_path):
    path = tmp_path / "device.toml"
    path.write_text(TEXT)
    found = load_settings(path, "", []).settings.plugins
    assert found.files == (str(tmp_path / "fedexp.py"), "/opt/x.py") and found.allow == (HASH,)


def test_unsigned_settings_are_refused_with_the_option_enrolled(tmp_path, fleet):
    path = tmp_path / "device.toml"
    path.write_text(TEXT)
    with pytest.raises(
        SettingsError, match="is not signed, but --enrolled demands a signature by the root of"
    ):
        load_settings(path, str(fleet.folder_of("a")), [])


def test_signed_settings_allow_a_plug_in_and_a_changed_hash_in_them_is_refused(tmp_path, fleet):
    path, keys = tmp_path / "device.settings", fleet.authority().keys
    data = issue_settings(SignedSettings("lab", "a", 1, f'folder = "{tmp_path / "state"}"\n{TEXT}'), keys)
    path.write_text(armoured(SETTINGS, data))
    assert load_settings(path, str(fleet.folder_of("a")), []).settings.plugins.allow == (HASH,)
    path.write_text(armoured(SETTINGS, data.replace(HASH.encode(), b"cd" * 32)))
    with pytest.raises(StatementError) as error:
        load_settings(path, str(fleet.folder_of("a")), [])
    assert error.value.why is StatementFault.BAD_SIGNATURE


def test_the_settings_of_remote_overrides_include_no_plug_ins_and_no_models():
    assert {f.name for f in fields(Overrides)} == {
        "paused", "verbose", "hottest_celsius", "trainer_memory_bytes", "trainer_seconds"
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        f'[plugins]\nallow = ["{HASH}"]\n',
        '[plugins]\nfiles = ["/tmp/x.py"]\n',
        '[models]\non_model = "/bin/sh"\n',
    ],
)
def test_a_signed_override_cannot_allow_a_plug_in_or_a_model_command(tmp_path, caplog, text):
    lab = Lab(tmp_path)
    overrides = lab.overrides_file()
    lab.write(text)
    overrides.check()
    assert lab.seen == [] and "the tuning file is not used: tuning." in caplog.text
    assert "is not a setting; there are" in caplog.text
