"""Make a root and a fleet's file for `protofleet init`.

The file has settings for the broker, the coordinator and the devices. These settings fit together. The first run is
a part of the coordinator's settings, or a file of its own for `protofleet submit`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from protofleet.coordinator.config import split_method
from protofleet.coordinator.robust.fit import accepted_rules
from protofleet.deploy.fleet.control_plane import open_root
from protofleet.deploy.fleet.device.roles import DEVICE
from protofleet.deploy.fleet.settings import Fleet, Host, read_fleet
from protofleet.deploy.fleet.targets import write_targets
from protofleet.edge_client.data.catalog import find
from protofleet.federation.enrol.authority import make_authority
from protofleet.federation.enrol.local_federation import YEARS
from protofleet.federation.enrol.register import REGISTER
from protofleet.methods.contract.catalog import load
from protofleet.protocol.security.keyfiles import write_file
from protofleet.protocol.settings.reader import SettingsError, decode, write_toml
from protofleet.protocol.wire.names import COORDINATOR, valid_device, valid_name

FLEET_FILE: Final = "fleet.toml"
BROKER: Final = "broker"
ROOT: Final = "root"
# A first round needs data, so each device gets some of the bundled digits. The number of digits is small, so every
# board can train on them. The domains are given to the devices in turn. Each domain is divided into parts, and each
# device gets its own part. The number of parts cannot change later, so there are spare parts for new devices.
DATA: Final[Mapping[str, Any]] = {"source": "digits", "samples": 600, "test_samples": 200, "size": 32}
DOMAINS: Final = find("digits").domains
LEAST_PARTS, MOST_PARTS = 4, 40  # The smallest domain has 1,438 digits, so each of 40 parts has at least 35.
# The run takes at most about eleven days. It has more rounds than it usually needs, because `restore --from-round`
# may skip some rounds.
RUN: Final[Mapping[str, Any]] = {
    "name": "first", "rounds": 1000, "classes": 10, "size": 32,
}  # fmt: skip
NETWORK: Final = {"name": "cnn23"}
METHOD: Final = "fedavg"
RATES: Final[Mapping[str, float]] = {
    METHOD: 0.05
}  # Learning rates that differ from the method's own default.
# Least number of samples of a class about which a device sends anything, for methods that send statistics of classes.
# The papers' own number is 1, with which an uploaded mean can be the feature of a single sample.
LEAST_SAMPLES: Final = 5
# The first run of a coordinator with a queue.
RUN_FILE: Final = f"{RUN['name']}.toml"
# A board that serves its model takes part in one run at a time, so the coordinator conducts one run at a time.
SLOTS: Final = 1
# Seconds between two rounds. With this pause, a board writes less than 100 MB a day to its disk, which may be an SD
# card. daily_bytes.py estimates these bytes.
PAUSE_SECONDS: Final = 960.0
# Rules against a device that lies, where the method of the run accepts them (docs/robust.md).
ROBUST: Final[Mapping[str, str]] = {"weights": "cap", "prototypes": "clip_median"}
# A run ends after this number of evaluations without an improvement; this takes about five hours.
STOP_PATIENCE: Final = 20
# These limits allow every device to use every domain, because any device may have digits of any domain.
SHARED: Final[Mapping[str, Any]] = {"domains": {domain: ["*"] for domain in DOMAINS}}
# After the first board has connected, the coordinator waits this number of seconds for more boards. The installation
# of torch takes several minutes on a small board.
PATIENCE_SECONDS: Final = 1800.0
# Each board serves its model, because the purpose of a board is to use the trained model.
MODELS: Final[Mapping[str, Any]] = {"serve": "auto"}
DEVICE_METRICS_PORT: Final = 9101
IGNORE_FILE: Final = ".gitignore"
SECRETS: Final = (
    f"# Private keys: keep a copy in another place, but not in a repository.\n/{ROOT}/\n/{BROKER}/\n"
)
# The form is [USER@]ADDRESS[:PORT]. Several colons mean an IPv6 address, which needs brackets if a port
# follows.
PLACE: Final = re.compile(r"(?:([^@]+)@)?(?:\[([^]@]+)\]|([^@:]+))(?::(\d+))?|(?:([^@]+)@)?([^@\[\]]+)")
HEAD: Final = (
    "# Written by protofleet init. Every setting: docs/deploy.md, docs/settings.md.\n"
    "# To use your own data, change [device.data] and remove the [hosts.NAME.device.data] tables of the digits.\n"
)
COORDINATOR_TABLE: Final = "[coordinator]\n"
RUN_WORDS: Final = (
    "# The run. It ends after `rounds` rounds, or earlier: after `patience` evaluations without a better validation\n"
    "# accuracy ([coordinator.policy.stop]). [coordinator.policy] sets its pace: pause_seconds is the time from the\n"
    "# end of a round to the start of the next. With this pause, a board writes less than 100 MB a day to its disk;\n"
    '# `protofleet deploy plan` prints the bytes of a day. Rounds only at night: hours = "22:00-06:00".\n'
)
QUEUE_WORDS: Final = (
    f"# The coordinator stays up and conducts the runs that you submit, such as {RUN_FILE} (docs/run-queue.md).\n"
    "# slots is the number of runs at the same time: a board that serves its model takes part in one run at a time.\n"
)
SUBMITTED_WORDS: Final = (
    "# Written by protofleet init, for `protofleet submit` (docs/day-0.md). Every setting: docs/settings.md.\n"
    "# The run ends after `rounds` rounds, or earlier: after `patience` evaluations without a better validation\n"
    "# accuracy ([policy.stop]). [policy] sets its pace: pause_seconds is the time from the end of a round to the\n"
    "# start of the next. With this pause, a board writes less than 100 MB a day to its disk.\n"
    '# Rounds only at night: hours = "22:00-06:00".\n'
)


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of a new fleet's hosts: USER@ADDRESS, with :PORT if the port is not 22."""

    broker: str
    coordinator: str
    devices: Mapping[str, str]


def write_fleet(
    folder: Path, federation: str, addresses: Addresses, common: Mapping[str, Any], queue: bool = False,
    method: str = METHOD,
) -> Path:  # fmt: skip
    """Write a new fleet's file, and make a root if there is none; raise SettingsError if the file exists.

    `common` holds the settings that all hosts share, such as the key for ssh. With `queue`, the coordinator conducts
    submitted runs, and the first run is written to a file beside the fleet's file. Other files that exist already
    are not changed.
    """
    path, submitted = folder / FLEET_FILE, folder / RUN_FILE
    if path.exists():
        raise SettingsError(f"{path} exists already; change this file, or name another folder")
    chosen = method_table(method)
    policy = policy_for(len(addresses.devices), chosen)
    run = {**RUN, "method": chosen, "network": NETWORK, "policy": policy}
    table = _fleet_table(addresses, common, {"slots": SLOTS} if queue else run)
    for name, host in table["hosts"].items():
        decode(Host, host, f"hosts.{name}")  # This finds a mistake before anything is written.
    valid_name(federation)
    run_text = (SUBMITTED_WORDS + write_toml(run)).encode()
    if queue:
        _demand_free(submitted, run_text)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / ROOT / REGISTER).exists():
        make_authority(folder / ROOT, federation, YEARS)
    if not (folder / IGNORE_FILE).exists():
        (folder / IGNORE_FILE).write_text(SECRETS)
    if queue:  # This file comes first, because `init` does nothing in a folder that has a fleet's file.
        write_file(submitted, run_text)
    words = QUEUE_WORDS if queue else RUN_WORDS
    path.write_text(
        HEAD + write_toml(table).replace(f"\n{COORDINATOR_TABLE}", f"\n{words}{COORDINATOR_TABLE}")
    )
    try:
        write_targets(read_fleet(path), federation, folder)
    except SettingsError:
        path.unlink()
        if queue:
            submitted.unlink()
        raise
    return path


def method_table(name: str) -> dict[str, Any]:
    """Return the table `method` of a first run, in which methods that send statistics of classes get a limit."""
    try:
        settings = {one.name for one in fields(load(name).Hyper)}
    except LookupError as error:
        raise SettingsError(f"--method: {str(error).strip(chr(34))}") from None
    rate = {"lr": RATES[name]} if name in RATES else {}
    return {"name": name, **rate, **({"least_samples": LEAST_SAMPLES} if "least_samples" in settings else {})}


def _fleet_table(
    addresses: Addresses, common: Mapping[str, Any], coordinator: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the contents of a new fleet's file; `coordinator` has the coordinator's settings without the limits."""
    hosts = {
        BROKER: {**host_table(addresses.broker), "role": BROKER},
        COORDINATOR: {**host_table(addresses.coordinator), "role": COORDINATOR},
        **{_device(name): host_table(address) for name, address in addresses.devices.items()},
    }
    parts = parts_for(len(addresses.devices))
    for number, name in enumerate(addresses.devices):
        hosts[name]["device"] = {"data": own_digits(number, parts)}
    if not addresses.devices:
        raise SettingsError("no device is named; add --device NAME=USER@ADDRESS, once for each device")
    broker = {"host": hosts[BROKER]["address"], "port": 8883}
    return {
        "root": ROOT, "broker": BROKER, "known_hosts": "known_hosts",
        "software": {"dependencies": "index", **common.get("software", {})},
        "device": {
            "compute": "auto", "metrics_port": DEVICE_METRICS_PORT, "broker": broker,
            "data": {**DATA, "parts": parts}, "models": dict(MODELS),
        },
        "coordinator": {**coordinator, "limits": dict(SHARED)},
        "hosts": {name: {**host, **common.get("host", {})} for name, host in hosts.items()},
    }  # fmt: skip


def _demand_free(path: Path, data: bytes) -> None:
    """Raise SettingsError if the path exists; a file with the same bytes is from an `init` that was interrupted."""
    if path.exists() and not (path.is_file() and path.read_bytes() == data):
        raise SettingsError(f"{path} exists already; move this file away, or name another folder")


def add_devices(folder: Path, devices: Mapping[str, str], common: Mapping[str, Any]) -> Path:
    """Add further devices at the end of the fleet's file; do not change the other lines of the file."""
    path = folder / FLEET_FILE
    fleet, text = read_fleet(path), path.read_text()
    number = len(fleet.of_role(DEVICE.name))
    for name, address in devices.items():
        if name in fleet.hosts:
            way_out = f"`protofleet deploy apply {name} --replace` deploys a new board with this name"
            raise SettingsError(f"{path} has a host {name} already; {way_out}")
        table = {**host_table(address), **common.get("host", {})}
        if own := _digits_beside(fleet, number):
            table["device"] = {"data": own}
        number += 1
        decode(Host, table, f"hosts.{name}")
        where = f"hosts.{json.dumps(_device(name))}"
        text += f"\n[{where}]\n{write_toml(table, where)}"
    before = path.read_bytes()
    path.write_text(text)
    try:
        write_targets(read_fleet(path), open_root(fleet).federation, folder)
    except SettingsError:
        path.write_bytes(before)
        raise
    return path


def policy_for(devices: int, method: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy of a run that waits for all devices, but needs only half of them.

    If at least half of the devices are present after the wait, the run begins and continues without the others. The
    policy has the rules against lying devices that the method with these settings accepts.
    """
    robust = robust_for(method)
    return {
        "quorum": (devices + 1) // 2, "gather": devices, "patience_seconds": PATIENCE_SECONDS,
        "pause_seconds": PAUSE_SECONDS, **({"robust": robust} if robust else {}),
        "stop": {"patience": STOP_PATIENCE},
    }  # fmt: skip


def robust_for(method: Mapping[str, Any]) -> dict[str, str]:
    name, hyper = split_method(dict(method))
    known = load(name)
    accepted = accepted_rules(known.under(decode(known.Hyper, hyper, "method")))
    return {setting: rule for setting, rule in ROBUST.items() if setting in accepted}


def parts_for(devices: int) -> int:
    """Return the number of parts into which each domain is divided."""
    return min(MOST_PARTS, max(LEAST_PARTS, -(-devices // len(DOMAINS))))


def own_digits(number: int, parts: int) -> dict[str, Any]:
    """Return the domain and the part of a domain for the device with this number; the first number is 0.

    Each device gets part 0 of the next domain. After the last domain, the devices get part 1 of each domain.
    """
    return {"domain": DOMAINS[number % len(DOMAINS)], "part": number // len(DOMAINS) % parts}


def _digits_beside(fleet: Fleet, number: int) -> dict[str, Any]:
    """Return the domain and the part for a new device.

    The result is {} if the data settings in the fleet's file are no longer the digits that `init` wrote.
    """
    data = fleet.device.get("data", {})
    dealt = data.get("source") == "digits" and "parts" in data and not {"domain", "part"} & data.keys()
    return own_digits(number, data["parts"]) if dealt else {}


def host_table(text: str) -> dict[str, Any]:
    found = PLACE.fullmatch(text)
    if found is None:
        form = "USER@ADDRESS or USER@ADDRESS:PORT; an IPv6 address with a port needs brackets"
        raise SettingsError(f"{text!r} is not a host; write {form}")
    user, bracketed, plain, port, other_user, other = found.groups()
    table: dict[str, Any] = {"address": bracketed or plain or other}
    if user or other_user:
        table["user"] = user or other_user
    if port:
        table["port"] = int(port)
    return table


def _device(name: str) -> str:
    if name in (BROKER, COORDINATOR):
        raise SettingsError(
            f"a device cannot be called {name!r}, because the host with this name has another role"
        )
    try:
        return valid_device(name)
    except ValueError as error:
        raise SettingsError(str(error)) from None
