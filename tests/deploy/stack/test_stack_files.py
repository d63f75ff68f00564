"""`make up` writes files before any container starts."""

import json
import os
import stat
from pathlib import Path

import pytest

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.service_settings import ServiceSettings
from protofleet.deploy.images.__main__ import main as build_images
from protofleet.deploy.images.build import TARGETS, Build, build_context, packages_without_torch, with_pins
from protofleet.deploy.stack.__main__ import main, with_devices
from protofleet.deploy.stack.edited_files import copy_unless_edited, say_what_stays
from protofleet.deploy.stack.layout import MAX_DEVICE_CONTAINERS, Stack
from protofleet.deploy.stack.prepare import prepare
from protofleet.edge_client.config import DeviceSettings
from protofleet.lab.local.experiment import Experiment
from protofleet.protocol.settings.reader import SettingsError, decode, read_toml, write_toml
from protofleet.runtime.command.errors import RunError

TABLE = {"name": "tiny", "rounds": 1, "method": {"name": "fedavg"}, "data": {"source": "digits"}}


def experiment(**more):
    return decode(Experiment, {**TABLE, **more})


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    made = Stack(tmp_path_factory.mktemp("stack") / "s", with_devices(experiment(), 3))
    prepare(made)
    return made


def test_devices_are_distributed_over_the_domains():
    assert list(with_devices(experiment(), 2).shards) == ["mnist", "optdigits"]
    assert len(with_devices(experiment(), 20).shards) == 20
    assert max(with_devices(experiment(), 20).devices.clients.values()) == 4
    with pytest.raises(SettingsError, match="devices is -1, it must be at least 1"):
        with_devices(experiment(), -1)


def test_the_settings_of_each_party_have_the_paths_of_its_container(stack):
    told = decode(CoordinatorSettings, read_toml(stack.settings_file("coordinator")))
    assert (told.folder, told.devices, told.broker.host) == (
        "/protofleet/state",
        "/protofleet/records",
        "broker",
    )
    for name in stack.devices:
        device = decode(DeviceSettings, read_toml(stack.settings_file(name)))
        assert device.enrolled == "/protofleet/enrolled" and device.stays and device.metrics_port == 9100
        assert device.metrics_host == told.metrics_host == "0.0.0.0"
        assert device.broker.tls.key == "/protofleet/enrolled/current/tls.key"
        assert (stack.federation.folder_of(name) / "current" / "tls.key").exists()


def test_the_settings_of_the_coordinator_list_the_devices_of_each_domain(tmp_path):
    made = experiment(devices={"clients": {"mnist": 2, "synth": 1}})
    assert made.devices_by_domain == {"mnist": ("mnist-1", "mnist-2"), "synth": ("synth",)}
    assert experiment(devices={"count": 2}).devices_by_domain == {"digits": ("device-1", "device-2")}
    prepare(stack := Stack(tmp_path / "s", made))
    told = decode(CoordinatorSettings, read_toml(stack.settings_file("coordinator")))
    assert told.limits.domains == made.devices_by_domain


def test_private_files_have_mode_0600(stack):
    private = [p for p in stack.folder.rglob("*") if p.suffix == ".key" or p.name == "password"]
    assert len(private) > 15
    for path in private:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    told = (stack.folder / "compose.env").read_text() + (stack.folder / "devices.yaml").read_text()
    assert "PRIVATE" not in told and (stack.folder / "grafana" / "password").read_text() not in told


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
def test_files_belong_to_the_user_of_the_containers_except_the_root_of_the_federation(stack):
    assert (stack.federation.folder_of("mnist") / "current" / "tls.key").stat().st_uid == 10001
    assert {p.stat().st_uid for p in stack.federation.root.rglob("*")} == {0}


def test_the_targets_of_prometheus_list_the_address_of_each_device(stack):
    told = json.loads((stack.folder / "prometheus" / "targets" / "devices.json").read_text())
    services = json.loads((stack.folder / "devices.yaml").read_text())["services"]
    assert [t["labels"]["device"] for t in told] == stack.devices
    assert {t["targets"][0] for t in told} == {f"{name}:9100" for name in services}


def test_a_stack_that_is_prepared_again_keeps_its_keys(stack):
    key = stack.federation.folder_of("mnist") / "current" / "tls.key"
    password, before = (stack.folder / "grafana" / "password").read_text(), key.read_bytes()
    prepare(stack)
    assert key.read_bytes() == before and (stack.folder / "grafana" / "password").read_text() == password


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """Return a function that puts a program in the place of docker; it notes its arguments and runs `script`."""

    def make(script):
        path = tmp_path / "bin" / "docker"
        path.parent.mkdir()
        path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n{script}\n')
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)
        return lambda: (tmp_path / "asked").read_text()

    return make


@pytest.fixture
def finished(tmp_path):
    """Return the command's arguments that are the same for each run of a stack whose first run has ended."""
    words = [
        "--folder",
        str(tmp_path / "s"),
        "--built",
        str(tmp_path / "none"),
        "--experiment",
        str(tmp_path / "e"),
    ]
    (tmp_path / "e").write_text(write_toml(TABLE))
    return words


def test_another_method_keeps_results_keys_and_metrics_of_the_earlier_run(finished, docker, tmp_path, capsys):
    asked, folder = docker("exit 0"), tmp_path / "s"
    assert main(["up", *finished]) == 0
    run, key = (
        folder / "state" / "coordinator" / "tiny",
        folder / "enrolled" / "coordinator" / "current" / "tls.key",
    )
    metrics, before = folder / "state" / "prometheus" / "block", key.read_bytes()
    metrics.write_text("samples")
    (run / "rounds.jsonl").write_text("{}\n")
    assert main(["up", *finished]) == 0 and " down " not in asked(), "a run with the same settings continues"
    assert main(["up", *finished, "--set", "method.name=fedprox"]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"stack: {run} holds an unfinished run with other settings") and "FRESH=1" in said
    (run / "summary.json").write_text("{}")
    assert main(["up", *finished, "--set", "method.name=fedprox"]) == 0
    aside = run.with_name("tiny.1")
    assert f"are now in {aside}" in capsys.readouterr().out and " down " in asked()
    assert {path.name for path in aside.iterdir()} == {"rounds.jsonl", "summary.json", "experiment.toml"}
    assert read_toml(aside / "experiment.toml")["method"]["name"] == "fedavg"
    assert (
        read_toml(run / "experiment.toml")["method"]["name"] == "fedprox"
        and not (run / "summary.json").exists()
    )
    assert key.read_bytes() == before and metrics.read_text() == "samples"
    assert main(["up", *finished, "--set", "method.name=fedprox", "--fresh"]) == 0
    assert run.with_name("tiny.2").exists(), "--fresh moves the unfinished run"


def test_an_unfinished_run_continues_with_another_budget_in_new_containers(finished, docker, tmp_path):
    asked = docker('case "$*" in *"ps --status running"*) echo id ;; esac')
    assert main(["up", *finished, "--set", "budget.bytes_per_device=10 MB"]) == 0
    before, more = len(asked()), [*finished, "--set", "budget.bytes_per_device=20 MB"]
    assert main(["check", *more]) == 0 and main(["up", *more]) == 0
    assert " down " in asked()[before:], "the containers get the new settings"
    run = tmp_path / "s" / "state" / "coordinator" / "tiny"
    assert not run.with_name("tiny.1").exists()
    assert read_toml(run / "experiment.toml")["budget"]["bytes_per_device"] == 20_000_000
    (run / "summary.json").write_text("{}")
    assert main(["up", *finished, "--set", "budget.bytes_per_device=30 MB"]) == 0
    assert run.with_name("tiny.1").exists(), "a run that has ended does not continue"


def test_the_run_of_an_experiment_can_be_submitted_to_a_stack_with_a_queue(
    finished, docker, tmp_path, capsys
):
    asked = docker('case "$*" in *"ps --status running"*) echo id ;; esac')
    assert main(["up", *finished]) == 0
    before, folder = len(asked()), tmp_path / "s"
    one = decode(CoordinatorSettings, read_toml(folder / "settings" / "coordinator.toml"))
    assert main(["check", *finished, "--queue"]) == 0 and main(["up", *finished, "--queue"]) == 0
    assert " down " in asked()[before:], "the run continues after it is submitted"
    said = capsys.readouterr().out
    assert f"protofleet submit {folder}/run.toml --service {folder}/state/coordinator" in said
    service = ServiceSettings.of(read_toml(folder / "settings" / "coordinator.toml"))
    assert service.of_run("tiny", (folder / "run.toml").read_text()) == one
    before = len(asked())
    assert main(["up", *finished, "--queue"]) == 0 and " down " not in asked()[before:], "the queue continues"
    assert main(["follow", *finished, "--queue"]) == 1
    assert "use `protofleet follow` with the folder of a run" in capsys.readouterr().err
    assert main(["up", *finished]) == 0 and " down " in asked()[before:], "the coordinator gets one run again"


def test_another_experiment_ends_a_running_one_only_with_fresh(finished, docker, tmp_path, capsys):
    asked, other = (
        docker('case "$*" in *"ps --status running"*) echo id ;; esac'),
        [*finished, "--set", "name=other"],
    )
    assert main(["up", *finished]) == 0
    before = asked()
    for command in ("check", "up"):
        capsys.readouterr()
        assert main([command, *other]) == 1
        said = capsys.readouterr().err
        assert "the run tiny still runs in" in said and "FRESH=1" in said and "make down" in said
        assert " down " not in asked()[len(before) :]
    assert main(["up", *other, "--fresh"]) == 0 and " down " in asked()[len(before) :]
    assert "the run tiny is ended" in capsys.readouterr().out
    (tmp_path / "s/state/coordinator/other/summary.json").write_text("{}")
    assert main(["up", *finished, "--set", "name=third"]) == 0, "a run that has ended blocks no other run"


def test_the_health_check_of_the_broker_has_keys_but_no_device_record(stack):
    records = {path.stem for path in (stack.federation.root / "records").glob("*.record")}
    assert records == {"coordinator", *stack.devices}
    assert (stack.federation.folder_of("broker") / "probe" / "tls.crt").exists()


@pytest.mark.parametrize("running", ["", "0123abc"])
def test_a_running_prometheus_reloads_its_settings(finished, docker, running):
    asked = docker(f'case "$*" in *" ps "*) echo {running};; esac')
    assert main(["up", *finished]) == 0
    assert ("exec -T prometheus sh -c kill -HUP 1" in asked()) == bool(running) and " kill --" not in asked()


def test_a_run_with_another_name_has_its_own_folder_in_the_same_federation(finished, docker, tmp_path):
    asked, folder = docker("exit 0"), tmp_path / "s"
    assert main(["up", *finished]) == 0
    assert main(["up", *finished, "--set", "name=other"]) == 0 and " down " in asked()
    told = decode(CoordinatorSettings, read_toml(folder / "settings" / "coordinator.toml"))
    assert (told.name, told.federation) == ("other", "tiny")
    assert "FEDERATION=tiny" in (folder / "compose.env").read_text()
    device = decode(DeviceSettings, read_toml(folder / "settings" / "mnist.toml"))
    assert device.federation == "tiny"
    assert {path.name for path in (folder / "state" / "coordinator").iterdir()} == {"tiny", "other"}


def test_an_edited_file_stays_and_its_new_version_is_written_as_dot_new(tmp_path, capsys):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    (ours / "a.yml").write_text("first")
    (ours / "b.yml").write_text("first")
    assert copy_unless_edited(ours, theirs) == []
    (theirs / "a.yml").write_text("edited")
    (theirs / "own.yml").write_text("added")
    assert copy_unless_edited(ours, theirs) == [] and (theirs / "a.yml").read_text() == "edited"
    for path in ours.iterdir():
        path.write_text("second")
    for _ in "twice":
        say_what_stays(copy_unless_edited(ours, theirs))
        assert (
            "a.yml was edited and is not changed; the new version is a.yml.new in the same folder"
            in capsys.readouterr().err
        )
    assert (theirs / "a.yml").read_text() == "edited" and (theirs / "b.yml").read_text() == "second"
    assert (theirs / "a.yml.new").read_text() == "second" and (theirs / "own.yml").read_text() == "added"
    (theirs / "a.yml").unlink()
    assert copy_unless_edited(ours, theirs) == [] and (theirs / "a.yml").read_text() == "second"
    assert not (theirs / "a.yml.new").exists()


def test_settings_of_prometheus_that_an_operator_has_edited_are_not_overwritten(stack):
    folder = stack.folder / "prometheus"
    (folder / "own" / "alertmanagers.yml").write_text('- targets: ["alertmanager:9093"]\n')
    (folder / "prometheus.yml").write_text((folder / "prometheus.yml").read_text() + "# of mine\n")
    prepare(stack)
    assert (folder / "prometheus.yml").read_text().endswith("# of mine\n")
    assert [path.name for path in (folder / "own").iterdir()] == ["alertmanagers.yml"]


NO_ENGINE = 'case "$1 $2" in "version "*) echo "Cannot connect to the Docker daemon" >&2; exit 1;; esac'


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            None,
            "there is no docker on this machine: install Docker with its compose and buildx plugins; `make demo`",
        ),
        ('[ "$1" != compose ]', "docker has no compose plugin; install docker-compose-plugin"),
        (NO_ENGINE, "the Docker engine does not answer (Cannot connect to the Docker daemon): start it"),
        ('case "$*" in *" up "*) exit 1;; esac', "the stack did not start; docker's output is above"),
    ],
)
def test_a_missing_or_failing_docker_is_reported_in_one_line_with_the_fix(
    finished, docker, tmp_path, monkeypatch, capsys, script, said
):
    if script is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        docker(script)
    assert main(["up", *finished]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"stack: {said}")
    assert "`docker login` for its registry" in line or "did not start" not in line


def test_a_failed_image_build_is_reported_in_one_line_with_the_fix(docker, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["images", "build", "edge", "--built", str(tmp_path / "ids")])
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        assert build_images() == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("images: there is no docker on this machine")
    docker('[ "$1" != build ]')
    assert build_images() == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert "docker failed to build protofleet/edge" in said and "set the proxy of the Docker engine" in said
    assert "BASE=name selects another base image" in said


def test_a_large_fleet_shares_one_container(tmp_path):
    many = Stack(tmp_path / "s", with_devices(experiment(), MAX_DEVICE_CONTAINERS + 1))
    prepare(many)
    ((name, told),) = json.loads((many.folder / "devices.yaml").read_text())["services"].items()
    assert name == "fleet" and told["command"] == ["fleet", "/protofleet/devices"]
    device = decode(DeviceSettings, read_toml(many.settings_file(many.devices[-1])))
    assert device.enrolled == f"/protofleet/devices/{many.devices[-1]}/enrolled"
    assert device.metrics_port == 9100 + len(many.devices)
    ports = {decode(DeviceSettings, read_toml(many.settings_file(d))).metrics_port for d in many.devices}
    assert len(ports) == len(many.devices)


def test_a_missing_stack_and_an_unknown_setting_are_reported_in_one_line(tmp_path, capsys):
    assert main(["down", "--folder", str(tmp_path)]) == 1
    assert "there is no stack in" in capsys.readouterr().err
    assert main(["up", "--folder", str(tmp_path / "s"), "--with", "GRAFANA=no"]) == 1
    assert "there is no setting 'GRAFANA'" in capsys.readouterr().err


def test_a_build_context_holds_sources_and_locks_and_nothing_else(tmp_path):
    (tmp_path / "torch-1.whl").write_text("x")
    with build_context([tmp_path]) as context:
        assert {p.name for p in context.iterdir()} == {
            "source",
            "locks",
            "wheels",
            "Dockerfile",
            "jetson.Dockerfile",
        }
        assert [p.name for p in (context / "wheels").iterdir()] == ["torch-1.whl"]
        assert {p.name for p in (context / "source").iterdir()} >= {"deploy", "protocol", "pyproject.toml"}
        assert not list(context.rglob("__pycache__")) and not list(context.rglob("*.key"))
    assert not context.exists()


def test_only_locked_packages_can_be_pinned_to_another_version():
    assert (
        with_pins("numpy==1\ntorch==2.13.0\ntorchvision==1; x\n", [("torch", "2.7.1")]).splitlines()[1]
        == "torch==2.7.1"
    )
    assert with_pins("numpy==1; a\nnumpy==2; b\n", [("numpy", "3")]) == "numpy==3; a\nnumpy==3; b\n"
    with pytest.raises(RunError, match="the package 'nmpy' cannot be pinned"):
        with_pins("numpy==1\n", [("nmpy", "2")])


def test_the_list_of_packages_without_torch_has_no_torch():
    assert packages_without_torch() and not [
        line for line in packages_without_torch() if line.startswith("torch")
    ]


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_build_is_one_docker_command(target, tmp_path):
    words = Build(target, base="b@sha256:1", torch_index="", platform="linux/arm64").command(tmp_path)
    assert words[:2] == ["docker", "build"] and words[-1] == str(tmp_path)
    assert {"BASE=b@sha256:1", "TORCH_INDEX=", "linux/arm64", f"protofleet/{target}"} <= set(words)
    assert ("jetson.Dockerfile" in " ".join(words)) == (target == "edge-jetson")


def test_a_jetson_image_without_a_base_image_is_refused():
    from protofleet.deploy.images.build import build

    with pytest.raises(RunError, match="edge-jetson has no default base image"):
        build(Build("edge-jetson"))


def test_image_and_compose_files_have_no_settings_of_the_build_machine():
    folder = Path(__file__).parents[3] / "deploy"
    for path in (*folder.glob("images/*"), *folder.glob("compose/**/*.y*ml")):
        if path.is_file():
            assert not any(
                word in path.read_text() for word in ("SSL_CERT", "PIP_CERT", "index-url file:")
            ), path
