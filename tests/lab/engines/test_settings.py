"""Options of Slurm that protofleet sets itself, or that it does not know, are refused with the way out."""

import pytest

from protofleet.lab.engines.settings import EngineSettings
from protofleet.protocol.settings.reader import SettingsError, decode

GIVEN = {"on": "slurm", "slurm": {"partition": "gpu", "cpus-per-task": 4}}


def test_a_table_and_the_command_line_are_joined():
    found = decode(EngineSettings, GIVEN).with_options(["partition=cpu", "time=2:00:00"])
    assert found.options == {"partition": "cpu", "cpus-per-task": "4", "time": "2:00:00"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("array=0-9", "--slurm: slurm has array, which protofleet sets itself; leave it out"),
        ("requeue=1", "which protofleet sets itself"),
        ("output=x", "which protofleet sets itself"),
        ("partitoin=gpu", "did you mean partition"),
        ("partition", "'partition' is not of the form KEY=VALUE, for example"),
        ("partition=", "is not of the form KEY=VALUE"),
        ("mem=1\n#SBATCH --array=0-9", "without quotes and line breaks"),
    ],
)
def test_a_wrong_option_is_refused(text, words):
    with pytest.raises(SettingsError, match=words):
        EngineSettings().with_options([text])


def test_a_wrong_table_is_refused_with_its_key():
    with pytest.raises(SettingsError, match="slurm.mem is 'True', it must be a number or a text"):
        decode(EngineSettings, {"slurm": {"mem": True}})
    with pytest.raises(SettingsError, match="setup has a line break"):
        decode(EngineSettings, {"setup": ["a\nb"]})
