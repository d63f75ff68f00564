"""Implement `protofleet deploy` and `protofleet doctor`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from protofleet.runtime.command.arguments import HOURS, ROUND, Subparsers
from protofleet.runtime.command.listing import add_listing_options

EXIT_CODES: Final = (
    "exit codes: 0 no failure (there may be warnings); 1 a check, a step or a host has failed; "
    "2 the command or the file cannot be used"
)


def add_deploy(commands: Subparsers) -> None:
    text = "deploy a fleet over SSH from one TOML file: devices, and the broker and coordinator if the file has them"
    steps = commands.add_parser("deploy", help=text, epilog=EXIT_CODES).add_subparsers(
        required=True, metavar="STEP", title="steps"
    )
    known = _step(
        steps, "known-hosts", "show the fingerprints of the hosts' SSH keys, and trust those that you confirm"
    )
    known.add_argument(
        "--yes", action="store_true", help="trust the keys without comparing their fingerprints"
    )
    add_listing_options(_step(steps, "plan", "list the steps of `apply` in order, and change nothing"))
    apply = _step(
        steps,
        "apply",
        "bring hosts to the state that the file describes; hosts that are already in this state do not change",
    )
    _add_new_keys(apply)
    apply.add_argument(
        "--force", action="store_true", help="deploy the state even if this state has failed on a host before"
    )
    add_listing_options(_step(steps, "status", "show the state of every host"))
    checked = _step(steps, "doctor", "check whether the hosts meet the requirements")
    checked.add_argument("--strict", action="store_true", help="treat a WARN as a FAIL")
    add_listing_options(checked)
    _step(steps, "drain", "stop devices when their current work is done; `apply` starts them again")
    _step(steps, "rollback", "return to the last good state before the present one")
    tune = _step(
        steps,
        "tune",
        "change settings for some hours with a signed order; afterwards the old values are used again",
    )
    tune.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="the setting to change; without --set, the present change ends now",
    )
    tune.add_argument(
        "--hours",
        type=HOURS,
        default=1.0,
        help="hours after which the old values are used again (default: 1)",
    )
    backup = _step(
        steps,
        "backup",
        "copy a coordinator's runs to this machine; the coordinator is stopped during the copy",
    )
    backup.add_argument(
        "--to", type=Path, default=Path("backup"), metavar="DIR", help="folder of the copy (default: backup)"
    )
    restore = _step(steps, "restore", "deploy a coordinator with the runs of a backup")
    restore.add_argument(
        "--from",
        dest="source",
        type=Path,
        default=Path("backup"),
        metavar="DIR",
        help="folder of the backup (default: backup)",
    )
    restore.add_argument(
        "--from-round", type=ROUND, metavar="N",
        help="first round for which no device has sent an update; needed if devices have worked since the backup",
    )  # fmt: skip
    _add_new_keys(restore)
    _step(
        steps, "forget", "end the enrolment of hosts without the federation's root, for a root that is lost"
    )
    revoke = _step(steps, "revoke", "end devices' enrolment, stop them, and destroy their keys")
    revoke.add_argument("--reason", default="", help="the reason to write into the register")
    revoke.add_argument(
        "--broker", type=Path, metavar="DIR", help="the broker's folder, if the broker runs on this machine"
    )


def _add_new_keys(step: argparse.ArgumentParser) -> None:
    group = step.add_argument_group("new hosts")
    group.add_argument(
        "--yes", action="store_true", help="approve their requests without comparing fingerprints"
    )
    group.add_argument("--replace", action="store_true", help="allow an enrolled name to get new keys")


def add_doctor(commands: Subparsers) -> None:
    command = commands.add_parser(
        "doctor", help="check whether this machine meets the requirements of a device", epilog=EXIT_CODES
    )
    command.add_argument("--strict", action="store_true", help="treat a WARN as a FAIL")
    command.add_argument("--gpu", action="store_true", help="also check the GPU")
    command.add_argument("--containers", action="store_true", help="also check what containers need")
    command.add_argument(
        "--broker", default="", metavar="HOST:PORT", help="also check that this machine can reach the broker"
    )
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
