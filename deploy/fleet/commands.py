"""The steps of `protofleet deploy`, and what they say."""

from __future__ import annotations

import argparse
import fcntl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from protofleet.deploy.enrol import disconnect
from protofleet.deploy.enrol.authority import Authority
from protofleet.deploy.enrol.lifecycle import revoke as revoke_name
from protofleet.deploy.errors import RunError
from protofleet.deploy.fleet.checks import Check, Use, examine, failures
from protofleet.deploy.fleet.device.facts import SCRIPT, read_facts
from protofleet.deploy.fleet.execute import SCRIPT as REMOTE
from protofleet.deploy.fleet.execute import checked, gather, place
from protofleet.deploy.fleet.history import History
from protofleet.deploy.fleet.operator import Operator
from protofleet.deploy.fleet.plan import words_of
from protofleet.deploy.fleet.rollout import Rollout, connected, rolled_back, use_of
from protofleet.deploy.fleet.settings import Fleet, read_fleet
from protofleet.deploy.fleet.software import make_release
from protofleet.deploy.fleet.ssh import Ssh
from protofleet.deploy.fleet.status import status_line, status_title
from protofleet.protocol.settings.reader import SettingsError

Options = argparse.Namespace
T = TypeVar("T")
OK: Final = 0
FAILED: Final = 1


@dataclass(frozen=True, slots=True)
class Bench:
    """All that the steps work with."""

    fleet: Fleet
    rollout: Rollout
    hosts: dict[str, Ssh]

    def each(self, job: Callable[[Ssh], T]) -> Iterator[tuple[str, T | RunError]]:
        """What comes of a job on every host, in their order; a host that cannot be worked on stops no other."""

        def tried(ssh: Ssh) -> T | RunError:
            try:
                return job(ssh)
            except RunError as error:
                return error

        with ThreadPoolExecutor(self.fleet.care.parallel) as pool:
            yield from zip(self.hosts, pool.map(tried, self.hosts.values()), strict=True)


@contextmanager
def bench(o: Options, changes: bool = False) -> Iterator[Bench]:
    fleet = read_fleet(o.fleet)
    chosen = fleet.some(o.hosts)
    with tempfile.TemporaryDirectory(prefix="protofleet-") as folder, _alone(o.fleet, changes):
        release = make_release(fleet.software, Path(folder) / "wheels")
        operator = Operator(fleet, release, _vouching(o), getattr(o, "replace", False))
        for name in chosen:
            operator.settings(name)  # a slip in the file is found before anything is touched
        history = History(Path(fleet.log))
        rollout = Rollout(fleet, operator, history, _say, getattr(o, "force", False))
        with connected(fleet, chosen) as hosts:
            yield Bench(fleet, rollout, hosts)


def plan(o: Options) -> int:
    code = OK
    with bench(o) as b:
        for name, planned in b.each(lambda ssh: b.rollout.plan(ssh)[2]):
            if isinstance(planned, RunError):
                code = FAILED
                _say(name, str(planned))
                continue
            for step in planned:
                _say(name, words_of(step))
            if not planned:
                _say(name, "nothing to do")
    return code


def apply(o: Options) -> int:
    with bench(o, changes=True) as b:
        outcomes = b.rollout.run(b.hosts)
    failed = [outcome for outcome in outcomes if outcome.problem]
    for outcome in failed:
        print(f"protofleet: {outcome.name}: {outcome.problem}", file=sys.stderr)
    changed = sum(1 for outcome in outcomes if outcome.changed)
    untouched = len(b.hosts) - len(outcomes)
    rest = f"; {untouched} not touched, as {b.rollout.stopped}" if untouched else ""
    print(f"{len(outcomes)} devices: {changed} changed, {len(failed)} failed{rest}")
    if b.rollout.stopped and not failed:
        words = f"{b.rollout.stopped}; `protofleet deploy rollback NAME` takes a device back"
        print(f"protofleet: {words}", file=sys.stderr)
    return FAILED if failed or b.rollout.stopped else OK


def status(o: Options) -> int:
    code = OK
    with bench(o) as b:
        print(status_title())
        for name, facts in b.each(gather):
            if isinstance(facts, RunError):
                code = FAILED
                print(f"{name:16} {facts}")
                continue
            target = b.rollout.operator.target(name, facts)
            line, well = status_line(name, facts, target.wanted)
            code = code if well else FAILED
            print(line)
    return code


def doctor(o: Options) -> int:
    code = OK
    with bench(o) as b:
        for name, checks in b.each(lambda ssh: _examined(b, ssh)):
            if isinstance(checks, RunError):
                checks = [Check("ssh", "FAIL", str(checks), "until then nothing else can be asked")]
            else:
                checks = [
                    Check("ssh", "PASS", "it takes our key, and its host key is the known one"),
                    *checks,
                ]
            print(f"{name}:")
            code = max(code, tell(checks, o.strict))
    return code


def _examined(b: Bench, ssh: Ssh) -> list[Check]:
    operator = b.rollout.operator
    broker = operator.settings(ssh.name).broker
    facts = gather(ssh, "deep", "", broker.host, str(broker.port))
    return examine(facts, use_of(b.fleet, operator, ssh.name), time.time())


def doctor_here(o: Options) -> int:
    host, colon, port = o.broker.rpartition(":")
    if o.broker and (not colon or not port.isdigit()):
        raise SettingsError(f"--broker is {o.broker!r}, which is not of the form HOST:PORT")
    command = ["sh", str(SCRIPT), "deep", sys.executable, host, port]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    use = Use("container" if o.containers else "venv", needs_gpu=o.gpu)
    facts = read_facts(done.stdout)
    return tell(examine(facts, use, facts.now), o.strict)


def tell(checks: list[Check], strict: bool) -> int:
    for check in checks:
        fix = f"; {check.fix}" if check.fix and check.verdict != "PASS" else ""
        print(f"  {check.verdict}  {check.name:14} {check.reason}{fix}")
    bad = failures(checks) or (strict and [check for check in checks if check.verdict == "WARN"])
    return FAILED if bad else OK


def drain(o: Options) -> int:
    def held(b: Bench, ssh: Ssh) -> str:
        seconds = b.fleet.care.drain_seconds
        said = ssh.run(REMOTE, "hold", f"{seconds:.0f}", seconds=seconds + 60)
        if said.code:
            raise RunError(f"it cannot be stopped: {said.last_word}")
        b.rollout.history.note(ssh.name, "drain", "done")
        return said.err.strip() or "stopped, with nothing in hand"

    with bench(o, changes=True) as b:
        return _tell_each(b, lambda ssh: held(b, ssh))


def rollback(o: Options) -> int:
    with bench(o, changes=True) as b:
        return _tell_each(b, lambda ssh: rolled_back(b.rollout, ssh))


def tune(o: Options) -> int:
    """For some hours, and then all is as it was; `--hours` later or with nothing changed it is over."""

    def tuned(b: Bench, ssh: Ssh) -> str:
        place(ssh, {"tuning": b.rollout.operator.tuned(ssh.name, o.set, o.hours)})
        checked(ssh.run(REMOTE, "tune"))
        b.rollout.history.note(ssh.name, "tune", "done", hours=o.hours, changes=o.set)
        return f"for {o.hours:g} hours: {', '.join(o.set)}" if o.set else "all is as it was"

    with bench(o, changes=True) as b:
        for name in b.hosts:
            b.rollout.operator.tuned(name, o.set, o.hours)
        return _tell_each(b, lambda ssh: tuned(b, ssh))


def revoke(o: Options) -> int:
    """The federation first: a device that cannot be reached is revoked all the same."""
    if not o.hosts:
        raise SettingsError("say whom to revoke; it is never all by default")

    def forgotten(b: Bench, ssh: Ssh) -> str:
        said = ssh.run(REMOTE, "forget")
        b.rollout.history.note(ssh.name, "revoke", "keys destroyed" if said.code == 0 else said.last_word)
        return (
            "stopped, and its keys are destroyed"
            if said.code == 0
            else f"its keys are still there: {said.last_word}"
        )

    with bench(o, changes=True) as b:
        for name in b.hosts:
            _revoke(
                Authority(Path(b.fleet.root)),
                name,
                o.reason,
                o.broker or (b.fleet.broker and Path(b.fleet.broker)),
            )
            b.rollout.history.note(name, "revoke", "done", reason=o.reason)
        return _tell_each(b, lambda ssh: forgotten(b, ssh))


def _revoke(authority: Authority, name: str, reason: str, broker: Path | str) -> None:
    if (latest := authority.register.latest(name)) is not None and latest.revoked_at:
        _say(name, "is revoked already")
    elif broker:
        _say(name, disconnect.revoke_and_disconnect(authority, name, reason, Path(broker)))
    else:
        revoke_name(authority, name, reason)
        _say(name, f"is revoked; brokers hear of it by their approvals in {authority.folder / 'approvals'}")


def _tell_each(b: Bench, job: Callable[[Ssh], str]) -> int:
    code = OK
    for name, said in b.each(job):
        code = FAILED if isinstance(said, RunError) else code
        _say(name, str(said))
    return code


@contextmanager
def _alone(path: Path, changes: bool) -> Iterator[None]:
    """Two people who change one fleet at once would undo each other's steps. The lock ends with its process."""
    if not changes:
        yield
        return
    with path.open("r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError(
                f"somebody is changing the fleet of {path} already; wait for the end of it"
            ) from None
        yield


def _vouching(o: Options) -> Callable[[str, str], bool]:
    asking = threading.Lock()

    def vouch(name: str, fingerprint: str) -> bool:
        with asking:
            _say(name, f"fingerprint of its request, made on the device: {fingerprint}")
            if getattr(o, "yes", False):
                return True
            if not sys.stdin.isatty():
                raise RunError("nobody is there to compare its fingerprint; say --yes where nobody has to")
            return input(f"{name}: is it the one that the device shows? [y/N] ").strip().lower() in (
                "y",
                "yes",
            )

    return vouch


def _say(name: str, words: str) -> None:
    print(f"{name:16} {words}", flush=True)


JOBS: Final[Mapping[str, Callable[[Options], int]]] = {
    "plan": plan, "apply": apply, "status": status, "doctor": doctor, "drain": drain, "rollback": rollback,
    "revoke": revoke, "tune": tune,
}  # fmt: skip
