"""The compose stack runs a federation to its end, whichever container is killed.

Prometheus has the metrics of the whole run, and every panel and every rule has data. One run serves all of these
tests, because the run takes most of the time.
"""

import json
import os
import re
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from protofleet.deploy.images.image_ids import read_ids
from protofleet.edge_client.host.sensors import Sensors
from protofleet.federation.brokers.ports import free_port
from protofleet.runtime.metrics_page import Endpoint, exposed
from tests.containers.drawing import page
from tests.containers.images import built_in, product, stand_in
from tests.containers.stacks import STEP, RunningStack
from tests.deploy.fleet.boards import jetson_files
from tools.monitoring.dashboards import DASHBOARDS

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3600)]
ROUNDS = 90  # Enough for several scrapes after the last kill; 30 rounds took 15 s.
VARIABLES = ("device", "domain", "view", "method")


@dataclass
class History:
    """A stack after its run, with its events and their times."""

    stack: RunningStack
    began: float
    first_round: float  # Seconds from `up` to the first completed round.
    killed: list[str]
    ended: float


@pytest.fixture(scope="module")
def history(engine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stack")
    words = [*stack_words(engine, name="short", rounds=ROUNDS), "--devices", "3"]
    stack = RunningStack(engine, folder / "stack", f"pft{uuid.uuid4().hex[:8]}", *words)
    try:
        lived = live_through(stack, board(engine, folder))
        draw(lived)
        yield lived
    finally:
        (folder / "containers.log").write_text(stack.told())
        stack.make("down", "--forget")


def stack_words(engine, **more):
    """Return the arguments of `make up`.

    They name our images, stand-ins for images that cannot be pulled, little work, and any free port.
    """
    images = dict(zip(("COORDINATOR_IMAGE", "DEVICE_IMAGE"), product(engine, "coordinator", "demo")))
    images |= {"BROKER_IMAGE": stand_in(engine, "broker"), "PROMETHEUS_IMAGE": stand_in(engine, "prometheus")}
    given = images | {"COMPOSE_PROFILES": "", "BROKER_PORT": "127.0.0.1:", "PROMETHEUS_PORT": "127.0.0.1:"}
    little = {"data.samples": 60, "data.test_samples": 60, "method.epochs": 1, "policy.quorum": 2}
    patient = {"policy.patience_seconds": 60, "policy.grace_seconds": 60}
    settings = {**little, **patient, **more}
    words = [word for key, value in given.items() for word in ("--with", f"{key}={value}")]
    words += ["--built", str(built_in(engine))]
    return words + [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def live_through(stack, hot):
    began = time.time()
    stack.make("up")
    stack.wait("first round", lambda: len(stack.rounds()) > 0)
    first = time.time() - began
    with hot(stack):
        killed = [kill_and_see_it_return(stack, name) for name in stack.containers()]
        stack.wait("end of the run", lambda: len(stack.rounds()) == ROUNDS + 1)
        over = time.time()
        stack.wait("scrape after the end", lambda: time.time() > over + 6)
        # Prometheus was killed last. It writes alerts again once it has restored them, some evaluations later.
        stack.wait("alert", lambda: stack.ask("query", query='ALERTS{alertname="Watchdog"}')["result"])
    return History(stack, began, first, killed, time.time() + STEP)  # The last points are on a query's grid.


def kill_and_see_it_return(stack, name):
    started = stack.state(name)["State"]["StartedAt"]
    with stack.held(beside=name):  # Otherwise the run ends before everything was killed.
        stack.kill(name)
        stack.wait(f"return of {name}", lambda: stack.state(name)["State"]["StartedAt"] != started)
        before = len(stack.rounds())
    assert before < ROUNDS, f"the run was over before {name} was killed"
    stack.wait(f"round after {name} was killed", lambda: len(stack.rounds()) > before)
    return name


def board(engine, folder):
    """Return a function that adds a target by a file: a board with thermal zones.

    This machine need not have thermal zones.
    """
    registry, port = CollectorRegistry(), free_port()
    registry.register(Sensors(jetson_files(folder / "board")))

    def join(stack):
        network = json.loads(engine.docker("network", "inspect", f"{stack.name}_stack"))[0]
        gateway = network["IPAM"]["Config"][0]["Gateway"]
        target = [{"targets": [f"{gateway}:{port}"], "labels": {"device": "board-9"}}]
        (stack.folder / "prometheus" / "targets" / "more.json").write_text(json.dumps(target))
        return exposed(registry, Endpoint("0.0.0.0", port))

    return join


def draw(history):
    """Write a page for each dashboard, and the figures, for people.

    The command is `PROTOFLEET_PICTURES=DIR make test-containers`.
    """
    if not (folder := os.environ.get("PROTOFLEET_PICTURES")):
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, dashboard in DASHBOARDS.items():
        drawn = page(
            dashboard(), lambda query: history.stack.series(filled(query), history.began, history.ended)
        )
        (Path(folder) / f"{name}.html").write_text(drawn)
    memory = history.stack.engine.docker("stats", "--no-stream", "--format", "{{.Name}} {{.MemUsage}}")
    (Path(folder) / "figures.txt").write_text(f"first round after {history.first_round:.1f} s\n{memory}\n")


def filled(query):
    for variable in VARIABLES:
        query = query.replace(f"${variable}", ".*")
    return query.replace("$__rate_interval", "1m")


def test_the_run_has_all_rounds_although_every_container_was_killed(history):
    services = {name.removeprefix(history.stack.name) for name in history.killed}
    assert services == {
        "-broker-1",
        "-coordinator-1",
        "-prometheus-1",
        "-device-mnist-1",
        "-device-optdigits-1",
        "-device-mfeat-1",
    }
    rounds = history.stack.rounds()
    assert [r["round"] for r in rounds] == list(range(1, ROUNDS + 2))
    assert all(len(r["participants"]) >= 2 for r in rounds[:-1])
    name = f"{history.stack.name}-coordinator-1"
    history.stack.wait("coordinator's end", lambda: history.stack.state(name)["State"]["Status"] == "exited")
    state = history.stack.state(name)["State"]
    assert (state["Status"], state["ExitCode"]) == ("exited", 0), "a run that is over does not start again"


def test_a_finished_run_has_a_report_and_a_table(history):
    told = history.stack.make("follow")
    assert "report: " in told and "mean" in told
    assert (history.stack.folder / "state" / "coordinator" / "short" / "report.html").stat().st_size > 10_000


def test_containers_run_as_unprivileged_users_on_a_read_only_root(history):
    for name in history.stack.containers():
        found = history.stack.state(name)
        host = found["HostConfig"]
        assert found["Config"]["User"].split(":")[0] not in ("", "0", "root"), name
        assert (
            host["ReadonlyRootfs"]
            and host["CapDrop"] == ["ALL"]
            and host["Memory"] > 0
            and host["PidsLimit"] > 0
        )
        assert "no-new-privileges:true" in host["SecurityOpt"]
        assert host["LogConfig"]["Config"] == {"max-size": "10m", "max-file": "3"}, name


def test_no_key_is_in_an_image_or_in_an_environment(history, engine):
    told = " ".join(str(history.stack.state(name)["Config"]) for name in history.stack.containers())
    assert "PRIVATE KEY" not in told and "PASSWORD" not in told
    find = (
        "find",
        "/opt/protofleet",
        "/protofleet",
        "-name",
        "*.key",
        "-o",
        "-name",
        "*.pem",
        "-path",
        "*protofleet/*",
    )
    listed = engine.docker("run", "--rm", "--entrypoint", find[0], "protofleet/demo", *find[1:]).splitlines()
    assert [path for path in listed if not path.endswith("certifi/cacert.pem")] == []


def test_keys_are_readable_only_for_their_owner_and_the_root_is_not_mounted(history):
    keys = list((history.stack.folder / "enrolled").rglob("*.key"))
    assert len(keys) > 10 and all(path.stat().st_mode & 0o077 == 0 for path in keys)
    root = history.stack.folder / "enrolled" / "root"
    mounted = " ".join(str(history.stack.state(name)["Mounts"]) for name in history.stack.containers())
    assert f"{root}/roots" not in mounted and f'"{root}"' not in mounted, "the root stays with the operator"
    assert (history.stack.folder / "enrolled/broker/probe").exists()
    assert sorted(p.name for p in (history.stack.folder / "enrolled/broker/probe").iterdir()) == [
        "ca.crt",
        "tls.crt",
        "tls.key",
    ]


def test_project_images_run_by_their_built_id_and_other_images_are_refused(history, engine):
    stack, built = history.stack, read_ids(built_in(engine))
    for name, image in (("coordinator", "coordinator"), ("device-mnist", "demo")):
        found, wanted = stack.state(f"{stack.name}-{name}-1"), built[f"protofleet/{image}"]
        assert found["Image"] == found["Config"]["Image"] == wanted
    moved = stack.folder.parent / "moved.json"
    moved.write_text(json.dumps({**built, "protofleet/demo": built["protofleet/coordinator"]}))
    before = sorted((stack.folder / "compose.env").read_text().splitlines())
    done = stack.run("up", "--built", str(moved))
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "stack: protofleet/demo is not the image that was built here: its id is sha256:" in done.stderr
    assert sorted((stack.folder / "compose.env").read_text().splitlines()) == before


def test_the_health_check_of_a_device_passes(history):
    container = f"{history.stack.name}-device-mnist-1"
    told = history.stack.engine.docker("exec", container, "protofleet", "health", "/protofleet/settings.toml")
    assert told.splitlines() == ["PASS loop", "PASS broker", "PASS hello", "PASS torch", "PASS disk"]
    history.stack.wait(
        "healthy device", lambda: history.stack.state(container)["State"]["Health"]["Status"] == "healthy", 60
    )


def test_prometheus_has_the_bytes_that_the_coordinator_has_recorded(history):
    """The coordinator was killed once, so its counters were reset. The test compares gauges of the last rounds."""
    for direction, kinds in history.stack.rounds()[-2]["payload"].items():
        for kind, size in kinds.items():
            query = f'protofleet_round_bytes{{direction="{direction}", kind="{kind}"}}'
            found = history.stack.series(query, history.began, history.ended)
            assert size in {float(value) for series in found for _, value in series["values"]}, (
                direction,
                kind,
            )


def queries():
    for name, dashboard in DASHBOARDS.items():
        for panel in dashboard()["panels"]:
            for target in panel["targets"]:
                yield pytest.param(target["expr"], id=f"{name}: {panel['title']} {target['refId']}")


@pytest.mark.parametrize("query", list(queries()))
def test_every_panel_has_data(history, query):
    found = history.stack.series(filled(query), history.began, history.ended)
    numbers = [
        value for series in found for _, value in series["values"] if value not in ("NaN", "+Inf", "-Inf")
    ]
    assert numbers, f"nothing to draw for {query}"


def test_every_dashboard_variable_has_values(history):
    for dashboard in DASHBOARDS.values():
        for variable in dashboard()["templating"]["list"]:
            if variable["type"] == "query":
                series, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]).groups()
                given = {"match[]": series, "start": str(history.began), "end": str(history.ended)}
                assert history.stack.ask(f"label/{label}/values", **given), variable["query"]


def test_only_the_watchdog_alert_fires(history):
    raised = {
        s["metric"]["alertname"]
        for s in history.stack.series('ALERTS{alertstate="firing"}', history.began, history.ended)
    }
    assert "Watchdog" in raised and raised <= {"Watchdog"}, raised


def test_every_rule_is_evaluated_and_its_metrics_exist(history):
    groups = history.stack.ask("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 20 and [r["name"] for r in rules if r["health"] != "ok"] == []
    for rule in rules:
        for name in set(re.findall(r"\bprotofleet[_:][\w:]+", rule["query"])):
            assert history.stack.series(name, history.began, history.ended), (
                f"{rule['name']}: there is no {name}"
            )


def test_devices_in_one_container_take_part_and_are_restarted_separately(engine, tmp_path):
    """The test uses the images of the run above.

    One process is killed, and only that one is started again.
    """
    words = [*stack_words(engine, name="many", rounds=8), "--devices", "2", "--together"]
    stack = RunningStack(engine, tmp_path / "stack", f"pft{uuid.uuid4().hex[:8]}", *words)
    try:
        stack.make("up")
        stack.wait("first round", lambda: len(stack.rounds()) > 0)
        fleet = f"{stack.name}-fleet-1"
        before = stack.processes(fleet, "optdigits")
        stack.kill_process(before[0])
        stack.wait("another process", lambda: set(stack.processes(fleet, "optdigits")) - set(before) != set())
        stack.wait("end of the run", lambda: len(stack.rounds()) == 9)
        assert stack.state(fleet)["RestartCount"] == 0 and len(stack.processes(fleet, "mnist")) == 1
        stack.wait("healthy fleet", lambda: stack.state(fleet)["State"]["Health"]["Status"] == "healthy", 90)
    finally:
        stack.make("down", "--forget")
