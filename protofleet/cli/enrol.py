"""Implement `protofleet enrol ...` and `protofleet keys`."""

from __future__ import annotations

import argparse
from pathlib import Path

from protofleet.runtime.command.arguments import DAYS, DEVICES, DUE, OPTIONAL_PORT, PORT, YEARS, Subparsers
from protofleet.runtime.command.listing import add_listing_options

PARTS = ("device", "coordinator", "broker")
ROOT_HELP = "the operator's folder, as `enrol root` made it"


def add_enrol(commands: Subparsers) -> None:
    command = commands.add_parser("enrol", help="keys and certificates: who may take part, for how long")
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
    step.add_argument("folder", type=Path, help="a new folder; keep it off the network, and a copy of it")
    step.add_argument("--federation", default="protofleet", metavar="NAME")
    step.add_argument("--years", type=YEARS, default=10.0, help="how long the root is valid (default: 10)")


def _request(steps: Subparsers) -> None:
    step = _step(steps, "request", "device: make keys here, and a request to send to the operator")
    step.add_argument("name", help="the device's name; or coordinator; or a broker's, with --host")
    step.add_argument("--federation", default="protofleet", metavar="NAME")
    step.add_argument("--host", action="append", default=[], help="of a broker: its host name or address")
    step.add_argument(
        "--folder", type=Path, default=Path("keys"), help="where the keys are kept (default: keys)"
    )
    step.add_argument("--new-keys", action="store_true", help="even if there are keys already")


def _approve(steps: Subparsers) -> None:
    step = _step(steps, "approve", "operator: check a request and approve it", at_root=True)
    step.add_argument("request", type=Path)
    step.add_argument("--days", type=DAYS, default=365.0, help="how long it is valid (default: 365)")
    step.add_argument("--replace", action="store_true", help="the name gets other keys than those it has")
    step.add_argument("--name", default="", help="whose request it must be; any other is refused")
    step.add_argument(
        "--part", default="device", choices=PARTS, help="what may be asked for (default: device)"
    )
    _add_trust_options(step, "the request")


def _install(steps: Subparsers) -> None:
    step = _step(steps, "install", "device: install the operator's approval")
    step.add_argument("approval", type=Path)
    step.add_argument("--folder", type=Path, default=Path("keys"), help="where the keys are (default: keys)")
    _add_trust_options(step, "the federation's root; asked for once, known later")
    _add_listener_options(step)


def _coordinator(steps: Subparsers) -> None:
    text = "operator: request, approve and install for a coordinator on this machine"
    step = _step(steps, "coordinator", text, at_root=True)
    step.add_argument("--folder", type=Path, default=Path("keys"))
    step.add_argument("--days", type=DAYS, default=365.0)


def _broker(steps: Subparsers) -> None:
    text = "operator: request, approve and install for a broker on this machine, with its mosquitto.conf"
    step = _step(steps, "broker", text, at_root=True)
    step.add_argument("host", nargs="+", help="names and addresses by which it is reached")
    step.add_argument("--name", default="broker")
    step.add_argument("--folder", type=Path, default=Path("broker"))
    step.add_argument("--days", type=DAYS, default=365.0)
    _add_listener_options(step)


def _fleet(steps: Subparsers) -> None:
    step = _step(steps, "fleet", "a whole federation in one folder of this machine, to simulate one")
    step.add_argument("folder", type=Path)
    step.add_argument("names", nargs="*", help="of devices")
    step.add_argument("--count", type=DEVICES, default=0, help="so many more devices, named device-1 ...")
    step.add_argument("--federation", metavar="NAME", help="(default: protofleet, or that of the folder)")
    step.add_argument(
        "--host", action="append", default=[], help="of the broker, in addition to this machine's own"
    )
    step.add_argument("--days", type=DAYS, default=365.0)
    _add_listener_options(step)


def _list(steps: Subparsers) -> None:
    step = _step(steps, "list", "operator: list who is enrolled, and until when", at_root=True)
    step.add_argument("--due", type=DUE, metavar="DAYS", help="only those to be renewed within so many days")
    add_listing_options(step)


def _renew(steps: Subparsers) -> None:
    text = "operator: a later approval for keys that are enrolled; install it while the device or coordinator runs"
    step = _step(steps, "renew", text, at_root=True)
    step.add_argument("names", nargs="*")
    step.add_argument(
        "--due", type=DUE, metavar="DAYS", help="all whose certificates expire within so many days"
    )
    step.add_argument("--days", type=DAYS, default=365.0)


def _revoke(steps: Subparsers) -> None:
    step = _step(steps, "revoke", "operator: revoke all that was issued for this name", at_root=True)
    step.add_argument("name")
    step.add_argument("--reason", default="", help="for the register")
    step.add_argument(
        "--broker", type=Path, metavar="DIR", help="the broker's folder, where it runs on this machine"
    )


def _cut(steps: Subparsers) -> None:
    text = "operator: end a revoked party's connection to a broker that has the new list already"
    step = _step(steps, "cut", text, at_root=True)
    step.add_argument("name")
    step.add_argument("address", metavar="HOST:PORT", help="of the broker")


def _rotate(steps: Subparsers) -> None:
    text = "operator: replace the root itself; until it is finished there are two"
    step = _step(steps, "rotate", text, at_root=True)
    step.add_argument("--finish", action="store_true", help="end the old root; its keys are destroyed")
    step.add_argument("--force", action="store_true", help="even if some have not installed the new root")
    step.add_argument("--years", type=YEARS, help="how long the new root is valid (default: 10)")


def _add_trust_options(step: argparse.ArgumentParser, whose: str) -> None:
    group = step.add_mutually_exclusive_group()
    group.add_argument("--fingerprint", default="", help=f"of {whose}; else it is shown and asked for")
    group.add_argument("--yes", action="store_true", help="trust it without comparing")


def _add_listener_options(step: argparse.ArgumentParser) -> None:
    """Add the options without defaults, so that existing values of a mosquitto.conf are kept."""
    group = step.add_argument_group("a broker's mosquitto.conf")
    group.add_argument("--port", type=PORT, help="(default: 8883)")
    group.add_argument("--devices", type=DEVICES, metavar="N", help="that share its memory (default: 64)")
    group.add_argument("--listen", metavar="ADDRESS", help="(default: 0.0.0.0, all)")
    group.add_argument(
        "--plain-port", type=OPTIONAL_PORT, help="without TLS, for 127.0.0.1; 0: none (default)"
    )
    text = "the user that Mosquitto changes to when root starts it (default: mosquitto, if root runs this)"
    group.add_argument("--user", help=text)


def add_keys(commands: Subparsers) -> None:
    command = commands.add_parser("keys", help="make keys: <name>.key to keep, <name>.pub to hand out")
    command.add_argument("names", nargs="+", help="coordinator, or a device's name")
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
        print(f"{path} (keep it here)  {options.folder / f'{name}.pub'} (hand it out)")
    return 0
