"""Options of Slurm that protofleet sets itself, or that it does not know, are refused with a fix."""

import pytest

from protofleet.lab.engines.settings import EngineSettings
from protofleet.protocol.settings.reader import SettingsError, decode

GIVEN = {"on": "slurm", "slurm": {"partition": "gpu", "cpus-per-task": 4}}


def test_options_of_the_command_line_replace_keys_of_the_slurm_table():
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
def test_a_wrong_option_of_slurm_is_refused(text, words):
    with pytest.raises(SettingsError, match=words):
        EngineSettings().with_options([text])


def test_options_of_ray_replace_keys_of_its_table():
    given = {"on": "ray", "ray": {"num_gpus": 1, "num_cpus": 2}, "slurm": {"partition": "gpu"}}
    found = decode(EngineSettings, given).with_options(
        [], ["num_cpus=0.5", "memory=4GB", "address=head:6379"]
    )
    assert found.options == {
        "address": "head:6379", "num_cpus": "0.5", "num_gpus": "1.0", "memory": "4000000000"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("num_cpus=0", "--ray: ray.num_cpus is 0.0, it must be above 0"),
        ("num_gpus=1.5", "--ray: ray.num_gpus is 1.5, and above 1 it must be a whole number"),
        ("memory=4GiB", "--ray: ray.memory is .4GiB., but must be a whole number of bytes"),
        (
            "address=ray://head:10001",
            "address is 'ray://head:10001', it must be HOST:PORT of the cluster's head",
        ),
        ("address=local", "address is 'local', it must be HOST:PORT"),
        ("gpus=1", "ray.gpus is not a setting; did you mean num_gpus"),
        ("num_cpus", "'num_cpus' is not of the form KEY=VALUE, for example --ray num_gpus=1"),
    ],
)
def test_a_wrong_option_of_ray_is_refused(text, words):
    with pytest.raises(SettingsError, match=words):
        EngineSettings().with_options([], [text])


def test_a_wrong_table_is_refused_with_its_key():
    with pytest.raises(SettingsError, match="slurm.mem is 'True', it must be a number or a text"):
        decode(EngineSettings, {"slurm": {"mem": True}})
    with pytest.raises(SettingsError, match="slurm has 'nodes', which is not accepted; there are"):
        decode(EngineSettings, {"slurm": {"nodes": 2}})
    with pytest.raises(SettingsError, match="setup has a line break"):
        decode(EngineSettings, {"setup": ["a\nb"]})


@pytest.mark.parametrize("time", [30, "90:30", "2:00:00", "1-12", "1-12:30:00", "UNLIMITED"])
def test_all_time_formats_of_sbatch_are_accepted(time):
    assert decode(EngineSettings, {"slurm": {"time": time}}).slurm["time"] == time


@pytest.mark.parametrize("time", ["abc", "2h", "1:2", "-5", "1-", "30 minutes"])
def test_a_wrong_time_is_refused_when_the_settings_are_read(time):
    with pytest.raises(SettingsError, match=f"slurm.time is '{time}', it must be minutes, or a time such as"):
        decode(EngineSettings, {"slurm": {"time": time}})
