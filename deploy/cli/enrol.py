"""`protofleet enrol ...`: what can be asked. Heavy imports happen in the jobs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from protofleet.deploy.cli.flags import DAYS, DEVICES, DUE, OPTIONAL_PORT, PORT, YEARS

Jobs = Any  # argparse keeps the type of its sub-parsers to itself

PARTS = ("device", "coordinator", "broker")
ROOT_HELP = "the operator's folder, as `enrol root` made it"


def add_enrol(jobs: Jobs) -> None:
    job = jobs.add_parser("enrol", help="keys and certificates: who may take part, for how long")
    steps = job.add_subparsers(required=True, metavar="STEP", title="steps")
    for add in (
        _root, _request, _approve, _install, _coordinator, _broker, _fleet, _list, _renew, _revoke, _cut, _rotate,
    ):  # fmt: skip
        add(steps)


def _step(steps: Jobs, name: str, words: str, at_root: bool = False) -> argparse.ArgumentParser:
    step: argparse.ArgumentParser = steps.add_parser(name, help=words, description=words)
    if at_root:
        step.add_argument("--root", type=Path, required=True, metavar="DIR", help=ROOT_HELP)
    step.set_defaults(command=_run, step=name)
    return step


def _run(options: argparse.Namespace) -> int:
    from protofleet.deploy.enrol import commands as jobs

    code: int = jobs.JOBS[options.step](options)
    return code


def _root(steps: Jobs) -> None:
    step = _step(steps, "root", "operator: make the federation's offline root")
    step.add_argument("folder", type=Path, help="a new folder; keep it off the network, and a copy of it")
    step.add_argument("--federation", default="protofleet", metavar="NAME")
    step.add_argument("--years", type=YEARS, default=10.0, help="how long the root holds (default: 10)")


def _request(steps: Jobs) -> None:
    step = _step(steps, "request", "device: make keys here, and a request to send to the operator")
    step.add_argument("name", help="the device's name; or coordinator; or a broker's, with --host")
    step.add_argument("--federation", default="protofleet", metavar="NAME")
    step.add_argument("--host", action="append", default=[], help="of a broker: by which it is reached")
    step.add_argument("--folder", type=Path, default=Path("keys"), help="where keys stay (default: keys)")
    step.add_argument("--new-keys", action="store_true", help="even where there are keys")


def _approve(steps: Jobs) -> None:
    step = _step(steps, "approve", "operator: look at a request and answer it", at_root=True)
    step.add_argument("request", type=Path)
    step.add_argument("--days", type=DAYS, default=365.0, help="how long it holds (default: 365)")
    step.add_argument("--replace", action="store_true", help="the name gets other keys than it has")
    step.add_argument("--name", default="", help="whose request it shall be; any other is refused")
    step.add_argument(
        "--part", default="device", choices=PARTS, help="what may be asked for (default: device)"
    )
    _vouching(step, "the request")


def _install(steps: Jobs) -> None:
    step = _step(steps, "install", "device: put the operator's approval to use")
    step.add_argument("approval", type=Path)
    step.add_argument("--folder", type=Path, default=Path("keys"), help="where the keys are (default: keys)")
    _vouching(step, "the federation's root; asked for once, later it is known")
    _listening(step)


def _coordinator(steps: Jobs) -> None:
    words = "operator: request, approve and install for a coordinator on this machine"
    step = _step(steps, "coordinator", words, at_root=True)
    step.add_argument("--folder", type=Path, default=Path("keys"))
    step.add_argument("--days", type=DAYS, default=365.0)


def _broker(steps: Jobs) -> None:
    words = "operator: request, approve and install for a broker on this machine, with its mosquitto.conf"
    step = _step(steps, "broker", words, at_root=True)
    step.add_argument("host", nargs="+", help="names and addresses by which it is reached")
    step.add_argument("--name", default="broker")
    step.add_argument("--folder", type=Path, default=Path("broker"))
    step.add_argument("--days", type=DAYS, default=365.0)
    _listening(step)


def _fleet(steps: Jobs) -> None:
    step = _step(steps, "fleet", "a whole federation in one folder of this machine, to simulate one")
    step.add_argument("folder", type=Path)
    step.add_argument("names", nargs="*", help="of devices")
    step.add_argument("--count", type=DEVICES, default=0, help="so many more, named device-1 ...")
    step.add_argument("--federation", metavar="NAME", help="(default: protofleet, or what is there)")
    step.add_argument("--host", action="append", default=[], help="of the broker, beside this machine's own")
    step.add_argument("--days", type=DAYS, default=365.0)
    _listening(step)


def _list(steps: Jobs) -> None:
    step = _step(steps, "list", "operator: who is enrolled, until when", at_root=True)
    step.add_argument("--due", type=DUE, metavar="DAYS", help="only who has to be renewed by then")


def _renew(steps: Jobs) -> None:
    words = "operator: a later approval for keys that are enrolled; install it while the party runs on"
    step = _step(steps, "renew", words, at_root=True)
    step.add_argument("names", nargs="*")
    step.add_argument("--due", type=DUE, metavar="DAYS", help="everybody whose certificate ends by then")
    step.add_argument("--days", type=DAYS, default=365.0)


def _revoke(steps: Jobs) -> None:
    step = _step(steps, "revoke", "operator: nothing issued for this name is good any more", at_root=True)
    step.add_argument("name")
    step.add_argument("--reason", default="", help="for the register")
    step.add_argument(
        "--broker", type=Path, metavar="DIR", help="the broker's folder, where it runs on this machine"
    )


def _cut(steps: Jobs) -> None:
    words = "operator: end a revoked party's connection to a broker that has the new list already"
    step = _step(steps, "cut", words, at_root=True)
    step.add_argument("name")
    step.add_argument("address", metavar="HOST:PORT", help="of the broker")


def _rotate(steps: Jobs) -> None:
    words = "operator: replace the root itself; while it lasts there are two"
    step = _step(steps, "rotate", words, at_root=True)
    step.add_argument("--finish", action="store_true", help="end the old root; its keys are destroyed")
    step.add_argument("--force", action="store_true", help="though not everybody has followed")
    step.add_argument("--years", type=YEARS, help="how long the new root holds (default: 10)")


def _vouching(step: argparse.ArgumentParser, whose: str) -> None:
    group = step.add_mutually_exclusive_group()
    group.add_argument("--fingerprint", default="", help=f"of {whose}; else it is shown and asked for")
    group.add_argument("--yes", action="store_true", help="believe it without comparing")


def _listening(step: argparse.ArgumentParser) -> None:
    """Nothing where nothing is said: what a mosquitto.conf says already stays."""
    group = step.add_argument_group("a broker's mosquitto.conf")
    group.add_argument("--port", type=PORT, help="(default: 8883)")
    group.add_argument("--listen", metavar="ADDRESS", help="(default: 0.0.0.0, all)")
    group.add_argument(
        "--plain-port", type=OPTIONAL_PORT, help="without TLS, for 127.0.0.1; 0: none (default)"
    )
    words = "whom Mosquitto becomes when root starts it (default: mosquitto, where root says this)"
    group.add_argument("--user", help=words)
