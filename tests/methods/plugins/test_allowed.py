"""Tests that a party runs a plug-in of a plan only if its owner allows the hash, and else refuses in fixed words."""

import json
from dataclasses import fields, make_dataclass
from typing import get_type_hints

import pytest

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.edge_client.config import DeviceSettings
from protofleet.methods.contract.plan import Network, Plan, read_plan
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.methods.plugins.errors import PlugInError
from protofleet.methods.plugins.file import from_file
from protofleet.protocol.settings.reader import SettingsError, decode, encode
from tests.support.plug_ins import block, sha256
from tests.support.small_federation import simulation

CODE = block("adding-a-method.md", "fedexp")
HASH = sha256(CODE)
NETWORK = """from torch import nn
from protofleet.methods.nets.base import Net
from protofleet.methods.nets.own import network

def build(image, classes, feature_size):
    size = image[0] * image[1] * image[2]
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(size, 8), nn.ReLU()), 8, classes)

NETWORK = network(build, smallest=2)
"""
WORDS = f"the run's method fedexp is a plug-in with SHA-256 {HASH}"


@pytest.fixture
def place(tmp_path):
    (tmp_path / "fedexp.py").write_text(CODE)
    (tmp_path / "mynet.py").write_text(NETWORK)
    return tmp_path


@pytest.fixture
def plan(place):
    """Return the plan of a coordinator whose settings allow the plug-ins."""
    allowed = PlugIns((), (HASH, sha256(NETWORK)))
    return CoordinatorSettings(
        "run", 2, 3, {"file": str(place / "fedexp.py"), "epochs": 1}, size=8,
        network=Network(file=str(place / "mynet.py")), plugins=allowed,
    ).plan()  # fmt: skip


def test_a_plan_names_plug_ins_by_hash_without_paths_and_is_read_back_unchanged(plan, place):
    table = json.loads(plan.encode())
    assert table["plugins"] == {"method": HASH, "network": sha256(NETWORK)}
    assert table["network"].keys() == {"name", "head"} and str(place) not in plan.encode().decode()
    allowed = PlugIns((str(place / "fedexp.py"), str(place / "mynet.py")), (HASH, sha256(NETWORK)))
    again = read_plan(plan.encode(), allowed)
    assert again == plan and again.digest == plan.digest
    assert again.load().paper == "arXiv:2301.09604" and again.model().feature_size == 8


def test_a_plan_without_plug_ins_does_not_contain_their_setting():
    assert b"plug" not in Plan("fedavg", 3, 2).encode() and b"file" not in Plan("fedavg", 3, 2).encode()


def test_a_device_of_a_version_without_plug_ins_refuses_the_plan(plan):
    hints = get_type_hints(Plan, include_extras=True)
    before = make_dataclass("Before", [(f.name, hints[f.name]) for f in fields(Plan) if f.name != "plugins"])
    with pytest.raises(SettingsError, match=r"^plan.plugins is not a setting; "):
        decode(before, json.loads(plan.encode()), "plan")


def test_a_hash_is_refused_even_if_another_device_of_the_process_has_loaded_it(plan):
    with pytest.raises(PlugInError) as error:
        read_plan(plan.encode(), PlugIns())
    assert str(error.value) == (
        f"{WORDS}, which this device does not allow; its owner can add the hash to plugins.allow"
    )


def test_a_listed_file_whose_hash_is_not_allowed_is_refused(plan, place):
    files = (str(place / "fedexp.py"), str(place / "mynet.py"))
    for allow in ((), (sha256(NETWORK),)):
        with pytest.raises(
            PlugInError, match=f"{HASH}, which this device does not allow; its owner can add the hash"
        ):
            read_plan(plan.encode(), PlugIns(files, allow))


def test_a_file_that_was_changed_after_it_was_allowed_is_refused_with_its_new_hash(plan, place):
    path = place / "fedexp.py"
    path.write_text(CODE + "# changed\n")
    with pytest.raises(PlugInError) as error:
        read_plan(plan.encode(), PlugIns((str(path),), (HASH,)))
    other = sha256(CODE + "# changed\n")
    assert str(error.value) == f"{WORDS}, but the file fedexp.py on this device has SHA-256 {other}"


def test_the_error_names_another_file_with_the_same_name_even_if_it_is_allowed(plan, place):
    (place / "mine").mkdir()
    path = place / "mine" / "fedexp.py"
    path.write_text("METHOD = 1\n")
    for allow in ((), (sha256("METHOD = 1\n"),)):
        with pytest.raises(PlugInError, match="but the file fedexp.py on this device has"):
            read_plan(plan.encode(), PlugIns((str(path),), allow))


def test_an_allowed_hash_without_a_file_is_refused_with_the_setting_for_the_file(plan, place):
    with pytest.raises(
        PlugInError, match="allows but does not have; its owner can put the file into plugins.files"
    ):
        read_plan(plan.encode(), PlugIns((str(place / "gone.py"),), (HASH,)))


def test_the_file_of_an_allowed_plug_in_may_have_any_name(plan, place):
    (place / "fedexp.py").rename(place / "7.py")
    files = (str(place / "7.py"), str(place / "mynet.py"))
    assert read_plan(plan.encode(), PlugIns(files, (HASH, sha256(NETWORK)))) == plan


@pytest.mark.parametrize(
    "said",
    [
        ["method"],
        {"method": "x"},
        {"method": "A" * 64},
        {"data": "0" * 64},
        {"method": 1},
        {"files": ["/x.py"]},
    ],
)
def test_plan_plugins_is_refused_unless_it_has_hashes_of_known_kinds(plan, said):
    table = {**json.loads(plan.encode()), "plugins": said}
    with pytest.raises(
        PlugInError,
        match="plan.plugins is .* a SHA-256 for one or more of method, network",
    ):
        read_plan(json.dumps(table).encode(), PlugIns((), (HASH,)))


@pytest.mark.parametrize(
    "change",
    [
        {"network": {"name": "mynet", "file": "/etc/passwd"}},
        {"network": {"name": "mynet", "plugin": "0" * 64}},
        {"method": "fedexp", "plugins": {"network": sha256(NETWORK)}},
    ],
)
def test_a_plan_from_the_wire_can_name_a_plug_in_only_in_plan_plugins(plan, place, change):
    allowed = PlugIns((str(place / "fedexp.py"), str(place / "mynet.py")), (HASH, sha256(NETWORK)))
    table = {**json.loads(plan.encode()), **change}
    with pytest.raises(SettingsError):
        read_plan(json.dumps(table).encode(), allowed)


def test_a_coordinator_runs_only_plug_ins_that_its_settings_allow(place):
    def settings(**plugins):
        return CoordinatorSettings(
            "run", 2, 3, {"file": str(place / "fedexp.py")}, plugins=PlugIns(**plugins)
        )

    with pytest.raises(PlugInError, match=f"fedexp.py has SHA-256 {HASH}, which is not allowed here"):
        settings()
    assert settings(allow=(HASH,)).plan().plugins == {"method": HASH}
    named = CoordinatorSettings(
        "run", 2, 3, {"name": "fedexp"}, plugins=PlugIns((str(place / "fedexp.py"),), (HASH,))
    )
    assert named.plan() == settings(allow=(HASH,)).plan()


def test_a_plug_in_with_the_name_of_a_method_of_protofleet_needs_another_name(place):
    path = place / "fedavg.py"
    path.write_text(CODE)
    with pytest.raises(PlugInError, match='protofleet\'s own method has; .*: method.name = "my-fedavg"'):
        CoordinatorSettings("run", 2, 3, {"file": str(path)}, plugins=PlugIns((), (HASH,)))
    told = CoordinatorSettings("run", 2, 3, {"file": str(path), "name": "mine"}, plugins=PlugIns((), (HASH,)))
    assert told.plan().method == "mine"


def test_a_malformed_hash_in_the_settings_is_refused():
    with pytest.raises(
        SettingsError,
        match="plugins: allow has 'ab12', but an entry must be a SHA-256 of 64 hexadecimal digits",
    ):
        decode(DeviceSettings, {"name": "a", "plugins": {"allow": ["ab12"]}})
    assert encode(DeviceSettings("a"))["plugins"] == {"files": [], "allow": []}


def test_a_device_that_does_not_allow_the_plug_in_leaves_the_run_with_the_reason(plan, tmp_path):
    run = simulation(tmp_path, "fedavg")
    run.service.run.participants.members.clear()
    words = []
    for agent in run.agents.values():
        agent.tasks.welcomed(type("W", (), {"plan": plan.encode(), "about": NOTHING_SAID})(), 1)
        words.append(agent.view.problem)
    expected = f"this device cannot follow the run's plan: {WORDS}, which this device does not allow"
    assert all(word.startswith(expected) for word in words)


NOTHING_SAID = type("About", (), {"can": (), "uses": (), "names": (), "metrics": ()})()


def test_a_method_of_a_plug_in_learns_through_the_wire(plan, place, tmp_path):
    from_file(place / "fedexp.py", None)
    run = simulation(
        tmp_path / "run", "fedexp", plugin=HASH, plugins=PlugIns((str(place / "fedexp.py"),), (HASH,))
    ).run()
    assert run.service.finished
    answers = [agent.state.saved.answers[-1].metrics for agent in run.agents.values()]
    assert min(found["accuracy.test.global"] for found in answers) > 2 / 3
