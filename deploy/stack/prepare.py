"""Everything that the containers find: keys, settings, the broker's rules, what Prometheus and Grafana read.

Written by whoever says `make up`, before any container starts. What is enrolled stays as it is.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.deploy.brokers import rabbitmq
from protofleet.deploy.brokers.mosquitto import Listening
from protofleet.deploy.enrol.local_federation import (
    BROKER,
    enrol,
    enrol_federation,
    tls_files,
    write_mosquitto_conf,
)
from protofleet.deploy.local.class_check import agreed_names
from protofleet.deploy.local.experiment import Experiment, coordinator_settings, device_settings
from protofleet.deploy.stack.layout import (
    EVERYWHERE,
    FLEET,
    INSIDE,
    METRICS_PORT,
    NODES,
    PROBE,
    Stack,
    owner,
    service,
)
from protofleet.edge_client.config import DeviceSettings
from protofleet.protocol.security.enrolment import CURRENT, TLS_CA, TLS_CERT, TLS_KEY
from protofleet.protocol.security.keyfiles import PRIVATE, write_file
from protofleet.protocol.settings.reader import SettingsError, encode, write_toml
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.wire.names import COORDINATOR

COMPOSE: Final = Path(__file__).parent.parent / "compose"
HOSTS: Final = (BROKER, "localhost", "127.0.0.1")
PORT: Final = 8883


def prepare(stack: Stack) -> None:
    if not (COMPOSE / "compose.yaml").exists():
        raise SettingsError(
            "the stack is started from a checkout of protofleet; this is an installed package"
        )
    _check_same_run(stack)
    stack.folder.mkdir(parents=True, exist_ok=True)
    _enrol(stack)
    _write_parties(stack)
    _write_prometheus(stack)
    _write_grafana(stack)
    _write(stack.folder / "devices.yaml", json.dumps(devices_file(stack), indent=2))
    _write(stack.folder / "compose.env", "".join(f"{k}={v}\n" for k, v in stack.environment().items()))
    _hand_over(stack)


def _check_same_run(stack: Stack) -> None:
    """The state in a folder belongs to one experiment; with other settings its coordinator would refuse it."""
    written = stack.folder / "experiment.toml"
    text = write_toml(encode(stack.experiment))
    if written.exists() and written.read_text() != text:
        raise SettingsError(
            f"{stack.folder} holds the stack of other settings; `make down FORGET=1` ends and removes it, "
            f"or give this one another FOLDER"
        )
    stack.folder.mkdir(parents=True, exist_ok=True)
    _write(written, text)


def _enrol(stack: Stack) -> None:
    fleet = enrol_federation(stack.folder / "enrolled", stack.experiment.name, stack.devices, HOSTS)
    write_mosquitto_conf(fleet.folder_of(BROKER), Listening(PORT))
    _rewrite_for_container(fleet.folder_of(BROKER))
    if stack.cluster:
        _cluster(stack)
    probe = fleet.folder / PROBE
    enrol(fleet.authority(), probe, PROBE, 3650)
    inside = (
        fleet.folder_of(BROKER) / PROBE
    )  # its certificate alone: with its other keys the broker could speak as a device
    inside.mkdir(exist_ok=True, mode=0o700)
    for name in (TLS_CA, TLS_CERT, TLS_KEY):
        write_file(inside / name, (probe / CURRENT / name).read_bytes(), PRIVATE, durable=False)


def _cluster(stack: Stack) -> None:
    """What three nodes of RabbitMQ find: all the same certificate, and a cookie by which they know each other."""
    folder, inside = stack.fleet.folder_of(BROKER), Path("/broker")
    _write(
        folder / "rabbitmq.conf",
        rabbitmq.settings(inside / CURRENT, inside / "definitions.json", NODES, PORT),
    )
    _write(folder / "definitions.json", rabbitmq.definitions(stack.experiment.name, stack.devices))
    _write(folder / "enabled_plugins", "[rabbitmq_mqtt,rabbitmq_auth_mechanism_ssl].\n")
    cookie = stack.fleet.folder / "cookie"
    if not cookie.exists():
        write_file(cookie, secrets.token_hex(16).encode(), PRIVATE, durable=False)
    for node in NODES:
        stack.state(node).mkdir(parents=True, exist_ok=True)
        write_file(stack.state(node) / ".erlang.cookie", cookie.read_bytes(), PRIVATE, durable=False)


def _rewrite_for_container(folder: Path) -> None:
    from protofleet.deploy.brokers.mosquitto import CONF, secured_settings

    write_file(folder / CONF, secured_settings(Path("/broker"), Listening(PORT)).encode(), durable=False)


def _write_parties(stack: Stack) -> None:
    experiment = replace(stack.experiment, metrics_port=METRICS_PORT, metrics_host=EVERYWHERE)
    (stack.folder / "settings").mkdir(exist_ok=True)
    write = _settings_writer(stack)
    write(COORDINATOR, coordinator_inside(experiment))
    for name in stack.devices:
        write(name, device_inside(stack, experiment, name))


def _settings_writer(stack: Stack) -> Any:
    def write(name: str, settings: CoordinatorSettings | DeviceSettings) -> None:
        stack.state(name).mkdir(parents=True, exist_ok=True)
        _write(stack.toml(name), write_toml(encode(settings)))

    return write


def coordinator_inside(experiment: Experiment) -> CoordinatorSettings:
    written = coordinator_settings(
        experiment, _broker(INSIDE / "enrolled"), Path("runs"), "Mosquitto in a container"
    )
    return replace(
        written,
        folder=str(INSIDE / "state"),
        enrolled=str(INSIDE / "enrolled"),
        devices=str(INSIDE / "records"),
        class_names=agreed_names(experiment),
    )


def device_inside(stack: Stack, experiment: Experiment, name: str) -> DeviceSettings:
    home = INSIDE if stack.apart else INSIDE / "devices" / name
    written = device_settings(experiment, name, _broker(home / "enrolled"), Path("runs"))
    return replace(
        written,
        folder=str(home / "state"),
        enrolled=str(home / "enrolled"),
        metrics_port=stack.port(name),
        metrics_host=EVERYWHERE,
        stays=True,
    )


def _broker(enrolled: Path) -> BrokerAddress:
    return BrokerAddress(BROKER, PORT, tls_files(enrolled))


def devices_file(stack: Stack) -> dict[str, Any]:
    """The compose file of the devices: a service for each, or one for all of a large fleet."""
    template = {"extends": {"file": str(COMPOSE / "common.yaml"), "service": "device"}}
    healthy = {"condition": "service_healthy", "required": False}  # one of them is there
    order = {"depends_on": {BROKER: healthy, NODES[0]: healthy}}
    if stack.apart:
        services = {
            service(name): {**template, **order, "volumes": _volumes(stack, name, INSIDE)}
            for name in stack.devices
        }
        return {"services": services}
    volumes = [v for name in stack.devices for v in _volumes(stack, name, INSIDE / "devices" / name)]
    asked = [
        "CMD",
        "protofleet",
        "health",
        *(str(INSIDE / "devices" / d / "settings.toml") for d in stack.devices),
    ]
    one = {
        **template, **order, "volumes": volumes, "mem_limit": f"{512 * (2 + len(stack.devices))}m",
        "pids_limit": 64 * len(stack.devices), "command": [FLEET, str(INSIDE / "devices")],
        "healthcheck": {"test": asked},
    }  # fmt: skip
    return {"services": {FLEET: one}}


def _volumes(stack: Stack, name: str, home: Path) -> list[str]:
    return [
        f"{stack.toml(name).absolute()}:{home}/settings.toml:ro",
        f"{stack.fleet.folder_of(name).absolute()}:{home}/enrolled:ro",
        f"{stack.state(name).absolute()}:{home}/state",
    ]


def _write_prometheus(stack: Stack) -> None:
    folder = stack.folder / "prometheus"
    shutil.copytree(COMPOSE / "prometheus", folder, dirs_exist_ok=True)
    targets = [{"targets": [stack.target(name)], "labels": {"device": name}} for name in stack.devices]
    (folder / "targets").mkdir(exist_ok=True)
    _write(folder / "targets" / "devices.json", json.dumps(targets, indent=2))
    stack.state("prometheus").mkdir(parents=True, exist_ok=True)


def _write_grafana(stack: Stack) -> None:
    shutil.copytree(COMPOSE / "grafana", stack.folder / "grafana", dirs_exist_ok=True)
    password = stack.folder / "grafana" / "password"
    if not password.exists():
        write_file(password, secrets.token_urlsafe(18).encode(), PRIVATE, durable=False)
    stack.state("grafana").mkdir(parents=True, exist_ok=True)


def _hand_over(stack: Stack) -> None:
    """What is mounted belongs to whoever runs in the containers; the operator's root stays ours."""
    user, group = owner()
    if user == os.geteuid():
        return
    kept = stack.fleet.root
    for place, folders, files in os.walk(stack.folder):
        folders[:] = [name for name in folders if Path(place) / name != kept]
        for name in (*folders, *files):
            os.chown(Path(place) / name, user, group, follow_symlinks=False)


def _write(path: Path, text: str) -> None:
    write_file(path, text.encode(), durable=False)
