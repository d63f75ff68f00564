"""The chart of `protofleet kubernetes` is rendered by Helm's own library and fits the schemas of Kubernetes."""

import copy
import gzip
import json

import pytest

from protofleet.cli.main import main
from tests.engines.chart_tools import NoChartTools, chart_tools, skip_or_fail

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

VERSIONS = ("1.28", "1.31", "1.34", "1.37")
# The words of the command -> values with which the chart is rendered.
ALL = {"metrics": {"monitor": True, "release": "prometheus"}, "results": True}
CHARTS = {
    "": {},
    "--groups 2": ALL,
    "--groups 3 --queue": ALL,
    "--groups 6 --claims --with data.claim=pictures --with image.secret=pull": ALL,
    "--queue --claims --with network.policies=false --with devices.storage_class=fast": {},
    "--with devices.cpu=500m --with image.broker=mosquitto@sha256:" + "0" * 64: {"coordinator": {"cpu": "2"}},
}


def set_at(value, *path):
    """Return a mistake: it sets the value at this path of an object."""

    def plant(found):
        *above, last = path
        for key in above:
            found = found[key]
        found[last] = value

    return plant


def drop(*path):
    def plant(found):
        *above, last = path
        for key in above:
            found = found[key]
        del found[last]

    return plant


POD = ("spec", "template", "spec")
# The object -> a possible mistake in its template.
MISTAKES = {
    ("Service", "broker"): set_at("8883", "spec", "ports", 0, "port"),
    ("ConfigMap", "broker"): set_at(8883, "data", "mosquitto.conf"),
    ("StatefulSet", "broker"): set_at([{"name": "broker", "image": 1}], *POD, "containers"),
    ("ConfigMap", "coordinator"): set_at({}, "data", "coordinator.toml"),
    ("PersistentVolumeClaim", "runs"): set_at("ReadWriteOnce", "spec", "accessModes"),
    ("Service", "coordinator"): set_at({"app": 1}, "spec", "selector"),
    ("StatefulSet", "coordinator"): set_at({"path": "/health"}, *POD, "containers", 0, "readinessProbe", "httpGet"),
    ("Job", "coordinator"): set_at("100", "spec", "backoffLimit"),
    ("ConfigMap", "groups"): set_at([["mnist"]], "data", "groups.json"),
    ("ConfigMap", "devices-0"): set_at("x", "dta"),
    ("Service", "devices"): set_at({"name": "device-0"}, "spec", "ports", 0),
    ("StatefulSet", "devices"): set_at(0.5, "spec", "replicas"),
    ("PersistentVolumeClaim", "devices"): set_at("10Gi", "spec", "resources"),
    ("Job", "devices"): set_at({"name": "mnist"}, *POD, "volumes"),
    ("NetworkPolicy", "parties"): set_at("53", "spec", "egress", 1, "ports", 0, "endPort"),
    ("NetworkPolicy", "broker"): set_at("Ingress", "spec", "policyTypes"),
    ("NetworkPolicy", "results"): set_at(["results"], "spec", "podSelector"),
    ("PodMonitor", ""): set_at(15, "spec", "podMetricsEndpoints", 0, "interval"),
    ("Pod", "results"): set_at(True, "spec", "containers", 0, "volumeMounts", 0, "mountPath"),
}  # fmt: skip


@pytest.fixture(scope="module")
def tools():
    found = chart_tools()
    try:
        found.problems([], VERSIONS)
    except NoChartTools as why:
        skip_or_fail(why)
    return found


@pytest.fixture(scope="module")
def rendered(tools, tmp_path_factory):
    """Return what Helm makes of each chart, by the words of the command."""
    found = {}
    for i, (words, values) in enumerate(CHARTS.items()):
        out = tmp_path_factory.mktemp("charts") / str(i)
        command = ["kubernetes", "experiments/demo.toml", "--name", "lab", "--out", str(out), *words.split()]
        assert main(command) == 0
        found[words] = tools.render(out, values)
    return found


def key_of(found):
    return found["kind"], found["metadata"]["name"].removeprefix("lab").removeprefix("-")


@pytest.mark.parametrize("words", CHARTS)
def test_helm_lints_and_renders_the_chart(rendered, words):
    result = rendered[words]
    assert not result["lint"] and not result["refused"] and len(result["objects"]) >= 10
    assert result["notes"].startswith("this chart has never run on a cluster")


@pytest.mark.parametrize("words", CHARTS)
def test_every_object_fits_the_schemas_of_four_versions(rendered, tools, words):
    objects = [one for one in rendered[words]["objects"] if one["kind"] != "PodMonitor"]
    found = tools.problems(objects, VERSIONS)
    assert [row for row in zip(map(key_of, objects), found, strict=True) if any(row[1])] == []


def every_object(rendered):
    """Return one object of each kind and name of all charts."""
    return {key_of(one): one for result in rendered.values() for one in result["objects"]}


def test_every_object_has_a_planted_mistake(rendered):
    groups = {("ConfigMap", f"devices-{i}") for i in range(1, 6)}  # These are made like the first one.
    assert every_object(rendered).keys() - groups == MISTAKES.keys()


@pytest.mark.parametrize("key", [key for key in MISTAKES if key[0] != "PodMonitor"], ids="-".join)
def test_a_planted_mistake_is_found_in_four_versions(rendered, tools, key):
    right = every_object(rendered)[key]
    wrong = copy.deepcopy(right)
    MISTAKES[key](wrong)
    whole, planted = tools.problems([right, wrong], VERSIONS)
    assert not any(whole) and all(planted)


@pytest.mark.parametrize("name", ["coordinator", "devices"])
def test_a_condition_without_its_status_is_found_in_versions_that_refuse_it(rendered, tools, name):
    wrong = copy.deepcopy(every_object(rendered)["Job", name])
    drop("spec", "podFailurePolicy", "rules", 0, "onPodConditions", 0, "status")(wrong)
    (found,) = tools.problems([wrong], ("1.28", "1.31", "1.34"))
    assert all("'status' is a required property" in problem for problem in found)


def test_the_pod_monitor_fits_the_schema_of_its_operator_and_a_mistake_is_found(rendered, tools):
    right = every_object(rendered)["PodMonitor", ""]
    wrong = copy.deepcopy(right)
    MISTAKES["PodMonitor", ""](wrong)
    try:
        assert tools.pod_monitor_problem(right) == ""
    except NoChartTools as why:
        skip_or_fail(why)
    assert (
        "interval" in tools.pod_monitor_problem(wrong)
        and right["metadata"]["labels"]["release"] == "prometheus"
    )


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"devices": {"memory": "10 GB"}}, "/devices/memory"),
        ({"coordinator": {"retries": 0}}, "/coordinator/retries"),
        ({"fleet": {"groups": 3}}, "/fleet/groups"),
        ({"image": {"pull": "always"}}, "/image/pull"),
        ({"devices": {"memry": "1Gi"}}, "memry"),
    ],
)
def test_helm_refuses_values_that_the_command_refuses(tools, tmp_path, values, problem):
    assert main(["kubernetes", "experiments/demo.toml", "--name", "lab", "--out", str(tmp_path / "c")]) == 0
    assert problem in tools.render(tmp_path / "c", values)["refused"]


def test_every_container_has_a_restricted_security_context_and_a_memory_limit(rendered):
    for found in every_object(rendered).values():
        if found["kind"] not in ("Job", "StatefulSet", "Pod"):
            continue
        pod = found["spec"] if found["kind"] == "Pod" else found["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            }  # fmt: skip
            assert container["resources"]["limits"]["memory"]


def test_a_chart_of_1000_devices_fits_into_the_secret_that_helm_writes(tools, tmp_path):
    """Helm packs the files of a chart and its objects together, and writes them in base64. A Secret holds 1 MiB."""
    words = ["--set", "devices.count=1000", "--groups", "20", "--name", "lab", "--out", str(tmp_path / "c")]
    assert main(["kubernetes", "experiments/demo.toml", *words]) == 0
    objects = tools.render(tmp_path / "c")["objects"]
    files = [path.read_text() for path in sorted((tmp_path / "c").rglob("*")) if path.is_file()]
    packed = gzip.compress(json.dumps([files, objects]).encode())
    assert len(packed) * 4 // 3 < 1 << 20 and len(objects) == 12 + 20
    assert max(len(json.dumps(one)) for one in objects) < 1 << 20
