"""A fleet's plug-ins are shipped with the wheels under the root's manifest and allowed by hash in signed settings."""

import pytest
import tomllib

from protofleet.deploy.fleet.control_plane import ControlPlane
from protofleet.deploy.fleet.device.verify import MANIFEST
from protofleet.deploy.fleet.manifest import files_of
from protofleet.deploy.fleet.settings import read_fleet
from protofleet.deploy.fleet.software import Releases
from protofleet.edge_client.config import DeviceSettings
from protofleet.federation.enrol.authority import make_authority
from protofleet.protocol.settings.reader import SettingsError, decode
from tests.deploy.fleet.boards import jetson
from tests.deploy.fleet.test_signed_releases import our_wheel
from tests.support.plug_ins import block, sha256

CODE = block("adding-a-method.md", "fedexp")
FLEET = """
root = "root"
[software]
wheels = "wheels"
dependencies = "system"
[device]
broker = {{ host = "broker.example" }}
data = {{ source = "digits" }}
[device.plugins]
files = ["fedexp.py"]
[hosts.board-1]
address = "board.example"
[hosts.coordinator]
address = "coordinator.example"
role = "coordinator"
[coordinator]
name = "spring"
rounds = 3
classes = 10
method = {{ file = "{method}" }}
metrics_host = "10.0.0.1"
plugins = {{ files = ["fedexp.py"] }}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    make_authority(folder / "root", "lab", 10)
    our_wheel(folder / "wheels")
    return folder


def control(place, number, code=CODE, method="fedexp.py"):
    (place / "fedexp.py").write_text(code)
    (place / "fleet.toml").write_text(FLEET.format(method=method))
    fleet = read_fleet(place / "fleet.toml")
    return ControlPlane(fleet, Releases(fleet, place / f"releases-{number}"), lambda name, fingerprint: True)


def test_plug_ins_are_shipped_with_the_wheels_and_allowed_by_hash_in_the_settings(place):
    made = control(place, 1)
    release = made.desired.release("board-1")
    listed = files_of(made.signer.release_folder(release))
    assert listed["fedexp.py"] == sha256(CODE) and (release.folder / MANIFEST).exists()
    table = tomllib.loads(made.desired.text("board-1"))
    there = f"/opt/protofleet/wheels/{release.name}/fedexp.py"
    assert table["plugins"] == {"files": [there], "allow": [sha256(CODE)]}
    assert decode(DeviceSettings, table).plugins.allow == (sha256(CODE),)
    own = tomllib.loads(made.desired.text("coordinator"))
    there = f"/opt/protofleet-coordinator/wheels/{made.desired.release('coordinator').name}/fedexp.py"
    assert own["method"]["file"] == there and own["plugins"]["files"] == [there]
    assert str(place) not in made.desired.text("coordinator") + made.desired.text("board-1")


def test_a_changed_plug_in_gives_another_release_and_other_settings(place):
    one = control(place, 2).desired.target("board-1", jetson()).desired
    other = control(place, 3, CODE + "# changed\n").desired.target("board-1", jetson()).desired
    (place / "fedexp.py").write_text(CODE)
    assert one.release != other.release and one.settings != other.settings


def test_a_release_without_plug_ins_has_another_name(place):
    made = control(place, 4)
    plain = made.fleet.device.pop("plugins")
    assert (
        Releases(made.fleet, place / "plain").of("board-1").name != made.desired.release("coordinator").name
    )
    assert plain["files"] == [str(place / "fedexp.py")]


def test_a_missing_plug_in_and_two_plug_ins_of_one_name_are_refused(place):
    made = control(place, 5)
    made.fleet.device["plugins"] = {"files": [str(place / "gone.py")]}
    with pytest.raises(SettingsError, match="gone.py: there is no such file"):
        made.desired.text("board-1")
    made.fleet.device["plugins"] = {"files": [str(place / "fedexp.py"), "/other/fedexp.py"]}
    with pytest.raises(SettingsError, match="two files with the name fedexp.py"):
        made.desired.text("board-1")
