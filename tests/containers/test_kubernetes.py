"""The commands of the chart's containers run with Docker on the product's images, until a run ends.

Docker is no cluster: it reads no Job and no NetworkPolicy. Users, modes, mounts and commands come from the chart.
"""

import json
import os
import time
import urllib.request
import uuid

import pytest

from protofleet.cli.main import main
from protofleet.coordinator.observe.rounds_file import read_rounds
from protofleet.federation.enrol.local_federation import enrol_federation
from protofleet.protocol.settings.reader import write_toml
from tests.containers.images import product, stand_in
from tests.containers.pods import Pods
from tests.deploy.kubernetes.fake_kubectl import run_script
from tests.engines.chart_tools import NoChartTools, chart_tools

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]

ROUNDS = 30  # More rounds than pass until a pod is killed.
PATIENCE = 300.0  # Seconds, on two cores that other programs use too.
RUN = {
    "name": "tiny", "rounds": ROUNDS, "method": {"name": "fedavg", "epochs": 1}, "network": {"name": "mlp"},
    "data": {"source": "digits", "samples": 60, "test_samples": 60, "size": 16},
    "devices": {"clients": {"mnist": 1, "optdigits": 1, "synth": 1}},
}  # fmt: skip


@pytest.fixture(scope="module")
def pods(engine, tmp_path_factory):
    """Return the pods of a chart, of which none runs yet."""
    folder = tmp_path_factory.mktemp("kubernetes")
    folder.chmod(0o755)  # The containers' user looks into the volumes.
    coordinator, device = product(engine, "coordinator", "demo")
    images = {"coordinator": coordinator, "device": device, "broker": stand_in(engine, "broker")}
    (folder / "tiny.toml").write_text(write_toml(RUN))
    words = [word for part, name in images.items() for word in ("--with", f"image.{part}={name}")]
    out = folder / "chart"
    command = ["kubernetes", str(folder / "tiny.toml"), "--out", str(out), "--name", "lab", "--groups", "2"]
    assert main([*command, *words]) == 0
    try:
        objects = chart_tools().render(out)["objects"]
    except NoChartTools as why:
        pytest.skip(f"the chart cannot be rendered: {why}")
    fleet = enrol_federation(folder / "keys", "tiny", RUN["devices"]["clients"], ("lab-broker",))
    done = run_script(out / "secrets.sh", fleet.folder, folder)
    assert done.returncode == 0, done.stderr
    found = Pods(engine, folder, f"pft{uuid.uuid4().hex[:8]}", objects, folder / "objects")
    engine.docker("network", "create", found.network)
    try:
        yield found
    finally:
        (folder / "containers.log").write_text(found.told())
        found.remove()
        engine.run("network", "rm", found.network)


def wait(pods, what, until, seconds=PATIENCE):
    deadline = time.monotonic() + seconds
    while not (found := until()):
        assert time.monotonic() < deadline, f"no {what} within {seconds} s; {pods.told()}"
        time.sleep(0.25)
    return found


def health(pods, pod):
    """Return the status of /health, which the chart's httpGet reads; 0 before the page is served."""
    try:
        with urllib.request.urlopen(f"http://{pods.address(pod)}:9100/health", timeout=10) as answer:
            return answer.status
    except OSError:
        return 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to the group of a pod")
def test_the_containers_of_the_chart_finish_a_run_although_a_device_pod_is_killed(pods):
    broker = pods.start("StatefulSet", "lab-broker")
    coordinator = pods.start("Job", "lab-coordinator")
    devices = [pods.start("Job", "lab-devices", index) for index in (0, 1)]
    run = pods.folder / "claims" / "lab-runs" / "tiny"

    def rounds():
        return read_rounds(run / "rounds.jsonl") if (run / "rounds.jsonl").exists() else []

    wait(pods, "round", rounds)
    groups = json.loads(pods.one("ConfigMap", "lab-groups")["data"]["groups.json"])
    assert [pods.engine.docker("exec", one, "ls", "/keys").split() for one in devices] == groups
    assert health(pods, coordinator) == 200
    wait(pods, "readiness", lambda: pods.exec_probe(devices[0], "Job", "lab-devices").returncode == 0)
    pods.engine.docker("kill", "--signal", "KILL", devices[1])
    before = len(rounds())
    assert before < ROUNDS, "the run was over before a pod was killed"
    devices[1] = pods.start("Job", "lab-devices", 1, attempt=1)
    codes = wait(
        pods, "end of the run", lambda: [pods.exit_code(one) for one in (coordinator, *devices)].count(0) == 3
    )
    assert codes and pods.exit_code(broker) is None
    summary = json.loads((run / "summary.json").read_text())
    assert summary["rounds"] == ROUNDS and all(len(row["participants"]) == 3 for row in rounds()[:-1])
    claim = pods.folder / "claims" / "lab-devices"
    assert {path.name for path in (claim / "devices").iterdir()} == {*RUN["devices"]["clients"]}
    assert {path.name for path in (claim / "logs").glob("*.log")} == {"devices-0.log", "devices-1.log"}
    assert not list(claim.rglob("*.key")) and not list((claim.parent / "lab-runs").rglob("*.key"))
