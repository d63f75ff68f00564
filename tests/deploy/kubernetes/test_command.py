"""`protofleet kubernetes` refuses what Kubernetes would refuse, in one line, and writes nothing then."""

import re

import pytest

from protofleet.cli.main import main
from protofleet.deploy.kubernetes.federation import MOST_DEVICES, MOST_IN_GROUP
from protofleet.protocol.settings.reader import write_toml

TABLE = {"name": "tiny", "rounds": 1, "method": {"name": "fedavg"}, "data": {"source": "digits"}}
NO_CLAIM = "use --with data.claim=NAME"
# The arguments after the file -> the text that the one line must contain: value, limit, fix.
REFUSED = {
    "--set name=Fed_Avg": "objects is 'Fed_Avg', it must be a DNS label of 1 to 40 .*choose one with --name",
    "--name 9lives": "is '9lives', it must be a DNS label .*begins with a letter",
    "--name lab-": "is 'lab-', it must be a DNS label .*ends with a letter or a digit",
    f"--name {'n' * 41}": "of 1 to 40 of the characters a-z 0-9 -",
    "--groups 7": "--groups is 7, but there are 6 devices, .*use at most 6",
    "--groups 0": "it must be a whole number, at least 1",
    f"--set devices.count={MOST_DEVICES + 1}": f"has 1001 devices, and a chart at most {MOST_DEVICES}, .*ConfigMap",
    f"--set devices.count={MOST_IN_GROUP + 1} --groups 1": "a group has 251 devices, .*use --groups 2 or more",
    "--with devices.memory=10GB": "devices.memory is '10GB', it must be a whole number with a unit, such as 512Mi",
    "--with coordinator.storage=10": "must be a string",
    "--with broker.memory=0Gi": "broker.memory is '0Gi', it must be",
    "--with devices.cpu=0": "devices.cpu is '0', it must be a number of cores above 0, such as 2, 0.5 or 500m",
    "--with devices.cpu=0.0005": "devices.cpu is '0.0005', it must be",
    "--with devices.retries=0": "devices.retries is 0, it must be at least 1 and at most 1_000",
    "--with devices.grace_seconds=5": "devices.grace_seconds is 5, it must be at least 20",
    "--with coordinator.storage_class=Fast_SSD": "coordinator.storage_class is 'Fast_SSD', it must be the name of",
    "--with metrics.namespace=my.space": "metrics.namespace is 'my.space', it must be a DNS label",
    "--with metrics.seconds=0": "metrics.seconds is 0, it must be at least 1 and at most 3_600",
    "--with image.device=Demo:1": "image.device is 'Demo:1', it must be the name of an image",
    "--with image.pull=always": 'image.pull is "always", but must be one of "IfNotPresent"',
    "--with devices.memry=1Gi": "devices.memry is not a setting; did you mean memory?",
    "--with devices.cpu": "--with is 'devices.cpu', it must be TABLE.KEY=VALUE",
    "--set broker.kind=external": "broker.kind is 'external', but the chart has a Mosquitto of its own",
    "--set broker.tls=off": "broker.tls is 'off', but the chart has a Mosquitto of its own with TLS; leave out",
    "--set data.source=usps": f"usps needs files of 'usps', which no image has; .*{NO_CLAIM}",
    "--set data.source=folder --set data.root=/home/me": "is '/home/me', a folder of this machine; .*=/data/...",
    "--set data.source=folder --set data.root=/data/a": f"needs files of 'folder', .*{NO_CLAIM}",
    "--set data.inbox=/in": "data.inbox is '/in', but pods have no inbox; leave it out",
}  # fmt: skip


@pytest.fixture
def chart(tmp_path):
    """Return a function that runs the command for a small experiment; it returns the exit code."""
    (tmp_path / "tiny.toml").write_text(write_toml(TABLE))

    def write(words="", out="chart"):
        return main(["kubernetes", str(tmp_path / "tiny.toml"), "--out", str(tmp_path / out), *words.split()])

    return write


@pytest.mark.parametrize("words", REFUSED)
def test_a_value_that_kubernetes_would_refuse_is_refused_in_one_line(chart, words, tmp_path, capsys):
    assert chart(words) == 2
    told = capsys.readouterr()
    assert len(told.err.splitlines()) == 1 and not told.out
    assert re.search(REFUSED[words], told.err), told.err
    assert not (tmp_path / "chart").exists()


def test_a_local_plug_in_is_refused(chart, tmp_path, capsys):
    own = tmp_path / "own.py"
    own.write_text("from protofleet.methods.fedavg import *\n")
    assert chart(f"--set method.file={own} --set method.name=") == 2
    assert "plug-in" in capsys.readouterr().err


def test_a_folder_with_files_is_not_written_to(chart, tmp_path, capsys):
    assert chart() == 0
    edited = tmp_path / "chart" / "values.yaml"
    edited.write_text("edited")
    capsys.readouterr()
    assert chart() == 2
    assert "chart, which is not empty; name a new folder, or remove this one" in capsys.readouterr().err
    assert edited.read_text() == "edited"


def test_the_output_begins_with_the_list_of_unchecked_parts(chart, capsys):
    assert chart() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "this chart has never run on a cluster. Not checked:"
    assert [line.split(":")[0].strip() for line in lines[1:5]] == [
        "admission", "scheduling", "network policies", "volumes",
    ]  # fmt: skip


def test_the_output_has_every_command_from_the_keys_to_the_results(chart, capsys):
    assert chart("--name lab --groups 2") == 0
    told = capsys.readouterr().out
    commands = [line.split()[0:3] for line in told.splitlines() if line.startswith("  ")][4:]
    assert "push the images protofleet/coordinator and protofleet/demo, or set image.coordinator" in told
    assert [" ".join(words) for words in commands] == [
        "kubectl config set-context",
        "protofleet enrol fleet", "kubectl create secret", "kubectl create secret", "kubectl create configmap",
        "tar -C keys/devices", "tar -C keys/devices", "helm install lab", "helm upgrade lab",
        "kubectl cp lab-results:/runs/tiny", "helm upgrade lab",
    ]  # fmt: skip
    assert "--host lab-broker" in told and "--federation tiny" in told


def test_the_output_shows_the_commands_of_a_few_groups_and_names_the_script(chart, tmp_path, capsys):
    assert chart("--set devices.count=20 --groups 20") == 0
    told = capsys.readouterr().out
    assert told.count("tar -C") == 8 and f"and 12 more in {tmp_path}/chart/secrets.sh" in told
    assert (tmp_path / "chart" / "secrets.sh").read_text().count("tar -C") == 20


def test_the_output_for_a_queue_with_claims_has_submit_and_scale_commands(chart, capsys):
    assert chart("--queue --claims") == 0
    told = capsys.readouterr().out
    assert "kubectl exec tiny-coordinator-0 -- protofleet submit /tmp/run.toml --service /runs" in told
    assert "kubectl scale statefulset tiny-devices --replicas 0" in told
