"""Names made from a device's name are usable everywhere, and two devices never get the same one."""

import json
import re
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from protofleet.deploy.fleet.settings import Fleet, Host
from protofleet.deploy.fleet.ssh import Ssh
from protofleet.deploy.stack.layout import Stack, service_names
from protofleet.deploy.stack.prepare import prepare
from protofleet.federation.brokers import rabbitmq
from protofleet.federation.enrol.certificates import new_csr
from protofleet.federation.enrol.local_federation import LocalFederation
from protofleet.lab.local.experiment import Experiment
from protofleet.protocol.settings.reader import SettingsError, decode
from protofleet.protocol.wire.names import NAME
from protofleet.protocol.wire.topics import Topics

TABLE = {"name": "tiny", "rounds": 1, "method": {"name": "fedavg"}, "data": {"source": "digits"}}
KEY = ec.generate_private_key(ec.SECP256R1())
HOST_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# Names that a file system, a host name or a pattern could take for the same name.
NAMES = (
    "a", "A", "ab", "a.b", "a_b", "a-b", "A.b", "a.", "a_", "a-", "a.b.record", "a.b.toml", "current", "devices",
    "x" * 64, "x" * 63 + "X", "x" * 63 + "_",
)  # fmt: skip


def experiment(**more):
    return decode(Experiment, {**TABLE, **more})


def of_domains(*names, **more):
    """Return an experiment with these domains, all in one folder that no test reads."""
    domains = {name: {"source": "folder", "root": "/data"} for name in names}
    return experiment(data={"classes": list("0123456789")}, domains=domains, **more)


# -- services of a stack, which are hosts


@pytest.mark.parametrize(
    ("devices", "services"),
    [
        (["Board_7.lab"], ["device-board-7-lab"]),
        (["a", "b"], ["device-a", "device-b"]),
        (["a_b", "a.b"], ["device-a-b-648fa9b3", "device-a-b-2e7336dc"]),
        (["a-b", "c"], ["device-a-b", "device-c"]),
        (["A", "a"], ["device-a-559aead0", "device-a-ca978112"]),
        (["a."], ["device-a-5ab640fa"]),
        (["x" * 56], ["device-" + "x" * 56]),
        (["x" * 64], ["device-" + "x" * 47 + "-7ce10097"]),
    ],
)
def test_a_service_has_the_name_of_its_device_and_a_hash_only_if_needed(devices, services):
    assert [service_names(devices)[device] for device in devices] == services


def test_a_device_named_like_a_hashed_service_gets_another_service_name():
    (taken, _) = sorted(service_names(["a_b", "a.b"]).values())
    found = service_names(["a_b", "a.b", taken.removeprefix("device-")])
    assert len({*found.values()}) == 3 and taken in found.values()


@given(st.sets(st.one_of(st.sampled_from(NAMES), st.from_regex(NAME, fullmatch=True)), min_size=1))
def test_every_device_has_its_own_service_with_a_valid_host_name(devices):
    found = service_names(devices)
    assert found.keys() == devices and len({*found.values()}) == len(devices)
    assert all(HOST_LABEL.fullmatch(name) for name in found.values())
    assert found == service_names(sorted(devices, reverse=True)), "the order of the devices has no effect"


def test_devices_with_similar_names_have_separate_containers_and_targets(tmp_path):
    domains = "a.b", "a-b", "A-b"
    stack = Stack(tmp_path / "s", of_domains(*domains))
    prepare(stack)
    services = json.loads((stack.folder / "devices.yaml").read_text())["services"]
    assert len(services) == 3 and {v["volumes"][0] for v in services.values()} == {
        f"{stack.settings_file(name)}:/protofleet/settings.toml:ro" for name in domains
    }
    told = json.loads((stack.folder / "prometheus" / "targets" / "devices.json").read_text())
    assert {t["targets"][0]: t["labels"]["device"] for t in told} == {
        f"{stack.services[name]}:9100": name for name in domains
    }


@pytest.mark.parametrize("name", ["probe", "prometheus", "grafana", "rabbit-1"])
def test_a_device_with_the_name_of_a_stack_service_is_refused(tmp_path, name):
    stack = Stack(tmp_path / "s", of_domains(name))
    with pytest.raises(SettingsError, match=f"cannot be called '{name}': a part of the stack has that name"):
        prepare(stack)
    assert not stack.folder.exists()


@pytest.mark.parametrize(("run", "domain"), [("a.b", "a"), ("a", "a.b")])
def test_a_name_with_a_dot_is_refused_only_with_rabbitmq(tmp_path, run, domain):
    made = of_domains(domain, name=run)
    with pytest.raises(SettingsError, match=r"'a\.b' cannot be used over RabbitMQ"):
        prepare(Stack(tmp_path / "s", made, cluster=True))
    prepare(Stack(tmp_path / "s", made))


# -- devices of an experiment, which have the names of their domains


@pytest.mark.parametrize(
    ("clients", "device"),
    [({"a_b": 1, "a-b": 1}, "a-b"), ({"a": 2, "a-1": 1}, "a-1"), ({"a-1": 1, "a": 2}, "a-1")],
)
def test_two_domains_whose_devices_have_the_same_name_are_refused(clients, device):
    one, other = clients
    with pytest.raises(
        SettingsError, match=f"domains '{one}' and '{other}' both have a device with the name '{device}'"
    ):
        of_domains(*clients, devices={"clients": clients})


# -- everywhere else names stay as they are


def topics(folder, name):
    made = Topics("lab")
    return made.up(name), made.down(name), made.device_state(name)


def rabbitmq_user(folder, name):
    return next(u["name"] for u in json.loads(rabbitmq.definitions("lab", [name]))["users"][1:])


def rabbitmq_topics(folder, name):
    return next(t["write"] for t in json.loads(rabbitmq.definitions("lab", [name]))["topic_permissions"][1:])


def certificate(folder, name):
    return x509.load_der_x509_csr(new_csr(name, KEY)).subject.rfc4514_string()


def key_folder(folder, name):
    return LocalFederation(folder).folder_of(name)


def settings_file(folder, name):
    return Stack(folder, experiment()).settings_file(name)


def state_folder(folder, name):
    return Stack(folder, experiment()).state_folder(name)


def ssh_configuration(folder, name):
    before = {*folder.iterdir()}
    Ssh(name, Host("b.example"), Fleet("root", {name: Host("b.example")}), folder)
    (made,) = {*folder.iterdir()} - before
    return made


@pytest.mark.parametrize(
    "becomes",
    [
        topics, rabbitmq_user, rabbitmq_topics, certificate, key_folder, settings_file, state_folder,
        ssh_configuration,
    ],
    ids=lambda becomes: becomes.__name__,
)  # fmt: skip
def test_different_device_names_give_different_names_everywhere(tmp_path: Path, becomes):
    found = [becomes(tmp_path, name) for name in NAMES]
    assert len({*found}) == len(NAMES)
