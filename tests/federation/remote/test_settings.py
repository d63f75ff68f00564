"""The file with the settings of an operator, and mistakes in it."""

import pytest

from protofleet.cli.main import main
from protofleet.federation.remote.client import ask_coordinator
from protofleet.federation.remote.settings import OperatorSettings, load_operator_settings
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.messages import MOST_ARGS


def test_the_enrolled_folder_gives_the_tls_files_unless_the_settings_name_others(tmp_path):
    path = tmp_path / "operator.toml"
    path.write_text('enrolled = "mine"\n[broker]\nhost = "broker.lab"\nport = 8883\n')
    made = load_operator_settings(path)
    assert (str(made.broker), made.broker.tls.cert) == ("broker.lab:8883", "mine/current/tls.crt")
    path.write_text('[broker]\ntls = {ca = "a", cert = "b", key = "c"}\n')
    assert load_operator_settings(path).broker.tls.cert == "b"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read: No such file or directory; name the file with an operator's settings"),
        ("enroled = 'x'\n", "did you mean enrolled"),
        ("security = 'none'\n", "it must be one of sealed, off"),
        ("[broker]\nport = 0\n", "port is 0"),
        ("enrolled = 'nowhere'\n", "nowhere holds no enrolment; `protofleet enrol install` creates it there"),
    ],
)
def test_a_mistake_in_the_settings_prints_one_line(tmp_path, capsys, text, words, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "operator.toml"
    if text is not None:
        path.write_text(text)
    assert main(["runs", "--operator", str(path)]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1, said


def test_the_options_service_and_operator_exclude_each_other(capsys):
    for line in (["runs"], ["runs", "--log"], ["label"]):
        assert main([*line, "--service", "runs", "--operator", "operator.toml"]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "leave one of them out" in said, said


def test_a_command_that_is_too_large_is_not_sent():
    with pytest.raises(SettingsError, match="the limit is 135,168"):
        ask_coordinator(OperatorSettings(), {"verb": "submit", "experiment": "x" * MOST_ARGS})
