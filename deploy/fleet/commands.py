"""Run the commands of `protofleet deploy`, and print their results for each host of a fleet."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from protofleet.deploy.fleet import copies
from protofleet.deploy.fleet.checks import Check, Workload, failures, run_checks
from protofleet.deploy.fleet.control_plane import ControlPlane
from protofleet.deploy.fleet.deploy_log import DeployLog
from protofleet.deploy.fleet.device.facts import Facts, read_facts
from protofleet.deploy.fleet.device.roles import BROKER, DEVICE
from protofleet.deploy.fleet.device.scripts import HostRole
from protofleet.deploy.fleet.execute import gather_facts, require_success, upload
from protofleet.deploy.fleet.plan import RefuseHost, describe
from protofleet.deploy.fleet.rollout import Rollout, connections, roll_back_by_hand, workload_of
from protofleet.deploy.fleet.settings import Fleet, Host, read_fleet
from protofleet.deploy.fleet.setup.known_hosts import believe
from protofleet.deploy.fleet.software import Releases
from protofleet.deploy.fleet.ssh import CommandResult, Ssh, run_program
from protofleet.deploy.fleet.status import ROW_FORMAT, status_cells, status_object, status_title
from protofleet.deploy.fleet.targets import write_targets
from protofleet.federation.enrol import lifecycle
from protofleet.federation.enrol.authority import Authority
from protofleet.federation.enrol.disconnect import disconnect, revoke_and_disconnect
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.user_error import FAILED
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.printable import printable_lines
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.command.listing import Listing

Options = argparse.Namespace
T = TypeVar("T")
Connect: TypeAlias = Callable[[Fleet, dict[str, Host]], AbstractContextManager[dict[str, Ssh]]]
OK: Final = 0
TEXT: Final = Listing()
LOCAL_SECONDS: Final = 240.0  # Time limit of the script that reports the state of this machine.


@dataclass(frozen=True, slots=True)
class Deployment:
    """The context of one command: the fleet's settings, the rollout, and connections to the chosen hosts."""

    fleet: Fleet
    rollout: Rollout
    hosts: dict[str, Ssh]

    def run_on_each(self, job: Callable[[Ssh], T]) -> Iterator[tuple[str, T | RunError]]:
        """Run the job on each host, and yield the results in the order of the hosts.

        An error on one host becomes the result of this host. The job still runs on the other hosts.
        """

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
    # True if the command changes hosts. Only one such command may run at a time.
    changes: bool = False
    # True if the command line must name the hosts. Otherwise, a command without names runs on all hosts.
    needs_hosts: bool = False
    devices_only: bool = False  # True if the command runs on all devices when no host is named.


def run(step: str, o: Options, connect: Connect = connections) -> int:
    if step == "known-hosts":
        return known_hosts(o)
    command = COMMANDS[step]
    if command.needs_hosts and not o.hosts:
        example = COORDINATOR if step in ("backup", "restore") else "board-1"
        words = f"as in `protofleet deploy {step} {example}`; without names, this command does not run on all hosts"
        raise SettingsError(f"give the names of the hosts to {step}, {words}")
    with _open(o, command.changes, command.devices_only, connect) as deployment:
        return command.run(deployment, o)


@contextmanager
def _open(o: Options, changes: bool, devices_only: bool, connect: Connect) -> Iterator[Deployment]:
    fleet = read_fleet(o.fleet)
    chosen = fleet.selected(o.hosts)
    if devices_only and not o.hosts:
        chosen = {name: host for name, host in chosen.items() if host.role == DEVICE.name}
    above = {name: host for name, host in fleet.hosts.items() if host.role != DEVICE.name}
    lock = _exclusive_lock(o.fleet) if changes else contextlib.nullcontext()
    with tempfile.TemporaryDirectory(prefix="protofleet-") as folder, lock:
        releases = Releases(fleet, Path(folder) / "releases")
        control = ControlPlane(fleet, releases, _ask_for_fingerprint(o), getattr(o, "replace", False))
        for name in {**chosen, **above}:
            # This call finds a mistake in the fleet's file before any host is changed.
            control.desired.text(name)
        with connect(fleet, {**above, **chosen}) as hosts:
            log, force = DeployLog(Path(fleet.log)), getattr(o, "force", False)
            rollout = Rollout(fleet, control, log, _print, force, {name: hosts[name] for name in above})
            yield Deployment(fleet, rollout, {name: hosts[name] for name in chosen})


def known_hosts(o: Options) -> int:
    """Ask the hosts for their ssh keys, and add the confirmed keys to known_hosts.

    This command needs no root, no release and no connection.
    """
    fleet, unasked = read_fleet(o.fleet), list[str]()
    whose = "of the key that its sshd shows"
    ask = _ask_for_fingerprint(
        o, whose, "does the host's own screen, or the host's provider, show the same fingerprint?"
    )

    def show(name: str, fingerprint: str) -> bool:
        """Print a fingerprint for the operator, who compares it and then repeats the command with --yes."""
        _print(name, f"fingerprint {whose}: {fingerprint}")
        unasked.append(name)
        return False

    nobody = not (o.yes or sys.stdin.isatty())
    told = believe(fleet, fleet.selected(o.hosts), show if nobody else ask)
    for name, words in told.items():
        _print(name, words)
    if unasked:
        raise RunError(
            f"there is no terminal to confirm {counted(len(unasked), 'fingerprint')}: compare each shown "
            "fingerprint with the fingerprint that the host itself shows, then repeat the command with --yes "
            f"(make: ARGS=--yes) for {', '.join(unasked)}"
        )
    return OK if all(words.endswith((" known", " known now")) for words in told.values()) else FAILED


def _demand_newest_root(d: Deployment) -> None:
    if problem := d.rollout.older_root():
        raise RunError(problem)


def plan(d: Deployment, o: Options) -> int:
    """Print the steps for each host; return exit code 1 if some host cannot be reached or deployed."""
    _demand_newest_root(d)
    listing, found, changing, unfit = Listing.of(o), dict[str, Any](), 0, list[str]()
    for name, planned in d.run_on_each(lambda ssh: d.rollout.plan(ssh)[2]):
        if isinstance(planned, RunError):
            unfit.append(name)
            listing.line(f"{name:16} {planned}", wrong=True)
            found[name] = {"steps": [], "problem": str(planned)}
            continue
        steps = [describe(step) for step in planned]
        refused = bool(planned) and isinstance(planned[0], RefuseHost)
        for step in steps or ["nothing to do"]:
            listing.line(f"{name:16} {step}", wrong=refused)
        found[name] = {"steps": [], "problem": steps[0]} if refused else {"steps": steps, "problem": ""}
        changing += bool(planned) and not refused
        unfit += [name] * refused
    for words in d.fleet.doubts():
        listing.line(f"note: {words}", wrong=True)
    if words := _bytes_a_day(d):
        listing.line(words)
    good = len(d.hosts) - changing - len(unfit)
    cannot = f"{len(unfit)} cannot be deployed{': ' * bool(unfit)}{', '.join(unfit)}"
    hosts = counted(len(d.hosts), "host")
    listing.line(f"{hosts}: {changing} to be changed, {good} with nothing to do, {cannot}")
    listing.end({"hosts": found, "bytes": words})
    return FAILED if unfit else OK


def _bytes_a_day(d: Deployment) -> str:
    """Return the line about the bytes that a board sends, receives and writes in a day.

    The result is "" if the fleet has no coordinator, because the bytes depend on the coordinator's settings.
    """
    if not d.fleet.of_role(COORDINATOR):
        return ""
    from protofleet.deploy.fleet.setup.daily_bytes import describe_bytes

    desired = d.rollout.control.desired
    return describe_bytes(desired.coordinator_settings(), desired.has_queue)


def apply(d: Deployment, o: Options) -> int:
    _demand_newest_root(d)
    write_targets(d.fleet, d.rollout.control.federation, o.fleet.parent)
    outcomes = d.rollout.run(d.hosts)
    failed = [outcome for outcome in outcomes if outcome.problem]
    for outcome in failed:
        print(printable_lines(f"protofleet: {outcome.name}: {outcome.problem}"), file=sys.stderr)
    changed = sum(1 for outcome in outcomes if outcome.changed and not outcome.problem)
    untouched = len(d.hosts) - len(outcomes)
    rest = f"; {untouched} not changed, because {d.rollout.stopped}" if untouched else ""
    hosts = counted(len(outcomes), "host")
    print(f"{hosts}: {changed} changed, {len(failed)} failed{rest}")
    if d.rollout.stopped and not failed:
        message = f"{d.rollout.stopped}; `protofleet deploy rollback NAME` rolls a host back"
        print(f"protofleet: {message}", file=sys.stderr)
    return FAILED if failed or d.rollout.stopped else OK


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def status(d: Deployment, o: Options) -> int:
    code, listing, found, looked = OK, Listing.of(o), dict[str, Any](), dict[str, Facts]()
    listing.line(status_title())
    for name, seen in d.run_on_each(lambda ssh: _status(d, ssh)):
        if isinstance(seen, RunError):
            code = FAILED
            listing.line(f"{name:16} {seen}", wrong=True)
            found[name] = {"healthy": False, "problem": str(seen)}
            continue
        facts, cells, healthy = seen
        looked[name] = facts
        code = code if healthy else FAILED
        listing.line(ROW_FORMAT.format(*cells), wrong=not healthy)
        serves = {link: asdict(version) for link, version in facts.installed.models.items()}
        found[name] = {"healthy": healthy, "problem": "", **status_object(cells), "models": serves}
    older = _older_root(d, looked, listing)
    listing.end({"hosts": found, "root": older})
    return FAILED if older else code


def _older_root(d: Deployment, looked: Mapping[str, Facts], listing: Listing) -> str:
    """Return the reason why `apply` refuses this root, or "".

    The reason comes from the lists that the hosts in `looked` hold; other hosts are not checked.
    """
    if problem := d.rollout.control.enrolment.older_root(looked):
        listing.line(problem, wrong=True)
    return problem


def doctor(d: Deployment, o: Options) -> int:
    code, listing, found, looked = OK, Listing.of(o), dict[str, Any](), dict[str, Facts]()
    for name, checked in d.run_on_each(lambda ssh: _check(d, ssh)):
        if isinstance(checked, RunError):
            checks = [Check("ssh", "FAIL", str(checked), "nothing else can be checked until ssh works")]
        else:
            looked[name], checks = checked
            checks = [Check("ssh", "PASS", "the host accepts our key, and its host key is known"), *checks]
        listing.line(f"{name}:", wrong=failed(checks, o.strict))
        code = max(code, print_checks(checks, o.strict, listing))
        found[name] = [asdict(check) for check in checks]
    if words := _bytes_a_day(d):
        listing.line(words)
    older = _older_root(d, looked, listing)
    listing.end({"hosts": found, "root": older, "bytes": words})
    return FAILED if older else code


def _status(d: Deployment, ssh: Ssh) -> tuple[Facts, tuple[str | int, ...], bool]:
    facts, control, name = _facts(d, ssh), d.rollout.control, ssh.name
    desired, revocation = control.desired.target(name, facts).desired, control.enrolment.revocation(name)
    return facts, *status_cells(name, facts, desired, revocation)


def _facts(d: Deployment, ssh: Ssh, *how: str) -> Facts:
    return gather_facts(ssh, d.rollout.control.desired.place(ssh.name), *how)


def _run_step(d: Deployment, ssh: Ssh, *words: str, seconds: float = 60.0) -> CommandResult:
    return ssh.run(d.rollout.control.desired.place(ssh.name).steps, *words, seconds=seconds)


def _check(d: Deployment, ssh: Ssh) -> tuple[Facts, list[Check]]:
    control = d.rollout.control
    role = control.desired.role(ssh.name).name
    if role == BROKER:  # The broker's own host needs no connection to a broker.
        facts = _facts(d, ssh, "deep")
    else:
        desired = control.desired
        settings = desired.coordinator_settings() if role == COORDINATOR else desired.settings(ssh.name)
        nodes = settings.broker.nodes
        places = ",".join(node.host for node in nodes), ",".join(str(node.port) for node in nodes)
        facts = _facts(d, ssh, "deep", "", *places)
    return facts, run_checks(facts, workload_of(d.fleet, control, ssh.name), time.time())


def check_this_machine(o: Options) -> int:
    """Check this machine for `protofleet doctor`, which needs no fleet file."""
    host, colon, port = o.broker.rpartition(":")
    if o.broker and not (host and colon and port.isdigit() and 0 < int(port) < 65_536):
        words = "which is not of the form HOST:PORT (such as broker.example:8883) with a port from 1 to 65535"
        raise SettingsError(f"--broker is {o.broker!r}, {words}")
    command = ["sh", "-s", "--", "deep", sys.executable, host, port]
    done = run_program(command, HostRole().facts, LOCAL_SECONDS)
    workload = Workload("container" if o.containers else "venv", needs_gpu=o.gpu)
    facts, listing = read_facts(done.out), Listing.of(o)
    checks = run_checks(facts, workload, facts.now)
    code = print_checks(checks, o.strict, listing)
    listing.end({"checks": [asdict(check) for check in checks]})
    return code


def print_checks(checks: list[Check], strict: bool, listing: Listing = TEXT) -> int:
    for check in checks:
        fix = f"; {check.fix}" if check.fix and check.verdict != "PASS" else ""
        listing.line(f"  {check.verdict}  {check.name:14} {check.reason}{fix}", wrong=failed([check], strict))
    return FAILED if failed(checks, strict) else OK


def failed(checks: list[Check], strict: bool) -> bool:
    return bool(failures(checks)) or (strict and any(check.verdict == "WARN" for check in checks))


def drain(d: Deployment, o: Options) -> int:
    def drained(ssh: Ssh) -> str:
        seconds = d.fleet.care.drain_seconds
        result = _run_step(d, ssh, "stop", f"{seconds:.0f}", seconds=seconds + 60)
        if result.code:
            raise RunError(f"the service cannot be stopped: {result.last_line}")
        d.rollout.log.append(ssh.name, "drain", "done")
        return result.last_line if result.err.strip() else "stopped, no work was in progress"

    return _print_each(d, drained)


def rollback(d: Deployment, o: Options) -> int:
    way_out = (
        "change the fleet's file back and deploy it; `protofleet deploy restore` restores a copy of the runs"
    )
    _demand_devices(d, "rollback", way_out)
    return _print_each(d, lambda ssh: roll_back_by_hand(d.rollout, ssh))


def backup(d: Deployment, o: Options) -> int:
    ssh = copies.demand_coordinator(d.hosts, d.fleet.of_role(COORDINATOR), "backup")
    _print(ssh.name, copies.take(ssh, d.rollout.control.desired.place(ssh.name), o.to))
    d.rollout.log.append(ssh.name, "backup", "done", to=str(o.to))
    return OK


def restore(d: Deployment, o: Options) -> int:
    """Deploy the coordinator if its host needs a change, and restore the copy before the service starts."""
    ssh = copies.demand_coordinator(d.hosts, d.fleet.of_role(COORDINATOR), "restore")
    desired = d.rollout.control.desired
    run_name = "" if desired.has_queue else desired.coordinator_settings().name
    if not run_name and o.from_round is not None:
        raise SettingsError(
            "--from-round belongs to one run, and this coordinator conducts a queue; leave it out, and run "
            "`protofleet go-on RUN --from-round N` on the coordinator's host for each run that is paused after the "
            "restore"
        )
    copies.check(o.source, run_name)
    _demand_newest_root(d)
    outcome = d.rollout.deploy(ssh, copies.put_back(o.source, run_name, o.from_round))
    d.rollout.log.append(ssh.name, "restore", outcome.problem or "done", source=str(o.source))
    what = "the run continues" if run_name else "the runs of the queue continue"
    _print(
        ssh.name,
        outcome.problem
        or f"{what} from {o.source}; the earlier runs are kept as runs.before; if the coordinator has new keys, "
        "`protofleet deploy apply` tells the devices",
    )
    return FAILED if outcome.problem else OK


def forget(d: Deployment, o: Options) -> int:
    """Make each chosen host leave its present federation, so that it can join the federation of the fleet's file."""

    def forgotten(ssh: Ssh) -> str:
        require_success(_run_step(d, ssh, "forget"))
        d.rollout.log.append(ssh.name, "forget", "done")
        return "has left its federation; deploy this host to let it join the federation of the fleet's file"

    return _print_each(d, forgotten)


def tune(d: Deployment, o: Options) -> int:
    """Override some settings of devices for some hours; if no settings are given, end an earlier override."""
    control = d.rollout.control

    def tuned(ssh: Ssh) -> str:
        tuning = control.signer.signed_tuning(ssh.name, o.set, o.hours)
        upload(ssh, control.desired.place(ssh.name), {"tuning": tuning})
        require_success(_run_step(d, ssh, "tune"))
        d.rollout.log.append(ssh.name, "tune", "done", hours=o.hours, changes=o.set)
        return f"for {o.hours:g} hours: {', '.join(o.set)}" if o.set else "no setting is overridden any more"

    _demand_devices(d, "tune", "change [coordinator] or [mosquitto] in the fleet's file and deploy it")
    for name in d.hosts:  # This loop finds a mistake in the settings before any device is changed.
        control.signer.signed_tuning(name, o.set, o.hours)
    return _print_each(d, tuned)


def revoke(d: Deployment, o: Options) -> int:
    """Revoke devices at the federation's root, and then destroy the keys on the devices.

    The root revokes first, so a device is revoked even if it cannot be reached.
    """

    def erased(ssh: Ssh) -> str:
        result = _run_step(d, ssh, "erase_keys")
        d.rollout.log.append(ssh.name, "revoke", "keys destroyed" if result.code == 0 else result.last_line)
        if result.code:
            return f"its keys could not be destroyed: {result.last_line}"
        return "stopped, and its keys are destroyed"

    _demand_devices(
        d, "revoke", "`protofleet enrol revoke` ends the enrolment of a coordinator; see docs/day-2.md"
    )
    broker = o.broker or (Path(d.fleet.broker) if d.fleet.broker else None)
    for name in d.hosts:
        _revoke(d.rollout.control.authority, name, o.reason, broker, bool(d.fleet.of_role(BROKER)))
        d.rollout.log.append(name, "revoke", "done", reason=o.reason)
    code = _tell_who_is_revoked(d)
    return max(code, _print_each(d, erased))


def _tell_who_is_revoked(d: Deployment) -> int:
    """Send the lists of revoked names to the broker and the coordinator, then disconnect the chosen devices."""
    if not d.fleet.of_role(BROKER):
        return OK
    outcomes = d.rollout.tell_lists()
    for outcome in outcomes:
        if outcome.problem:
            _print(outcome.name, f"this host did not get the new list of revoked names: {outcome.problem}")
    if any(outcome.problem for outcome in outcomes):
        return FAILED
    address = d.rollout.control.desired.settings(next(iter(d.hosts))).broker
    for name in d.hosts:
        try:
            disconnect(d.rollout.control.authority, name, replace(address, tls=None))
            _print(name, f"is disconnected from {address}")
        except BrokerError as error:
            _print(
                name, f"the broker has the new list, but its end of the connection is not confirmed: {error}"
            )
    return OK


def _demand_devices(d: Deployment, step: str, way_out: str) -> None:
    if others := [name for name in d.hosts if d.fleet.hosts[name].role != DEVICE.name]:
        raise SettingsError(f"{others[0]} is not a device, and {step} works only on devices: {way_out}")


def _revoke(authority: Authority, name: str, reason: str, broker: Path | None, remote: bool) -> None:
    if (latest := authority.register.latest(name)) is not None and latest.revoked_at:
        _print(name, "was revoked already")
    elif broker and not remote:
        _print(name, revoke_and_disconnect(authority, name, reason, broker))
    else:
        lifecycle.revoke(authority, name, reason)
        by_hand = (
            f"; log in to each broker and install its approval from {authority.folder / 'approvals'} there"
        )
        _print(name, f"is revoked{'' if remote else by_hand}")


def _print_each(d: Deployment, job: Callable[[Ssh], str]) -> int:
    code = OK
    for name, result in d.run_on_each(job):
        code = FAILED if isinstance(result, RunError) else code
        _print(name, str(result))
    return code


@contextmanager
def _exclusive_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a fleet's file, or raise SettingsError if another command holds it.

    Two operators who change one fleet at the same time would undo each other's steps. The lock ends with the
    process.
    """
    with path.open("r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError(
                f"another command is changing the fleet of {path} now; wait until it has ended"
            ) from None
        yield


def _ask_for_fingerprint(
    o: Options,
    whose: str = "of its request, made on the device",
    question: str = "the request came over SSH from a host whose key is known; is this the right device?",
) -> Callable[[str, str], bool]:
    """Return a function that asks the operator whether a host's fingerprint is the right one.

    The function asks about one host at a time.
    """
    prompt = threading.Lock()

    def confirm(name: str, fingerprint: str) -> bool:
        with prompt:
            _print(name, f"fingerprint {whose}: {fingerprint}")
            if getattr(o, "yes", False):
                return True
            if not sys.stdin.isatty():
                raise RunError(
                    "there is no terminal on which you can confirm this fingerprint; use --yes to skip the comparison"
                )
            answer = input(f"{name}: {question} [y/N] ")
            return answer.strip().lower() in ("y", "yes")

    return confirm


def _print(name: str, message: str) -> None:
    # One `write` prints the whole line. `print` writes the end of the line separately, so the output of another
    # thread could appear before the end of the line.
    sys.stdout.write(f"{name:16} {printable_lines(message)}\n")
    sys.stdout.flush()


COMMANDS: Final[Mapping[str, Command]] = {
    "plan": Command(plan),
    "apply": Command(apply, changes=True),
    "status": Command(status),
    "doctor": Command(doctor),
    "drain": Command(drain, changes=True, devices_only=True),
    "rollback": Command(rollback, changes=True, devices_only=True),
    "backup": Command(backup, changes=True, needs_hosts=True),
    "restore": Command(restore, changes=True, needs_hosts=True),
    "forget": Command(forget, changes=True, needs_hosts=True),
    "revoke": Command(revoke, changes=True, needs_hosts=True),
    "tune": Command(tune, changes=True, devices_only=True),
}
