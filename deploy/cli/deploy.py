"""`protofleet deploy` and `protofleet doctor`: what can be said to them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from protofleet.deploy.cli.flags import HOURS

Jobs = Any  # argparse keeps the type of its sub-parsers to itself

EXIT_CODES: Final = (
    "exit codes: 0 all is well (a WARN is); 1 a check, a step or a device has failed; "
    "2 it cannot be used like this"
)


def add_deploy(jobs: Jobs) -> None:
    words = "a fleet of devices over SSH, from one TOML file"
    steps = jobs.add_parser("deploy", help=words, epilog=EXIT_CODES).add_subparsers(
        required=True, metavar="STEP", title="steps"
    )
    _step(steps, "plan", "what `apply` would do, and nothing is done")
    apply = _step(steps, "apply", "bring devices to what the file says; a second time changes nothing")
    group = apply.add_argument_group("new devices")
    group.add_argument(
        "--yes", action="store_true", help="approve their requests without comparing fingerprints"
    )
    group.add_argument(
        "--replace", action="store_true", help="a name that is enrolled may come with other keys"
    )
    apply.add_argument("--force", action="store_true", help="deploy again what has failed on a device before")
    _step(steps, "status", "how every device does")
    _step(steps, "doctor", "whether the devices are fit for it").add_argument(
        "--strict", action="store_true", help="a WARN counts as a FAIL"
    )
    _step(steps, "drain", "stop devices when the work in hand is done; `apply` starts them again")
    _step(steps, "rollback", "back to the good state before the present one")
    tune = _step(steps, "tune", "change a few settings for some hours, signed; then all is as it was")
    tune.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="none: end it now")
    tune.add_argument("--hours", type=HOURS, default=1.0, help="(default: 1)")
    revoke = _step(steps, "revoke", "end devices' enrolment, stop them, and destroy their keys")
    revoke.add_argument("--reason", default="", help="for the register")
    revoke.add_argument("--broker", type=Path, metavar="DIR", help="the broker's folder, where it runs here")


def add_doctor(jobs: Jobs) -> None:
    job = jobs.add_parser("doctor", help="whether this machine is fit to be a device", epilog=EXIT_CODES)
    job.add_argument("--strict", action="store_true", help="a WARN counts as a FAIL")
    job.add_argument("--gpu", action="store_true", help="it is to train on its GPU")
    job.add_argument("--containers", action="store_true", help="it is to run the container")
    job.add_argument("--broker", default="", metavar="HOST:PORT", help="to be reached from here")
    job.set_defaults(command=doctor)


def _step(steps: Jobs, name: str, words: str) -> argparse.ArgumentParser:
    step: argparse.ArgumentParser = steps.add_parser(name, help=words, description=words, epilog=EXIT_CODES)
    step.add_argument("hosts", nargs="*", metavar="HOST", help="names from the file (default: all)")
    step.add_argument("--fleet", type=Path, default=Path("fleet.toml"), help="(default: fleet.toml)")
    step.set_defaults(command=deploy, step=name)
    return step


def deploy(options: argparse.Namespace) -> int:
    from protofleet.deploy.fleet.commands import JOBS

    return JOBS[options.step](options)


def doctor(options: argparse.Namespace) -> int:
    from protofleet.deploy.fleet.commands import doctor_here

    return doctor_here(options)
