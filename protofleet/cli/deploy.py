"""Implement `protofleet deploy` and `protofleet doctor`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from protofleet.runtime.command.arguments import HOURS, ROUND, Subparsers
from protofleet.runtime.command.listing import add_listing_options

EXIT_CODES: Final = (
    "exit codes: 0 all is well (warnings too); 1 a check, a step or a host has failed; "
    "2 the command or the file cannot be used"
)


def add_deploy(commands: Subparsers) -> None:
    text = (
        "a fleet over SSH, from one TOML file: devices, and broker and coordinator where it names their hosts"
    )
    steps = commands.add_parser("deploy", help=text, epilog=EXIT_CODES).add_subparsers(
        required=True, metavar="STEP", title="steps"
    )
    known = _step(steps, "known-hosts", "show the fingerprints of hosts' keys, and believe whom you confirm")
    known.add_argument("--yes", action="store_true", help="believe them without comparing")
    add_listing_options(_step(steps, "plan", "what `apply` would do, in its order; nothing is changed"))
    apply = _step(
        steps, "apply", "bring hosts to the state that the file describes; a second time changes nothing"
    )
    _add_new_keys(apply)
    apply.add_argument("--force", action="store_true", help="deploy again what has failed on a host before")
    add_listing_options(_step(steps, "status", "the state of every host"))
    checked = _step(steps, "doctor", "whether the hosts meet the requirements")
    checked.add_argument("--strict", action="store_true", help="a WARN counts as a FAIL")
    add_listing_options(checked)
    _step(steps, "drain", "stop devices when their current work is done; `apply` starts them again")
    _step(steps, "rollback", "back to the last good state before the present one")
    tune = _step(
        steps, "tune", "change a few settings for some hours, signed; afterwards the old ones hold again"
    )
    tune.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="none: end the change now"
    )
    tune.add_argument("--hours", type=HOURS, default=1.0, help="(default: 1)")
    backup = _step(
        steps, "backup", "a copy of a coordinator's runs, which stops it for as long as that takes"
    )
    backup.add_argument("--to", type=Path, default=Path("backup"), metavar="DIR", help="(default: backup)")
    restore = _step(steps, "restore", "deploy a coordinator, and put such a copy in place before it starts")
    restore.add_argument("--from", dest="source", type=Path, default=Path("backup"), metavar="DIR")
    restore.add_argument(
        "--from-round", type=ROUND, metavar="N",
        help="the first round that no device has answered, where they have gone on since the copy",
    )  # fmt: skip
    _add_new_keys(restore)
    _step(steps, "forget", "end hosts' enrolment in whatever federation they are, for a root that is lost")
    revoke = _step(steps, "revoke", "end devices' enrolment, stop them, and destroy their keys")
    revoke.add_argument("--reason", default="", help="recorded in the register")
    revoke.add_argument("--broker", type=Path, metavar="DIR", help="the broker's folder, where it runs here")


def _add_new_keys(step: argparse.ArgumentParser) -> None:
    group = step.add_argument_group("new hosts")
    group.add_argument(
        "--yes", action="store_true", help="approve their requests without comparing fingerprints"
    )
    group.add_argument("--replace", action="store_true", help="an enrolled name may get other keys")


def add_doctor(commands: Subparsers) -> None:
    command = commands.add_parser(
        "doctor", help="whether this machine meets the requirements of a device", epilog=EXIT_CODES
    )
    command.add_argument("--strict", action="store_true", help="a WARN counts as a FAIL")
    command.add_argument("--gpu", action="store_true", help="check the GPU too")
    command.add_argument("--containers", action="store_true", help="check for containers too")
    command.add_argument("--broker", default="", metavar="HOST:PORT", help="to be reached from here")
    add_listing_options(command)
    command.set_defaults(command=doctor)


def _step(steps: Subparsers, name: str, text: str) -> argparse.ArgumentParser:
    step: argparse.ArgumentParser = steps.add_parser(name, help=text, description=text, epilog=EXIT_CODES)
    step.add_argument("hosts", nargs="*", metavar="HOST", help="names from the file (default: all)")
    step.add_argument("--fleet", type=Path, default=Path("fleet.toml"), help="(default: fleet.toml)")
    step.set_defaults(command=deploy, step=name)
    return step


def deploy(options: argparse.Namespace) -> int:
    from protofleet.deploy.fleet import commands

    return commands.run(options.step, options)


def doctor(options: argparse.Namespace) -> int:
    from protofleet.deploy.fleet.commands import check_this_machine

    return check_this_machine(options)
