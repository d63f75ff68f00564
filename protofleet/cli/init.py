"""Implement `protofleet init`: make a new fleet in a folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from protofleet.runtime.command.arguments import Subparsers
from protofleet.runtime.installation.version import program_words

ADDRESS = "USER@ADDRESS"


def add_init(commands: Subparsers) -> None:
    text = "make a new fleet (its root, and one file with matching settings for all hosts), or add devices to a fleet"
    command = commands.add_parser("init", help=text, description=text)
    command.add_argument("folder", type=Path, nargs="?", default=Path("fleet"), help="(default: fleet)")
    command.add_argument(
        "--broker",
        metavar=ADDRESS,
        help="SSH address of the broker's host; leave this option out to add devices to a fleet",
    )
    command.add_argument(
        "--coordinator",
        metavar=ADDRESS,
        help="SSH address of the coordinator's host; it may be the same host as the broker's",
    )
    command.add_argument(
        "--device",
        action="append",
        required=True,
        metavar=f"NAME={ADDRESS}",
        help="a device; repeat the option for each further device",
    )
    command.add_argument("--federation", default="protofleet", metavar="NAME")
    command.add_argument(
        "--key", type=Path, help="the private key for SSH (default: the key in your SSH configuration)"
    )
    command.add_argument(
        "--dependencies", choices=("index", "shipped", "system"), default="index",
        help="the source of torch for the hosts; see docs/deploy.md (default: index)",
    )  # fmt: skip
    command.add_argument(
        "--queue", action="store_true",
        help="write a coordinator that stays up and conducts submitted runs, and the first run as first.toml",
    )  # fmt: skip
    command.add_argument(
        "--method", metavar="NAME",
        help="method of the first run; a method that sends statistics of classes gets least_samples = 5 "
        "(default: fedavg)",
    )  # fmt: skip
    command.set_defaults(command=init)


def init(options: argparse.Namespace) -> int:
    from protofleet.deploy.fleet.setup.new_fleet import METHOD, RUN_FILE, Addresses, write_fleet
    from protofleet.protocol.settings.reader import SettingsError

    devices = _devices_in(options.device)
    if options.key and not options.key.is_file():
        raise SettingsError(
            f"--key is {options.key}, but this file does not exist; give the path of the private key for ssh"
        )
    key = {"key": str(options.key.absolute())} if options.key else {}
    common = {"host": key, "software": {"dependencies": options.dependencies}}
    if _adds_devices(options):
        return _add(options, devices, common)
    if options.broker is None or options.coordinator is None:
        raise SettingsError("a new fleet needs --broker and --coordinator; both may be on the same host")
    addresses = Addresses(options.broker, options.coordinator, devices)
    method = options.method or METHOD
    path = write_fleet(options.folder, options.federation, addresses, common, options.queue, method)
    count = "1 device" if len(devices) == 1 else f"{len(devices)} devices"
    print(f"{path}: a broker, a coordinator and {count} of {options.federation}")
    if options.queue:
        print(f"{options.folder / RUN_FILE}: the first run; submit it to the coordinator (docs/day-0.md)")
    print(f"{options.folder / 'root'}: the root of trust; keep it offline, and keep a copy in another place")
    print(f"{options.folder / 'targets.json'}: addresses of the metrics, for file_sd_configs of Prometheus")
    print(f"next: {program_words()} deploy known-hosts --fleet {path}")
    return 0


def _devices_in(words: list[str]) -> dict[str, str]:
    """Return the address of each device that is named on the command line."""
    from protofleet.protocol.settings.reader import SettingsError

    devices: dict[str, str] = {}
    for text in words:
        name, equals, address = text.partition("=")
        if not equals:
            raise SettingsError(f"--device is {text!r}, it must be NAME={ADDRESS}")
        if name in devices:
            raise SettingsError(f"--device names {name} twice; give each device another name")
        devices[name] = address
    return devices


def _adds_devices(options: argparse.Namespace) -> bool:
    from protofleet.deploy.fleet.setup.new_fleet import FLEET_FILE

    return options.broker is None and options.coordinator is None and (options.folder / FLEET_FILE).exists()


def _add(options: argparse.Namespace, devices: dict[str, str], common: dict[str, Any]) -> int:
    from protofleet.deploy.fleet.setup.new_fleet import FLEET_FILE, add_devices
    from protofleet.protocol.settings.reader import SettingsError

    if options.method:
        raise SettingsError(
            f"--method is for a new fleet, and {options.folder / FLEET_FILE} exists; leave it out to add devices, "
            "and change the method in the file"
        )
    if options.queue:
        raise SettingsError(
            f"--queue is for a new fleet, and {options.folder / FLEET_FILE} exists; leave it out to add devices, or "
            "give this fleet a queue by hand (docs/day-2.md, Submit runs)"
        )
    path = add_devices(options.folder, devices, common)
    print(f"{path}: {', '.join(devices)} added")
    print(f"next: {program_words()} deploy known-hosts {' '.join(devices)} --fleet {path}")
    return 0
