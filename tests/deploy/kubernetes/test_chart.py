"""The files of a chart agree with each other, with the product's settings and with its exit codes."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.service_settings import ServiceSettings
from protofleet.deploy.kubernetes.chart import TEMPLATES, Chart, write_chart
from protofleet.deploy.kubernetes.federation import (
    MOST_DEVICES,
    MOST_IN_GROUP,
    demand_pods_can_run,
    federation_of,
    patient,
)
from protofleet.deploy.kubernetes.steps import NOT_CHECKED, secret_commands
from protofleet.deploy.kubernetes.values import ChartValues, read_values
from protofleet.edge_client.config import DeviceSettings
from protofleet.federation.enrol.local_federation import enrol_federation
from protofleet.lab.local.experiment import Experiment
from protofleet.protocol.settings.reader import SettingsError, decode, encode, parse_toml
from protofleet.protocol.user_error import BUDGET_SPENT, DIVERGED, MISUSED
from tests.deploy.kubernetes.fake_kubectl import run_script

TABLE = {"name": "tiny", "rounds": 1, "method": {"name": "fedavg"}, "data": {"source": "digits"}}
TEMPLATE = "".join(path.read_text() for path in sorted(TEMPLATES.iterdir()))
DAY = 86_400


def chart_of(groups=2, queue=False, claims=False, assignments=(), **more):
    experiment = decode(Experiment, {**TABLE, **more})
    return Chart(federation_of(experiment, "lab", groups, queue, claims), read_values(assignments))


@pytest.fixture(scope="module")
def files():
    return chart_of().files()


def values_in(text):
    """Return the values of values.yaml, whose lines are keys with JSON values."""
    found, table = {}, {}
    for line in text.splitlines():
        key, colon, value = line.strip().partition(":")
        if not colon or key.startswith("#"):
            continue
        if not value:
            table = found[key] = {}
        elif line.startswith(" "):
            table[key] = json.loads(value)
        else:
            found[key] = json.loads(value)
    return found


def test_values_yaml_has_a_sentence_above_each_value(files):
    found = values_in(files["values.yaml"])
    fixed = found.pop("fleet")
    assert found == encode(ChartValues())
    assert fixed == chart_of().fixed() and (fixed["groups"], fixed["largest"]) == (2, 3)
    described = [line for line in files["values.yaml"].splitlines() if line.strip().startswith("# ")]
    number = sum(len(part) if isinstance(part, dict) else 0 for part in found.values()) + len(found)
    assert len(described) == number + 1 and all(line.endswith((".", "`.")) for line in described)


def test_every_value_is_used_in_a_template_and_every_value_of_a_template_exists(files):
    found = values_in(files["values.yaml"])
    used = set(re.findall(r"\.Values\.(\w+\.\w+|results)", TEMPLATE))
    # These tables are passed on to the templates "resources" and "claim".
    for table in re.findall(r'include "protofleet\.resources" \.Values\.(\w+)', TEMPLATE):
        used |= {f"{table}.cpu", f"{table}.memory"}
    for table in re.findall(r'include "protofleet\.claim" \(dict "of" \.Values\.(\w+)', TEMPLATE):
        used |= {f"{table}.storage", f"{table}.storage_class"}
    there = {f"{table}.{key}" for table, part in found.items() if isinstance(part, dict) for key in part}
    assert used == there | {"results"}


def test_the_schema_has_the_bounds_and_forms_of_the_values(files):
    schema = json.loads(files["values.schema.json"])
    properties = schema["properties"]
    assert properties["fleet"]["properties"]["groups"] == {"const": 2}
    assert {*properties} == {*encode(ChartValues()), "fleet", "global"} and not schema["additionalProperties"]
    assert properties["devices"]["properties"]["retries"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 1000,
    }
    memory = properties["devices"]["properties"]["memory"]["pattern"]
    assert re.search(memory, "512Mi") and not re.search(memory, "10 GB") and not re.search(memory, "10Gi0")
    assert properties["image"]["properties"]["pull"] == {"enum": ["IfNotPresent", "Always", "Never"]}


def test_the_parties_get_the_paths_of_their_pods(files):
    coordinator = decode(CoordinatorSettings, parse_toml(files["settings/coordinator.toml"].encode(), ""))
    assert (coordinator.folder, coordinator.enrolled, coordinator.devices) == (
        "/runs",
        "/enrolled",
        "/records",
    )
    assert coordinator.broker.host == "lab-broker" and coordinator.metrics_host == "0.0.0.0"
    groups = json.loads(files["settings/groups.json"])
    assert sorted(name for group in groups for name in group) == sorted(
        chart_of().federation.experiment.shards
    )
    for i, group in enumerate(groups):
        for j, name in enumerate(group):
            text = files[f"settings/devices/{i}/{name}.toml"]
            device = decode(DeviceSettings, parse_toml(text.encode(), ""))
            assert (device.name, device.folder) == (name, f"/state/devices/{name}")
            assert device.broker.tls.key == f"/keys/{name}/current/tls.key"
            assert device.metrics_port == 9101 + j and device.board.shared_by == len(group)
            assert device.durable and not device.stays


def test_the_paths_of_the_settings_are_mounted_in_the_pods(files):
    for folder in ("/runs", "/enrolled/current", "/records", "/settings", "/keys", "/state", "/tmp"):
        assert f"mountPath: {folder}," in TEMPLATE or f"mountPath: {folder}}}" in TEMPLATE
    conf = files["settings/mosquitto.conf"]
    assert "keyfile /broker/current/tls.key" in conf and "mountPath: /broker/current," in TEMPLATE
    assert "persistence_location /state/data/" in conf and "mountPath: /state/data}" in TEMPLATE


def test_a_coordinator_with_a_queue_names_no_run_and_its_devices_stay(files):
    queue = chart_of(queue=True).files()
    settings = parse_toml(queue["settings/coordinator.toml"].encode(), "")
    service = ServiceSettings.of(settings)
    assert service.of_run("other", queue["run.toml"]).rounds == 1
    device = decode(DeviceSettings, parse_toml(queue["settings/devices/0/mfeat.toml"].encode(), ""))
    assert device.stays and "run.toml" not in files


def test_devices_of_a_statefulset_stay_after_the_end_of_a_run():
    claims = chart_of(claims=True).files()
    assert "stays = true" in claims["settings/devices/0/mfeat.toml"]


def test_the_exit_codes_that_fail_the_job_are_the_final_codes_of_the_product():
    codes = re.search(r"FailJob\n.*\n.*values: \[(.*)\]", TEMPLATE)[1]
    assert [int(code) for code in codes.split(", ")] == [MISUSED, DIVERGED, BUDGET_SPENT]


def test_a_run_has_a_patience_of_one_day_unless_its_settings_have_another_value():
    experiment = decode(Experiment, TABLE)
    assert patient(experiment, TABLE, []).effective_policy.patience_seconds == DAY
    assert patient(experiment, TABLE, []).effective_policy.quorum == 6
    named = "policy.patience_seconds=60"
    own = decode(Experiment, {**TABLE, "policy": {"patience_seconds": 60}})
    assert patient(own, {**TABLE, "policy": {"patience_seconds": 60}}, []) is own
    assert patient(own, TABLE, [named]) is own


def test_data_in_a_claim_are_accepted():
    experiment = decode(Experiment, {**TABLE, "data": {"source": "folder", "root": "/data/a", "domain": "x"}})
    demand_pods_can_run(experiment, "pictures")
    with pytest.raises(SettingsError, match="needs files of 'folder'"):
        demand_pods_can_run(experiment, "")


def test_settings_that_are_too_large_for_a_configmap_are_refused():
    names = [f"{i:05}-{'n' * 250}" for i in range(5000)]
    with pytest.raises(SettingsError, match=r"has 1,\d+,\d+ bytes, and a ConfigMap takes 1,000,000; use"):
        chart_of(groups=1, classes=5000, data={"source": "folder", "root": "/data", "classes": names}).files()


def test_notes_and_description_say_that_the_chart_has_never_run(files):
    notes = files["templates/NOTES.txt"]
    assert notes.startswith("this chart has never run on a cluster. Not checked:\n")
    assert all(f"  {what}: {words}\n" in notes for what, words in NOT_CHECKED.items())
    assert "has never run on a cluster" in files["Chart.yaml"]


def test_pods_have_no_privileges_no_token_and_a_read_only_root():
    containers = len(re.findall(r"^ *- name: \w+\n *image:", TEMPLATE, re.MULTILINE))
    assert containers == TEMPLATE.count('include "protofleet.container"') == 5
    assert TEMPLATE.count('include "protofleet.pod"') == 4
    for words in ("runAsNonRoot: true", "readOnlyRootFilesystem: true", "drop: [ALL]", "type: RuntimeDefault",
                  "allowPrivilegeEscalation: false", "automountServiceAccountToken: false"):  # fmt: skip
        assert words in TEMPLATE


def test_no_file_of_a_chart_has_a_private_key(files):
    assert "PRIVATE" not in "".join(files.values())
    ignored = files[".helmignore"].splitlines()
    assert {"/secrets.sh", "/run.toml", "/keys", "*.key", "/root"} == {*ignored}


def test_the_script_puts_the_keys_of_each_group_into_its_secret_and_no_root_keys(files, tmp_path):
    chart = chart_of()
    write_chart(tmp_path / "chart", files)
    devices = [name for group in chart.federation.groups for name in group]
    fleet = enrol_federation(tmp_path / "my keys", "tiny", devices, ("lab-broker",))
    done = run_script(tmp_path / "chart" / "secrets.sh", fleet.folder, tmp_path)
    assert done.returncode == 0, done.stderr
    objects = tmp_path / "objects"
    assert len([*objects.iterdir()]) == len(secret_commands(chart.federation)) == 5
    for part in ("broker", "coordinator"):
        current = fleet.folder / part / "current"
        assert {path.name for path in (objects / f"lab-{part}").iterdir()} == {
            p.name for p in current.iterdir()
        }
    assert {path.stem for path in (objects / "lab-records").iterdir()} == {*devices, "coordinator"}
    for i, group in enumerate(chart.federation.groups):
        (unpacked := tmp_path / f"unpacked-{i}").mkdir()
        archive = objects / f"lab-devices-{i}" / "keys.tar.gz"
        subprocess.run(["tar", "-C", str(unpacked), "-xzf", str(archive)], check=True, timeout=60)
        assert sorted(path.name for path in unpacked.iterdir()) == sorted(group)
        for name in group:
            key = unpacked / name / "current" / "tls.key"
            assert key.read_bytes() == (fleet.folder_of(name) / "current" / "tls.key").read_bytes()
            assert key.stat().st_mode & 0o777 == 0o600
    secret = {path.read_bytes() for path in fleet.root.rglob("*.key")}
    assert not secret & {path.read_bytes() for path in objects.rglob("*") if path.is_file()}


def test_the_script_makes_no_secret_if_the_keys_of_a_device_are_missing(files, tmp_path):
    write_chart(tmp_path / "chart", files)
    fleet = enrol_federation(tmp_path / "keys", "tiny", ["mfeat"], ("lab-broker",))
    done = run_script(tmp_path / "chart" / "secrets.sh", fleet.folder, tmp_path)
    assert done.returncode == 2 and f"{fleet.folder} has no keys of" in done.stderr
    assert not (tmp_path / "objects").exists()


def test_an_archive_of_the_largest_group_fits_into_a_secret(tmp_path):
    """Measure two devices, because many take long to enrol; the keys are random and do not compress together."""
    fleet = enrol_federation(tmp_path / "keys", "t" * 64, ["a" * 64, "b" * 64], ("lab-broker",))
    words = ["tar", "-C", str(fleet.folder / "devices"), "--dereference", "-cz", *(n * 64 for n in "ab")]
    packed = subprocess.run(words, check=True, capture_output=True, timeout=60).stdout
    assert len(packed) / 2 * MOST_IN_GROUP < 1 << 20
    (record,) = {len(Path(fleet.root / "records" / f"{n * 64}.record").read_bytes()) for n in "ab"}
    assert record * MOST_DEVICES < 1 << 20


PAGE = (Path(__file__).parents[3] / "docs" / "kubernetes.md").read_text()


def test_the_page_begins_with_the_list_of_unchecked_parts():
    assert PAGE.startswith("# Kubernetes\n\n**This chart has never run on a cluster.**")
    rows = [f"| {what} | {words} |" for what, words in NOT_CHECKED.items()]
    assert "\n".join(rows) in PAGE.partition("\n## ")[0]


def test_the_page_lists_every_value():
    for table, part in encode(ChartValues()).items():
        keys = ", ".join(f"`{key}`" for key in part) if isinstance(part, dict) else "`true` adds"
        assert f"| `{table}` | {keys}" in PAGE
