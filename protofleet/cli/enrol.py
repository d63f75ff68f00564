"""Implement `protofleet enrol ...` and `protofleet keys`."""

from __future__ import annotations

import argparse
from pathlib import Path

from protofleet.runtime.command.arguments import DAYS, DEVICES, DUE, OPTIONAL_PORT, PORT, YEARS, Subparsers
from protofleet.runtime.command.listing import add_listing_options

KINDS = ("mosquitto", "ejabberd")
PARTS = ("device", "coordinator", "broker", "operator")
ROOT_HELP = "the root's folder, which `enrol root` made"


def add_enrol(commands: Subparsers) -> None:
    command = commands.add_parser(
        "enrol", help="manage keys and certificates: which devices may take part, and until when"
    )
    steps = command.add_subparsers(required=True, metavar="STEP", title="steps")
    for add in (
        _root, _request, _approve, _install, _coordinator, _broker, _fleet, _list, _renew, _revoke, _cut, _rotate,
    ):  # fmt: skip
        add(steps)


def _step(steps: Subparsers, name: str, text: str, at_root: bool = False) -> argparse.ArgumentParser:
    step: argparse.ArgumentParser = steps.add_parser(name, help=text, description=text)
    if at_root:
        step.add_argument("--root", type=Path, required=True, metavar="DIR", help=ROOT_HELP)
    step.set_defaults(command=_run, step=name)
    return step


def _run(options: argparse.Namespace) -> int:
    from protofleet.federation.enrol.commands import COMMANDS

    code: int = COMMANDS[options.step](options)
    return code


def _root(steps: Subparsers) -> None:
    step = _step(steps, "root", "operator: make the federation's offline root")
    step.add_argument("folder", type=Path, help="a new folder; keep it and a copy of it offline")
    step.add_argument("--federation", default="protofleet", metavar="NAME")
    step.add_argument("--years", type=YEARS, default=10.0, help="how long the root is valid (default: 10)")


def _request(steps: Subparsers) -> None:
    step = _step(steps, "request", "device: make keys here, and a request to send to the operator")
    step.add_argument("name", help="a device's name, `coordinator`, or a broker's name together with --host")
    step.add_argument("--federation", default="protofleet", metavar="NAME")
    step.add_argument("--host", action="append", default=[], help="for a broker: its host name or address")
    step.add_argument(
        "--part", choices=PARTS, help="`operator` for a person who gives commands to the coordinator"
    )
    step.add_argument("--folder", type=Path, default=Path("keys"), help="folder of the keys (default: keys)")
    step.add_argument("--new-keys", action="store_true", help="make new keys even if the folder has keys")


def _approve(steps: Subparsers) -> None:
    step = _step(steps, "approve", "operator: check a request and approve it", at_root=True)
    step.add_argument("request", type=Path)
    step.add_argument(
        "--days", type=DAYS, default=365.0, help="how long the approval is valid (default: 365)"
    )
    step.add_argument("--replace", action="store_true", help="give an enrolled name new keys")
    step.add_argument("--name", default="", help="refuse a request for any other name")
    step.add_argument(
        "--part",
        choices=PARTS,
        help="refuse a request for any other kind of party (default: device, or operator with --grants)",
    )
    step.add_argument(
        "--grants",
        default="",
        metavar="LIST",
        help="commands of an operator: view, run, admit, deploy, lead; with commas",
    )
    _add_trust_options(step, "the request")


def _install(steps: Subparsers) -> None:
    step = _step(steps, "install", "device: install the operator's approval")
    step.add_argument("approval", type=Path)
    step.add_argument("--folder", type=Path, default=Path("keys"), help="folder of the keys (default: keys)")
    _add_trust_options(step, "the federation's root, asked for the first time only")
    _add_listener_options(step)


def _coordinator(steps: Subparsers) -> None:
    text = "operator: request, approve and install for a coordinator on this machine"
    step = _step(steps, "coordinator", text, at_root=True)
    step.add_argument("--folder", type=Path, default=Path("keys"))
    step.add_argument("--days", type=DAYS, default=365.0)


def _broker(steps: Subparsers) -> None:
    text = "operator: request, approve and install for a broker on this machine, with its settings and rules"
    step = _step(steps, "broker", text, at_root=True)
    step.add_argument("host", nargs="+", help="names and addresses at which clients reach the broker")
    step.add_argument("--name", default="broker")
    step.add_argument("--folder", type=Path, default=Path("broker"))
    step.add_argument(
        "--kind", choices=KINDS, default=KINDS[0],
        help="broker for which files are written (default: mosquitto); for ejabberd, again after each revocation",
    )  # fmt: skip
    step.add_argument("--days", type=DAYS, default=365.0)
    _add_listener_options(step)


def _fleet(steps: Subparsers) -> None:
    step = _step(
        steps,
        "fleet",
        "make a federation for a simulation: root, broker, coordinator and devices in one folder",
    )
    step.add_argument("folder", type=Path)
    step.add_argument("names", nargs="*", help="names of devices")
    step.add_argument(
        "--count", type=DEVICES, default=0, help="add this number of devices, named device-1 ..."
    )
    step.add_argument(
        "--federation", metavar="NAME", help="(default: the folder's federation, or protofleet)"
    )
    step.add_argument(
        "--host",
        action="append",
        default=[],
        help="another name or address of the broker, in addition to this machine's",
    )
    step.add_argument("--days", type=DAYS, default=365.0)
    _add_listener_options(step)


def _list(steps: Subparsers) -> None:
    step = _step(steps, "list", "operator: list the enrolled names and when each one ends", at_root=True)
    step.add_argument(
        "--due", type=DUE, metavar="DAYS", help="list only certificates that expire within DAYS days"
    )
    add_listing_options(step)


def _renew(steps: Subparsers) -> None:
    text = (
        "operator: extend the approval of enrolled keys; the new approval can be installed while the device or "
        "coordinator runs"
    )
    step = _step(steps, "renew", text, at_root=True)
    step.add_argument("names", nargs="*")
    step.add_argument(
        "--due", type=DUE, metavar="DAYS", help="renew all certificates that expire within DAYS days"
    )
    step.add_argument("--days", type=DAYS, default=365.0)


def _revoke(steps: Subparsers) -> None:
    step = _step(steps, "revoke", "operator: revoke all certificates of a name", at_root=True)
    step.add_argument("name")
    step.add_argument("--reason", default="", help="the reason to write into the register")
    step.add_argument(
        "--broker", type=Path, metavar="DIR", help="the broker's folder, if the broker runs on this machine"
    )


def _cut(steps: Subparsers) -> None:
    text = (
        "operator: end the connection of a revoked name to a broker that already has the new revocation list"
    )
    step = _step(steps, "cut", text, at_root=True)
    step.add_argument("name")
    step.add_argument("address", metavar="HOST:PORT", help="address of the broker")


def _rotate(steps: Subparsers) -> None:
    text = "operator: replace the root; both roots are valid until --finish"
    step = _step(steps, "rotate", text, at_root=True)
    step.add_argument("--finish", action="store_true", help="end the old root and destroy its keys")
    step.add_argument(
        "--force",
        action="store_true",
        help="use together with --finish: finish the rotation even if some devices have not installed the new root",
    )
    step.add_argument("--years", type=YEARS, help="how long the new root is valid (default: 10)")


def _add_trust_options(step: argparse.ArgumentParser, whose: str) -> None:
    group = step.add_mutually_exclusive_group()
    group.add_argument(
        "--fingerprint",
        default="",
        help=f"fingerprint of {whose}; without this option, the command shows the fingerprint and asks you",
    )
    group.add_argument("--yes", action="store_true", help="continue without comparing the fingerprint")


def _add_listener_options(step: argparse.ArgumentParser) -> None:
    """Add the options of a listener. They have no defaults, so that existing values of a mosquitto.conf are kept."""
    group = step.add_argument_group("a broker's mosquitto.conf")
    group.add_argument("--port", type=PORT, help="port with TLS (default: 8883)")
    group.add_argument(
        "--devices",
        type=DEVICES,
        metavar="N",
        help="number of devices that share the broker's memory (default: 64)",
    )
    group.add_argument(
        "--listen",
        metavar="ADDRESS",
        help="address on which the broker listens (default: 0.0.0.0, all addresses)",
    )
    group.add_argument(
        "--plain-port", type=OPTIONAL_PORT, help="port without TLS, on 127.0.0.1 only (default: 0, none)"
    )
    text = (
        "the user of the broker, to whom the files are given (default: mosquitto or ejabberd, if root runs this "
        "command and the user exists)"
    )
    group.add_argument("--user", help=text)


def add_keys(commands: Subparsers) -> None:
    command = commands.add_parser(
        "keys", help="make keys: keep <name>.key secret, give <name>.pub to the other machines"
    )
    command.add_argument("names", nargs="+", help="`coordinator`, or a device's name")
    command.add_argument("--folder", type=Path, default=Path("keys"))
    command.set_defaults(command=keys)


def keys(options: argparse.Namespace) -> int:
    from protofleet.protocol.security.keys import Keys, save_keys, save_public
    from protofleet.protocol.settings.reader import SettingsError
    from protofleet.protocol.wire.names import valid_name

    for name in options.names:
        try:
            valid_name(name)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        path = options.folder / f"{name}.key"
        if path.exists():
            raise SettingsError(f"{path} exists; remove it first to replace the old key")
        key_pair = Keys.new()
        save_keys(path, key_pair)
        save_public(options.folder / f"{name}.pub", key_pair.public)
        print(f"{path} (keep it secret)  {options.folder / f'{name}.pub'} (give it to the other machines)")
    return 0
