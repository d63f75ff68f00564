"""What `make up` writes before any container starts."""

import json
import os
import stat
from pathlib import Path

import pytest

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.deploy.errors import RunError
from protofleet.deploy.images.build import TARGETS, Build, build_context, packages_without_torch, with_pins
from protofleet.deploy.local.experiment import Experiment
from protofleet.deploy.stack.__main__ import main, with_devices
from protofleet.deploy.stack.layout import MAX_DEVICE_CONTAINERS, Stack
from protofleet.deploy.stack.prepare import prepare
from protofleet.edge_client.config import DeviceSettings
from protofleet.protocol.settings.reader import SettingsError, decode, read_toml

TABLE = {"name": "tiny", "rounds": 1, "method": {"name": "fedavg"}, "data": {"source": "digits"}}


def experiment(**more):
    return decode(Experiment, {**TABLE, **more})


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    made = Stack(tmp_path_factory.mktemp("stack") / "s", with_devices(experiment(), 3))
    prepare(made)
    return made


def test_devices_are_dealt_out_over_the_domains():
    assert list(with_devices(experiment(), 2).shards) == ["mnist", "optdigits"]
    assert len(with_devices(experiment(), 20).shards) == 20
    assert max(with_devices(experiment(), 20).devices.clients.values()) == 4
    with pytest.raises(SettingsError, match="devices is -1, it must be at least 1"):
        with_devices(experiment(), -1)


def test_every_party_finds_its_settings_as_they_are_in_its_container(stack):
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


def test_the_coordinator_is_told_who_shares_a_domain(tmp_path):
    made = experiment(devices={"clients": {"mnist": 2, "synth": 1}})
    assert made.devices_by_domain == {"mnist": ("mnist-1", "mnist-2"), "synth": ("synth",)}
    assert experiment(devices={"count": 2}).devices_by_domain == {"digits": ("device-1", "device-2")}
    prepare(stack := Stack(tmp_path / "s", made))
    told = decode(CoordinatorSettings, read_toml(stack.settings_file("coordinator")))
    assert told.limits.domains == made.devices_by_domain


def test_private_files_are_for_their_owner_alone(stack):
    private = [p for p in stack.folder.rglob("*") if p.suffix == ".key" or p.name == "password"]
    assert len(private) > 15
    for path in private:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    told = (stack.folder / "compose.env").read_text() + (stack.folder / "devices.yaml").read_text()
    assert "PRIVATE" not in told and (stack.folder / "grafana" / "password").read_text() not in told


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
def test_what_root_writes_belongs_to_the_containers_user_except_the_operators_root(stack):
    assert (stack.federation.folder_of("mnist") / "current" / "tls.key").stat().st_uid == 10001
    assert {p.stat().st_uid for p in stack.federation.root.rglob("*")} == {0}


def test_prometheus_is_told_where_each_device_is(stack):
    told = json.loads((stack.folder / "prometheus" / "targets" / "devices.json").read_text())
    services = json.loads((stack.folder / "devices.yaml").read_text())["services"]
    assert [t["labels"]["device"] for t in told] == stack.devices
    assert {t["targets"][0] for t in told} == {f"{name}:9100" for name in services}


def test_the_same_stack_is_prepared_again_and_keeps_its_keys(stack):
    key = stack.federation.folder_of("mnist") / "current" / "tls.key"
    password, before = (stack.folder / "grafana" / "password").read_text(), key.read_bytes()
    prepare(stack)
    assert key.read_bytes() == before and (stack.folder / "grafana" / "password").read_text() == password


def test_a_folder_with_another_experiments_stack_is_not_touched(stack):
    with pytest.raises(SettingsError, match="FORGET=1"):
        prepare(Stack(stack.folder, experiment(rounds=2)))


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


def test_mistakes_are_one_line(tmp_path, capsys):
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


def test_another_version_can_be_pinned_and_only_of_what_is_there():
    assert (
        with_pins("numpy==1\ntorch==2.13.0\ntorchvision==1; x\n", [("torch", "2.7.1")]).splitlines()[1]
        == "torch==2.7.1"
    )
    assert with_pins("numpy==1; a\nnumpy==2; b\n", [("numpy", "3")]) == "numpy==3; a\nnumpy==3; b\n"
    with pytest.raises(RunError, match="there is no package 'nmpy'"):
        with_pins("numpy==1\n", [("nmpy", "2")])


def test_torch_is_in_no_list_that_is_installed_beside_it():
    assert packages_without_torch() and not [
        line for line in packages_without_torch() if line.startswith("torch")
    ]


@pytest.mark.parametrize("target", TARGETS)
def test_a_build_is_one_command(target, tmp_path):
    words = Build(target, base="b@sha256:1", torch_index="", platform="linux/arm64").command(tmp_path)
    assert words[:2] == ["docker", "build"] and words[-1] == str(tmp_path)
    assert {"BASE=b@sha256:1", "TORCH_INDEX=", "linux/arm64", f"protofleet/{target}"} <= set(words)
    assert ("jetson.Dockerfile" in " ".join(words)) == (target == "edge-jetson")


def test_a_jetson_image_wants_a_base_with_nvidias_torch():
    from protofleet.deploy.images.build import build

    with pytest.raises(RunError, match="edge-jetson has no base of its own"):
        build(Build("edge-jetson"))


def test_no_image_and_no_compose_file_knows_the_machine_it_was_written_on():
    folder = Path(__file__).parents[3] / "deploy"
    for path in (*folder.glob("images/*"), *folder.glob("compose/**/*.y*ml")):
        if path.is_file():
            assert not any(
                word in path.read_text() for word in ("SSL_CERT", "PIP_CERT", "index-url file:")
            ), path
