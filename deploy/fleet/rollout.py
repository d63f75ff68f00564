"""A change, device by device: plan, perform, and go back where it fails; a fleet in waves behind a canary."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from protofleet.deploy.errors import RunError
from protofleet.deploy.fleet.accuracy import AccuracyCheck
from protofleet.deploy.fleet.checks import Workload, run_checks
from protofleet.deploy.fleet.control_plane import ControlPlane, Target
from protofleet.deploy.fleet.deploy_log import DeployLog
from protofleet.deploy.fleet.device.facts import Facts, KnownGood
from protofleet.deploy.fleet.execute import Executor, gather_facts
from protofleet.deploy.fleet.plan import (
    Drain,
    Health,
    Record,
    Refuse,
    Start,
    Step,
    Switch,
    describe,
    name_of,
    plan,
)
from protofleet.deploy.fleet.settings import Fleet, Host
from protofleet.deploy.fleet.ssh import Ssh
from protofleet.protocol.security.statements import StatementError
from protofleet.protocol.settings.reader import SettingsError

BACK_SECONDS: Final = 30.0  # for the work in hand of a release that has failed

Say = Callable[[str, str], None]  # a device's name, and what happens there


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    changed: int = 0  # steps that were done
    problem: str = ""


@contextmanager
def connections(fleet: Fleet, hosts: dict[str, Host]) -> Iterator[dict[str, Ssh]]:
    """A connection to each, opened when it is first used and shared from then on."""
    folder = Path(tempfile.mkdtemp(prefix="pf-"))  # short: the path of a socket ends at 108 characters
    reached = {name: Ssh(name, host, fleet, folder) for name, host in hosts.items()}
    try:
        yield reached
    finally:
        for ssh in reached.values():
            ssh.close()
        shutil.rmtree(folder, ignore_errors=True)


def waves(names: list[str], canary: int, share: float) -> list[list[str]]:
    """A few, then a share of the fleet, then the rest; a small fleet has no share to speak of."""
    second = canary + (part if (part := round(share * len(names))) > canary else 0)
    cut = (names[:canary], names[canary:second], names[second:])
    return [wave for wave in cut if wave]


def workload_of(fleet: Fleet, control: ControlPlane, name: str) -> Workload:
    software = fleet.software
    fetches = software.kind == "venv" and software.dependencies != "system"
    return Workload(software.kind, fetches, control.settings(name).compute == "cuda", software.python)


class Rollout:
    def __init__(
        self, fleet: Fleet, control: ControlPlane, log: DeployLog, say: Say, force: bool = False
    ) -> None:
        self.fleet, self.control, self.log, self.say, self.force = fleet, control, log, say, force
        self.accuracy = AccuracyCheck(fleet.care)
        self.stopped = ""  # why waves that are still to come do not

    def plan(self, ssh: Ssh) -> tuple[Facts, Target, list[Step]]:
        facts = gather_facts(ssh)
        target = self.control.target(ssh.name, facts)
        checks = run_checks(facts, workload_of(self.fleet, self.control, ssh.name), time.time())
        present = self.control.present(ssh.name, facts.installed.settings)
        return facts, target, plan(facts, target.desired, checks, present, self.force)

    def run(self, hosts: dict[str, Ssh]) -> list[Outcome]:
        """Who needs nothing is left alone. The others follow wave after wave, until a change has gone wrong."""
        care = self.fleet.care
        with ThreadPoolExecutor(min(care.parallel, len(hosts))) as pool:
            first = list(pool.map(self.look, hosts.values()))
        outcomes = [outcome for outcome in first if outcome is not None]
        waiting = [name for name, outcome in zip(hosts, first, strict=True) if outcome is None]
        if waiting:
            self.accuracy.begin()
        for wave in waves(waiting, care.canary, care.share):
            with ThreadPoolExecutor(min(care.parallel, len(wave))) as pool:
                done = list(pool.map(self.one, [hosts[name] for name in wave]))
            outcomes += done
            if any(outcome.problem for outcome in done):
                self.stopped = "a change has failed"
            else:
                self._check_accuracy(wave)
            if self.stopped:
                break
        return outcomes

    def _check_accuracy(self, wave: list[str]) -> None:
        """What is whole on every device may still be bad for the model."""
        try:
            good, words = self.accuracy.verdict()
        except RunError as error:  # nobody can say any more; what was changed is told all the same
            good, words = False, str(error)
        if words:
            self.say(wave[-1], words)
        if not good:
            self.stopped = words
            for name in wave:
                self.log.append(name, "accuracy", "stopped", reason=words)

    def look(self, ssh: Ssh) -> Outcome | None:
        """How it ends where nothing can or need be done; None: there is work."""
        try:
            _, _, steps = self.plan(ssh)
        except (RunError, SettingsError, StatementError) as error:
            self.log.append(ssh.name, "deploy", "failed", reason=str(error))
            return Outcome(ssh.name, problem=str(error))
        match steps:
            case []:
                self.say(ssh.name, "nothing to do")
                return Outcome(ssh.name)
            case [Refuse() as refused]:
                self.log.append(ssh.name, "deploy", "refused", reason=describe(refused))
                return Outcome(ssh.name, problem=describe(refused))
        return None

    def one(self, ssh: Ssh) -> Outcome:
        done = 0
        try:
            facts, target, steps = self.plan(ssh)
            executor = Executor(ssh, self.control, target, lambda words: self.say(ssh.name, words))
            for step in steps:
                self._step(executor, step, facts, steps)
                done += 1
        except (RunError, SettingsError, StatementError) as error:
            self.log.append(ssh.name, "deploy", "failed", reason=str(error))
            return Outcome(ssh.name, done, str(error))
        return Outcome(ssh.name, done)

    def _step(self, executor: Executor, step: Step, facts: Facts, steps: list[Step]) -> None:
        name, desired, began = executor.ssh.name, executor.target.desired, time.monotonic()
        self.say(name, describe(step))
        try:
            executor.execute(step, facts)
        except RunError as error:
            self._note(name, step, str(error), began, desired.release, desired.settings)
            switched = steps.index(step) >= min(
                (steps.index(s) for s in steps if isinstance(s, (Switch, Start))), default=len(steps)
            )
            if switched and not isinstance(step, (Refuse, Record)):
                raise RunError(f"{name_of(step)}: {error}; {self._go_back(executor)}") from None
            raise RunError(f"{name_of(step)}: {error}") from None
        self._note(name, step, "done", began, desired.release, desired.settings)

    def _note(self, name: str, step: Step, result: str, began: float, release: str, settings: str) -> None:
        seconds = round(time.monotonic() - began, 2)
        self.log.append(name, name_of(step), result, seconds=seconds, release=release, settings=settings)

    def _go_back(self, executor: Executor) -> str:
        """To what has served a round here; where there is nothing, the device is stopped."""
        name, desired = executor.ssh.name, executor.target.desired
        try:
            good = gather_facts(executor.ssh).installed.good
            if good is None or f"{good.release}-{good.settings}" == desired.pair:
                executor.run_step("stop", f"{BACK_SECONDS:.0f}", seconds=BACK_SECONDS + 60)
                self.log.append(name, "rollback", "stopped")
                return "nothing has served a round here before, so it is stopped"
            executor.run_step("block", desired.pair)
            self.say(name, f"going back to release {good.release}")
            self.restore(executor, "good", good)
        except RunError as error:
            self.log.append(name, "rollback", str(error))
            return f"and it could not go back: {error}"
        self.log.append(name, "rollback", "done", release=good.release, settings=good.settings)
        return f"it went back to release {good.release}, which is well"

    def restore(self, executor: Executor, which: str, good: KnownGood) -> None:
        """What was kept on the device, its settings signed again, as an earlier version is taken nowhere."""
        facts = gather_facts(executor.ssh)
        here, name = facts.installed, executor.ssh.name
        kept = here.good_settings if which == "good" else here.previous_settings
        text = self.control.text_of(kept)
        executor.target = replace(
            executor.target, desired=replace(executor.target.desired, release=good.release)
        )
        version = self.control.present(name, here.settings).version
        executor.configure_kept(text, which, good, version)
        care = self.fleet.care
        for step in (Switch(good.release), Drain(BACK_SECONDS), Start(), Health(care.health_seconds)):
            executor.execute(step, facts)


def roll_back(rollout: Rollout, ssh: Ssh) -> str:
    """By hand: to the good state before the present one, which is not deployed again unless it is forced."""
    facts, target, _ = rollout.plan(ssh)
    here = facts.installed
    if here.good is None or here.previous is None:
        raise RunError(f"{ssh.name} has no earlier good state to go back to")
    executor = Executor(ssh, rollout.control, target, lambda words: rollout.say(ssh.name, words))
    executor.run_step("block", f"{here.good.release}-{here.good.settings}")
    rollout.restore(executor, "previous", here.previous)
    executor.record(here.previous.release, here.previous.settings, here.previous.unit)
    rollout.log.append(ssh.name, "rollback", "done", release=here.previous.release)
    return f"back on release {here.previous.release}"
