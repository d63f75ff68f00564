"""The commands of `protofleet deploy`: what each does to a fleet's devices, and what it prints."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from protofleet.deploy.enrol import lifecycle
from protofleet.deploy.enrol.authority import Authority
from protofleet.deploy.enrol.disconnect import revoke_and_disconnect
from protofleet.deploy.errors import FAILED, RunError
from protofleet.deploy.fleet.checks import Check, Workload, failures, run_checks
from protofleet.deploy.fleet.control_plane import ControlPlane
from protofleet.deploy.fleet.deploy_log import DeployLog
from protofleet.deploy.fleet.device.facts import Facts, read_facts
from protofleet.deploy.fleet.device.scripts import Place
from protofleet.deploy.fleet.execute import gather_facts, require_success, upload
from protofleet.deploy.fleet.plan import Refuse, describe
from protofleet.deploy.fleet.rollout import Rollout, connections, roll_back_by_hand, workload_of
from protofleet.deploy.fleet.settings import Fleet, Host, read_fleet
from protofleet.deploy.fleet.software import make_release
from protofleet.deploy.fleet.ssh import Result, Ssh
from protofleet.deploy.fleet.status import status_line, status_title
from protofleet.protocol.settings.reader import SettingsError

Options = argparse.Namespace
T = TypeVar("T")
Connect: TypeAlias = Callable[[Fleet, dict[str, Host]], AbstractContextManager[dict[str, Ssh]]]
OK: Final = 0


@dataclass(frozen=True, slots=True)
class Deployment:
    """A fleet's file, opened for one command."""

    fleet: Fleet
    rollout: Rollout
    hosts: dict[str, Ssh]

    def run_on_each(self, job: Callable[[Ssh], T]) -> Iterator[tuple[str, T | RunError]]:
        """The job's result on each host, in their order; one that fails does not stop the others."""

        def tried(ssh: Ssh) -> T | RunError:
            try:
                return job(ssh)
            except RunError as error:
                return error

        with ThreadPoolExecutor(self.fleet.care.parallel) as pool:
            yield from zip(self.hosts, pool.map(tried, self.hosts.values()), strict=True)


@dataclass(frozen=True, slots=True)
class Command:
    run: Callable[[Deployment, Options], int]
    changes: bool = False  # it changes devices: only one such command may run at a time
    needs_hosts: bool = False  # no host named does not mean all hosts


def run(step: str, o: Options, connect: Connect = connections) -> int:
    command = COMMANDS[step]
    if command.needs_hosts and not o.hosts:
        raise SettingsError(f"name the devices to {step}; this command does not default to all")
    with _open(o, command.changes, connect) as deployment:
        return command.run(deployment, o)


@contextmanager
def _open(o: Options, changes: bool, connect: Connect) -> Iterator[Deployment]:
    fleet = read_fleet(o.fleet)
    chosen = fleet.selected(o.hosts)
    lock = _exclusive_lock(o.fleet) if changes else contextlib.nullcontext()
    with tempfile.TemporaryDirectory(prefix="protofleet-") as folder, lock:
        release = make_release(fleet.software, Path(folder) / "wheels")
        control = ControlPlane(fleet, release, _ask_for_fingerprint(o), getattr(o, "replace", False))
        for name in chosen:
            control.settings(name)  # a mistake in the file is found before any device is changed
        rollout = Rollout(fleet, control, DeployLog(Path(fleet.log)), _print, getattr(o, "force", False))
        with connect(fleet, chosen) as hosts:
            yield Deployment(fleet, rollout, hosts)


def plan(d: Deployment, o: Options) -> int:
    """Exit code 1 where a host cannot be reached or cannot be deployed."""
    changing, unfit = 0, []
    for name, planned in d.run_on_each(lambda ssh: d.rollout.plan(ssh)[2]):
        if isinstance(planned, RunError):
            unfit.append(name)
            _print(name, str(planned))
            continue
        for step in planned:
            _print(name, describe(step))
        if not planned:
            _print(name, "nothing to do")
        elif isinstance(planned[0], Refuse):
            unfit.append(name)
        else:
            changing += 1
    good = len(d.hosts) - changing - len(unfit)
    cannot = f"{len(unfit)} cannot be deployed{': ' * bool(unfit)}{', '.join(unfit)}"
    print(f"{len(d.hosts)} hosts: {changing} to be changed, {good} as they shall be, {cannot}")
    return FAILED if unfit else OK


def apply(d: Deployment, o: Options) -> int:
    outcomes = d.rollout.run(d.hosts)
    failed = [outcome for outcome in outcomes if outcome.problem]
    for outcome in failed:
        print(f"protofleet: {outcome.name}: {outcome.problem}", file=sys.stderr)
    changed = sum(1 for outcome in outcomes if outcome.changed)
    untouched = len(d.hosts) - len(outcomes)
    rest = f"; {untouched} not changed, because {d.rollout.stopped}" if untouched else ""
    print(f"{len(outcomes)} devices: {changed} changed, {len(failed)} failed{rest}")
    if d.rollout.stopped and not failed:
        message = f"{d.rollout.stopped}; `protofleet deploy rollback NAME` rolls a device back"
        print(f"protofleet: {message}", file=sys.stderr)
    return FAILED if failed or d.rollout.stopped else OK


def status(d: Deployment, o: Options) -> int:
    code = OK
    print(status_title())
    for name, facts in d.run_on_each(lambda ssh: _facts(d, ssh)):
        if isinstance(facts, RunError):
            code = FAILED
            print(f"{name:16} {facts}")
            continue
        line, healthy = status_line(name, facts, d.rollout.control.target(name, facts).desired)
        code = code if healthy else FAILED
        print(line)
    return code


def doctor(d: Deployment, o: Options) -> int:
    code = OK
    for name, checks in d.run_on_each(lambda ssh: _check(d, ssh)):
        if isinstance(checks, RunError):
            checks = [Check("ssh", "FAIL", str(checks), "nothing else can be checked until ssh works")]
        else:
            checks = [Check("ssh", "PASS", "it accepts our key, and its host key is the known one"), *checks]
        print(f"{name}:")
        code = max(code, print_checks(checks, o.strict))
    return code


def _facts(d: Deployment, ssh: Ssh, *how: str) -> Facts:
    return gather_facts(ssh, d.rollout.control.place(ssh.name), *how)


def _run_step(d: Deployment, ssh: Ssh, *words: str, seconds: float = 60.0) -> Result:
    return ssh.run(d.rollout.control.place(ssh.name).steps, *words, seconds=seconds)


def _check(d: Deployment, ssh: Ssh) -> list[Check]:
    control = d.rollout.control
    broker = control.settings(ssh.name).broker
    facts = _facts(d, ssh, "deep", "", broker.host, str(broker.port))
    return run_checks(facts, workload_of(d.fleet, control, ssh.name), time.time())


def check_this_machine(o: Options) -> int:
    """`protofleet doctor`, which has no fleet file."""
    host, colon, port = o.broker.rpartition(":")
    if o.broker and (not colon or not port.isdigit()):
        raise SettingsError(f"--broker is {o.broker!r}, which is not of the form HOST:PORT")
    command = ["sh", "-s", "--", "deep", sys.executable, host, port]
    done = subprocess.run(command, input=Place().facts, capture_output=True, text=True, check=False)
    workload = Workload("container" if o.containers else "venv", needs_gpu=o.gpu)
    facts = read_facts(done.stdout)
    return print_checks(run_checks(facts, workload, facts.now), o.strict)


def print_checks(checks: list[Check], strict: bool) -> int:
    for check in checks:
        fix = f"; {check.fix}" if check.fix and check.verdict != "PASS" else ""
        print(f"  {check.verdict}  {check.name:14} {check.reason}{fix}")
    bad = failures(checks) or (strict and [check for check in checks if check.verdict == "WARN"])
    return FAILED if bad else OK


def drain(d: Deployment, o: Options) -> int:
    def drained(ssh: Ssh) -> str:
        seconds = d.fleet.care.drain_seconds
        result = _run_step(d, ssh, "stop", f"{seconds:.0f}", seconds=seconds + 60)
        if result.code:
            raise RunError(f"it cannot be stopped: {result.last_line}")
        d.rollout.log.append(ssh.name, "drain", "done")
        return result.err.strip() or "stopped, no work was in progress"

    return _print_each(d, drained)


def rollback(d: Deployment, o: Options) -> int:
    return _print_each(d, lambda ssh: roll_back_by_hand(d.rollout, ssh))


def tune(d: Deployment, o: Options) -> int:
    """Override some settings for some hours. With nothing to set, an earlier override ends."""
    control = d.rollout.control

    def tuned(ssh: Ssh) -> str:
        upload(ssh, control.place(ssh.name), {"tuning": control.signed_tuning(ssh.name, o.set, o.hours)})
        require_success(_run_step(d, ssh, "tune"))
        d.rollout.log.append(ssh.name, "tune", "done", hours=o.hours, changes=o.set)
        return f"for {o.hours:g} hours: {', '.join(o.set)}" if o.set else "no override any more"

    for name in d.hosts:  # a mistake is found before any device is changed
        control.signed_tuning(name, o.set, o.hours)
    return _print_each(d, tuned)


def revoke(d: Deployment, o: Options) -> int:
    """At the federation's root first: a device that cannot be reached is revoked too."""

    def erased(ssh: Ssh) -> str:
        result = _run_step(d, ssh, "erase_keys")
        d.rollout.log.append(ssh.name, "revoke", "keys destroyed" if result.code == 0 else result.last_line)
        if result.code:
            return f"its keys are still there: {result.last_line}"
        return "stopped, and its keys are destroyed"

    broker = o.broker or (Path(d.fleet.broker) if d.fleet.broker else None)
    for name in d.hosts:
        _revoke(Authority(Path(d.fleet.root)), name, o.reason, broker)
        d.rollout.log.append(name, "revoke", "done", reason=o.reason)
    return _print_each(d, erased)


def _revoke(authority: Authority, name: str, reason: str, broker: Path | None) -> None:
    if (latest := authority.register.latest(name)) is not None and latest.revoked_at:
        _print(name, "was revoked already")
    elif broker:
        _print(name, revoke_and_disconnect(authority, name, reason, broker))
    else:
        lifecycle.revoke(authority, name, reason)
        _print(
            name, f"is revoked; install the brokers' approvals from {authority.folder / 'approvals'} there"
        )


def _print_each(d: Deployment, job: Callable[[Ssh], str]) -> int:
    code = OK
    for name, result in d.run_on_each(job):
        code = FAILED if isinstance(result, RunError) else code
        _print(name, str(result))
    return code


@contextmanager
def _exclusive_lock(path: Path) -> Iterator[None]:
    """Two operators who change one fleet at once would undo each other's steps. It is freed with its process."""
    with path.open("r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError(
                f"another command is changing the fleet of {path} now; wait until it has ended"
            ) from None
        yield


def _ask_for_fingerprint(o: Options) -> Callable[[str, str], bool]:
    """Asks the operator whether a device's fingerprint is the right one, one device after the other."""
    prompt = threading.Lock()

    def confirm(name: str, fingerprint: str) -> bool:
        with prompt:
            _print(name, f"fingerprint of its request, made on the device: {fingerprint}")
            if getattr(o, "yes", False):
                return True
            if not sys.stdin.isatty():
                raise RunError("there is no terminal to confirm its fingerprint; --yes skips the comparison")
            answer = input(f"{name}: is it the one that the device shows? [y/N] ")
            return answer.strip().lower() in ("y", "yes")

    return confirm


def _print(name: str, message: str) -> None:
    print(f"{name:16} {message}", flush=True)


COMMANDS: Final[Mapping[str, Command]] = {
    "plan": Command(plan),
    "apply": Command(apply, changes=True),
    "status": Command(status),
    "doctor": Command(doctor),
    "drain": Command(drain, changes=True),
    "rollback": Command(rollback, changes=True),
    "revoke": Command(revoke, changes=True, needs_hosts=True),
    "tune": Command(tune, changes=True),
}
