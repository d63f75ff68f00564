"""Write all files that the containers mount.

The files are keys, settings, access rules, and the configuration of Prometheus and Grafana. `make up` writes them
before any container starts. Devices that are enrolled already keep their keys.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.service_settings import without_run
from protofleet.deploy.stack.earlier_runs import EXPERIMENT_FILE, require_same_run
from protofleet.deploy.stack.edited_files import copy_unless_edited, say_what_stays
from protofleet.deploy.stack.layout import (
    ALL_INTERFACES,
    CONTAINER_ROOT,
    FLEET_SERVICE,
    HEALTHCHECK_CLIENT,
    METRICS_PORT,
    RABBITMQ_NODES,
    RESERVED_NAMES,
    Stack,
    container_user,
)
from protofleet.edge_client.config import DeviceSettings
from protofleet.federation.brokers import rabbitmq
from protofleet.federation.brokers.mosquitto import ListenerSettings
from protofleet.federation.enrol.lifecycle import enrolled_operators
from protofleet.federation.enrol.local_federation import (
    BROKER,
    LocalFederation,
    enrol,
    enrol_federation,
    tls_files,
    write_mosquitto_conf,
)
from protofleet.lab.local.class_check import agreed_names
from protofleet.lab.local.experiment import Experiment, coordinator_settings, device_settings
from protofleet.protocol.security.enrolment import CURRENT, TLS_CA, TLS_CERT, TLS_KEY
from protofleet.protocol.security.keyfiles import PRIVATE, write_file
from protofleet.protocol.settings.reader import SettingsError, encode, write_toml
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.wire.names import COORDINATOR

COMPOSE: Final = Path(__file__).parent.parent / "compose"
BROKER_HOSTS: Final = (BROKER, "localhost", "127.0.0.1")
BROKER_PORT: Final = 8883
BROKER_ROOT: Final = Path(
    "/broker"
)  # The folder in the container at which the broker's enrolled files are mounted.
HEALTHCHECK_DAYS: Final = 3650
# The folder in which Prometheus looks for the operator's own rules, targets and Alertmanagers.
OPERATOR_FOLDER: Final = "own"


def prepare(stack: Stack) -> None:
    if not (COMPOSE / "compose.yaml").exists():
        raise SettingsError("the stack needs a checkout of protofleet, but this is an installed package")
    check_names(stack)
    if not stack.queue:
        require_same_run(stack)
    _write_experiment(stack)
    _enrol(stack)
    _write_settings(stack)
    _write_prometheus(stack)
    _write_grafana(stack)
    _write(stack.folder / "devices.yaml", json.dumps(compose_devices(stack), indent=2))
    _write(stack.folder / "compose.env", "".join(f"{k}={v}\n" for k, v in stack.environment().items()))
    _chown_for_containers(stack)


def check_names(stack: Stack) -> None:
    if taken := sorted({*stack.devices} & {*RESERVED_NAMES}):
        reason = "a part of the stack has that name; rename its domain"
        raise SettingsError(f"a device of this stack cannot be called {taken[0]!r}: {reason}")
    dotted = [name for name in (stack.experiment.name, *stack.devices) if "." in name]
    if stack.cluster and dotted:
        raise SettingsError(
            f"the name {dotted[0]!r} cannot be used over RabbitMQ, which reads a dot in a topic as a slash; "
            "rename the run or the domain, or leave out --cluster"
        )


def _write_experiment(stack: Stack) -> None:
    """Write the experiment into the stack's folder and into the run's folder.

    The first file has the settings of the present run. The second file stays with the results of the run.
    """
    for folder in (stack.folder, *([] if stack.queue else [stack.run_folder])):
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / EXPERIMENT_FILE, write_toml(encode(stack.experiment)))


def _enrol(stack: Stack) -> None:
    federation = enrol_federation(
        stack.folder / "enrolled", stack.federation_name, stack.devices, BROKER_HOSTS
    )
    # The health check has a session at the broker too, so it counts as a device.
    listener = ListenerSettings(BROKER_PORT, devices=len(stack.devices) + 1)
    write_mosquitto_conf(federation.folder_of(BROKER), listener, BROKER_ROOT)
    if stack.cluster:
        _write_rabbitmq(stack)
    _enrol_healthcheck(federation)


def _enrol_healthcheck(federation: LocalFederation) -> None:
    """Enrol the broker's health check, and put its TLS files into the broker's folder.

    The broker's container gets only the TLS files. With the other keys, the container could act as a device.
    """
    keys = federation.folder / HEALTHCHECK_CLIENT
    enrol(federation.authority(), keys, HEALTHCHECK_CLIENT, HEALTHCHECK_DAYS)
    # The record is removed, because the coordinator waits for every name that has a record. With a record,
    # the coordinator would wait for the health check as for a device.
    (federation.root / "records" / f"{HEALTHCHECK_CLIENT}.record").unlink(missing_ok=True)
    mounted = federation.folder_of(BROKER) / HEALTHCHECK_CLIENT
    mounted.mkdir(exist_ok=True, mode=0o700)
    for name in (TLS_CA, TLS_CERT, TLS_KEY):
        write_file(mounted / name, (keys / CURRENT / name).read_bytes(), PRIVATE, durable=False)


def _write_rabbitmq(stack: Stack) -> None:
    """Write the settings and access rules that all three nodes share.

    Also write the cookie with which the nodes authenticate each other.
    """
    folder = stack.federation.folder_of(BROKER)
    mounted = BROKER_ROOT / "definitions.json"
    settings = rabbitmq.settings(BROKER_ROOT / CURRENT, mounted, RABBITMQ_NODES, BROKER_PORT)
    _write(folder / "rabbitmq.conf", settings)
    definitions = rabbitmq.definitions(stack.federation_name, stack.devices, _operators(stack))
    _write(folder / "definitions.json", definitions)
    _write(folder / "enabled_plugins", "[rabbitmq_mqtt,rabbitmq_auth_mechanism_ssl].\n")
    cookie = stack.federation.folder / "cookie"
    if not cookie.exists():
        write_file(cookie, secrets.token_hex(16).encode(), PRIVATE, durable=False)
    for node in RABBITMQ_NODES:
        state = stack.state_folder(node)
        state.mkdir(parents=True, exist_ok=True)
        write_file(state / ".erlang.cookie", cookie.read_bytes(), PRIVATE, durable=False)


def _operators(stack: Stack) -> list[str]:
    """Return the enrolled operators that can use RabbitMQ, and report the others."""
    enrolled = enrolled_operators(stack.federation.authority())
    for name in (name for name in enrolled if "." in name):
        print(
            f"the operator {name} cannot use this broker: RabbitMQ reads a dot in a topic as a slash; enrol the "
            "operator under another name, or leave out --cluster"
        )
    return [name for name in enrolled if "." not in name]


def _write_settings(stack: Stack) -> None:
    """Write the settings of the coordinator and all devices, with the paths inside their containers."""
    experiment = replace(stack.experiment, metrics_port=METRICS_PORT, metrics_host=ALL_INTERFACES)
    tables = {name: encode(container_device_settings(stack, experiment, name)) for name in stack.devices}
    tables[COORDINATOR] = encode(container_coordinator_settings(stack, experiment))
    if stack.queue:
        tables[COORDINATOR], run = without_run(tables[COORDINATOR])
        _write(stack.first_run, write_toml(run))
    for name, table in tables.items():
        stack.state_folder(name).mkdir(parents=True, exist_ok=True)
        _write(stack.settings_file(name), write_toml(table))


def container_coordinator_settings(stack: Stack, experiment: Experiment) -> CoordinatorSettings:
    local = coordinator_settings(
        experiment, _broker(CONTAINER_ROOT / "enrolled"), Path("runs"), "Mosquitto in a container"
    )
    return replace(
        local,
        federation=stack.federation_name,
        folder=str(CONTAINER_ROOT / "state"),
        enrolled=str(CONTAINER_ROOT / "enrolled"),
        devices=str(CONTAINER_ROOT / "records"),
        class_names=agreed_names(experiment),
    )


def container_device_settings(stack: Stack, experiment: Experiment, name: str) -> DeviceSettings:
    home = CONTAINER_ROOT if stack.container_per_device else CONTAINER_ROOT / "devices" / name
    local = device_settings(experiment, name, _broker(home / "enrolled"), Path("runs"))
    return replace(
        local,
        federation=stack.federation_name,
        folder=str(home / "state"),
        enrolled=str(home / "enrolled"),
        metrics_port=stack.metrics_port(name),
        metrics_host=ALL_INTERFACES,
        stays=True,
    )


def _broker(enrolled: Path) -> BrokerAddress:
    return BrokerAddress(BROKER, BROKER_PORT, tls_files(enrolled))


def compose_devices(stack: Stack) -> dict[str, Any]:
    """Return the compose file of the devices: one service for each device, or one service for all devices."""
    # A stack has either the single broker or the RabbitMQ nodes, so neither of these dependencies is required.
    healthy = {"condition": "service_healthy", "required": False}
    template = {
        "extends": {"file": str(COMPOSE / "common.yaml"), "service": "device"},
        "depends_on": {BROKER: healthy, RABBITMQ_NODES[0]: healthy},
    }
    if not stack.container_per_device:
        return {"services": {FLEET_SERVICE: {**template, **_fleet_service(stack)}}}
    services = {
        service: {**template, "volumes": _volumes(stack, name, CONTAINER_ROOT)}
        for name, service in stack.services.items()
    }
    return {"services": services}


def _fleet_service(stack: Stack) -> dict[str, Any]:
    homes = {name: CONTAINER_ROOT / "devices" / name for name in stack.devices}
    health = ["CMD", "protofleet", "health", *(str(home / "settings.toml") for home in homes.values())]
    return {
        "volumes": [volume for name, home in homes.items() for volume in _volumes(stack, name, home)],
        "mem_limit": f"{512 * (2 + len(homes))}m",
        "pids_limit": 64 * len(homes),
        "command": ["fleet", str(CONTAINER_ROOT / "devices")],
        "healthcheck": {"test": health},
    }


def _volumes(stack: Stack, name: str, home: Path) -> list[str]:
    return [
        f"{stack.settings_file(name).absolute()}:{home}/settings.toml:ro",
        f"{stack.federation.folder_of(name).absolute()}:{home}/enrolled:ro",
        f"{stack.state_folder(name).absolute()}:{home}/state",
    ]


def _write_prometheus(stack: Stack) -> None:
    folder = stack.folder / "prometheus"
    say_what_stays(copy_unless_edited(COMPOSE / "prometheus", folder))
    (folder / OPERATOR_FOLDER).mkdir(exist_ok=True)  # The operator writes into this folder, and we do not.
    targets = [{"targets": [stack.scrape_target(name)], "labels": {"device": name}} for name in stack.devices]
    _write(folder / "targets" / "devices.json", json.dumps(targets, indent=2))
    stack.state_folder("prometheus").mkdir(parents=True, exist_ok=True)


def _write_grafana(stack: Stack) -> None:
    say_what_stays(copy_unless_edited(COMPOSE / "grafana", stack.folder / "grafana"))
    password = stack.folder / "grafana" / "password"
    if not password.exists():
        write_file(password, secrets.token_urlsafe(18).encode(), PRIVATE, durable=False)
    stack.state_folder("grafana").mkdir(parents=True, exist_ok=True)


def _chown_for_containers(stack: Stack) -> None:
    """Give the mounted files to the containers' user; the operator stays the owner of the root's keys."""
    user, group = container_user()
    if user == os.geteuid():
        return
    operator_root = stack.federation.root
    for folder, folders, files in os.walk(stack.folder):
        folders[:] = [name for name in folders if Path(folder) / name != operator_root]
        for name in (*folders, *files):
            os.chown(Path(folder) / name, user, group, follow_symlinks=False)


def _write(path: Path, text: str) -> None:
    write_file(path, text.encode(), durable=False)
