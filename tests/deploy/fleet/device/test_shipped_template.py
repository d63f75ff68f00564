"""The ONNX template of a fleet's boards is shipped with the release, under its manifest, and named by settings."""

import hashlib
import json

import pytest
import tomllib

from protofleet.deploy.fleet.control_plane import ControlPlane
from protofleet.deploy.fleet.manifest import files_of
from protofleet.deploy.fleet.settings import read_fleet
from protofleet.deploy.fleet.software import Releases
from protofleet.federation.enrol.authority import make_authority
from protofleet.protocol.settings.reader import SettingsError
from tests.deploy.fleet.boards import jetson
from tests.deploy.fleet.test_signed_releases import our_wheel

FLEET = """
root = "root"
[software]
{software}
[device]
broker = {{ host = "broker.example" }}
data = {{ source = "digits" }}
models = {{ template = "{template}" }}
[hosts.board-1]
address = "board.example"
[hosts.coordinator]
address = "coordinator.example"
role = "coordinator"
software = {{ kind = "venv", image = "", wheels = "wheels", dependencies = "system" }}
[coordinator]
name = "spring"
rounds = 3
classes = 10
metrics_host = "10.0.0.1"
"""
WHEELS = 'wheels = "wheels"\ndependencies = "system"'
IMAGE = f'kind = "container"\nimage = "example/protofleet@sha256:{"a" * 64}"'


@pytest.fixture
def place(tmp_path):
    make_authority(tmp_path / "root", "lab", 10)
    our_wheel(tmp_path / "wheels")
    write_template(tmp_path / "template", b"a graph")
    return tmp_path


def write_template(folder, graph, **card):
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").write_bytes(graph)
    said = {"offsets": {"w": {}}, "files": {"model.onnx": hashlib.sha256(graph).hexdigest()}} | card
    (folder / "card.json").write_text(json.dumps(said))


def control(place, template="template", software=WHEELS):
    (place / "fleet.toml").write_text(FLEET.format(template=template, software=software))
    fleet = read_fleet(place / "fleet.toml")
    made = place / f"releases-{len(list(place.iterdir()))}"
    return ControlPlane(fleet, Releases(fleet, made), lambda name, fingerprint: True)


def test_a_template_is_shipped_with_the_wheels_and_named_by_the_settings(place):
    made = control(place)
    release = made.desired.release("board-1")
    listed = files_of(made.signer.release_folder(release))
    assert listed["model.onnx"] == hashlib.sha256(b"a graph").hexdigest() and "card.json" in listed
    models = tomllib.loads(made.desired.text("board-1"))["models"]
    assert models["template"] == f"/opt/protofleet/wheels/{release.name}"
    assert "model.onnx" not in files_of(made.signer.release_folder(made.desired.release("coordinator")))
    assert str(place) not in made.desired.text("board-1")


def test_another_template_gives_another_release_and_other_settings(place):
    one = control(place).desired.target("board-1", jetson()).desired
    write_template(place / "template", b"another graph")
    other = control(place).desired.target("board-1", jetson()).desired
    assert one.release != other.release and one.settings != other.settings


@pytest.mark.parametrize("template, mounted", [("template", False), ("/etc/protofleet/mine", True)])
def test_a_container_gets_a_volume_only_for_a_template_outside_the_release(place, template, mounted):
    made = control(place, template, IMAGE)
    unit = made.desired.target("board-1", jetson()).unit
    there = tomllib.loads(made.desired.text("board-1"))["models"]["template"]
    assert (f"--volume {there}:{there}:ro" in unit) == mounted and str(place) not in unit
    assert there == template or there.startswith("/opt/protofleet/wheels/")


def test_a_template_that_is_already_on_the_boards_is_not_shipped(place):
    made = control(place, "/etc/protofleet/mine")
    assert tomllib.loads(made.desired.text("board-1"))["models"]["template"] == "/etc/protofleet/mine"
    assert "model.onnx" not in files_of(made.signer.release_folder(made.desired.release("board-1")))


def test_a_folder_that_is_no_template_is_refused(place):
    with pytest.raises(
        SettingsError, match="the folder .*/gone does not exist; `protofleet export RUN --template"
    ):
        control(place, "gone")
    for change, words in (
        ({"offsets": {}}, "has no offsets, because it was exported without --template"),
        (
            {"files": {"model.onnx": "00"}},
            "its model.onnx is not the file that its card.json was written for",
        ),
        ({"files": 3}, "its card.json is not a valid card of an export"),
    ):
        write_template(place / "template", b"a graph", **change)
        with pytest.raises(SettingsError, match=words):
            control(place).desired.text("board-1")
    (place / "template" / "model.onnx").unlink()
    with pytest.raises(SettingsError, match="model.onnx: No such file"):
        control(place).desired.text("board-1")
