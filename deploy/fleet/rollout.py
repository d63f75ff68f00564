"""Roll out a change to the hosts of a fleet.

Each host gets a plan, and the steps of the plan are executed. If the new release fails on a host, this host is rolled
back. The devices of a fleet are changed in waves, and the canary devices are the first wave.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from protofleet.deploy.fleet.accuracy import AccuracyCheck
from protofleet.deploy.fleet.checks import Workload, run_checks
from protofleet.deploy.fleet.control_plane import ControlPlane
from protofleet.deploy.fleet.deploy_log import DeployLog
from protofleet.deploy.fleet.desired_state import Target
from protofleet.deploy.fleet.device.facts import Facts, KnownGood
from protofleet.deploy.fleet.device.roles import BROKER, DEVICE
from protofleet.deploy.fleet.execute import Executor, gather_facts
from protofleet.deploy.fleet.plan import (
    Admit,
    Drain,
    Enrol,
    Health,
    RecordGood,
    RefuseHost,
    StartRelease,
    Step,
    Switch,
    describe,
    name_of,
    plan,
)
from protofleet.deploy.fleet.settings import Fleet, Host, RolloutSettings
from protofleet.deploy.fleet.ssh import Ssh
from protofleet.protocol.security.statements import StatementError
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.runtime.command.errors import RunError

# Stored as the reason for a blocked release if an operator has rolled back the release, although it did not fail.
BY_HAND: Final = "by hand"
# Time limit for the end of the work in progress, before a failed release is stopped.
ROLLBACK_DRAIN_SECONDS: Final = 30.0

# The function is called with the name of a host and a message about this host.
Report = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class HostOutcome:
    name: str
    changed: int = 0  # Number of steps that were executed.
    problem: str = ""


@contextmanager
def connections(fleet: Fleet, hosts: dict[str, Host]) -> Iterator[dict[str, Ssh]]:
    """Yield an ssh connection to each host; a connection is opened at its first use and then shared."""
    # The prefix is short because the path of a socket has at most 108 characters.
    folder = Path(tempfile.mkdtemp(prefix="pf-"))
    connected = {name: Ssh(name, host, fleet, folder) for name, host in hosts.items()}
    try:
        yield connected
    finally:
        for ssh in connected.values():
            ssh.close()
        shutil.rmtree(folder, ignore_errors=True)


def waves(names: list[str], canary: int, share: float) -> list[list[str]]:
    """Split the names into waves: the canary devices, then a share of the fleet, then the rest.

    The second wave is left out if the share has no more devices than the canary wave, as in a small fleet.
    """
    second = canary + (part if (part := round(share * len(names))) > canary else 0)
    parts = (names[:canary], names[canary:second], names[second:])
    return [wave for wave in parts if wave]


def workload_of(fleet: Fleet, control: ControlPlane, name: str) -> Workload:
    role, software = control.desired.role(name), fleet.software_of(name)
    if role.name == BROKER:
        return Workload(BROKER)
    fetches = software.kind == "venv" and software.dependencies != "system"
    gpu = role == DEVICE and control.desired.settings(name).compute == "cuda"
    return Workload(software.kind, fetches, gpu, software.python)


class Rollout:
    def __init__(
        self, fleet: Fleet, control: ControlPlane, log: DeployLog, report: Report, force: bool = False,
        infrastructure: Mapping[str, Ssh] | None = None,
    ) -> None:  # fmt: skip
        """Keep the parts of a rollout.

        `infrastructure` holds the connections to the hosts of the broker and the coordinator, even if these
        hosts are not to be changed.
        """
        self._infrastructure, self._admitting = infrastructure or {}, threading.Lock()
        self.fleet, self.control, self.log, self.report, self.force = fleet, control, log, report, force
        self.accuracy = AccuracyCheck(fleet.care)
        self.stopped = ""  # The reason why no further wave is deployed; empty while the rollout continues.
        # The states of the broker's host and of the coordinator's host, which the method `older_root` has read.
        # The first plan for each of these two hosts uses this state and does not read the host again.
        self._looked: dict[str, Facts] = {}

    def older_root(self) -> str:
        """Return the reason why this root must not sign anything, or "".

        The lists on the hosts of the broker and the coordinator show whether this root is an older copy. A host
        that cannot be reached is not checked.
        """
        with ThreadPoolExecutor(max(1, len(self._infrastructure))) as pool:
            looked = pool.map(self._facts_or_none, self._infrastructure.values())
            self._looked = {
                name: one for name, one in zip(self._infrastructure, looked, strict=True) if one is not None
            }
        return self.control.enrolment.older_root(self._looked)

    def _facts_or_none(self, ssh: Ssh) -> Facts | None:
        try:
            return gather_facts(ssh, self.control.desired.place(ssh.name))
        except RunError:  # The plan for this host will report the error.
            return None

    def plan(self, ssh: Ssh) -> tuple[Facts, Target, list[Step]]:
        facts = self._looked.pop(ssh.name, None) or gather_facts(ssh, self.control.desired.place(ssh.name))
        target = self.control.desired.target(ssh.name, facts)
        enrolment = self.control.enrolment
        if reason := enrolment.older_root({ssh.name: facts}) or enrolment.refusal(ssh.name):
            return facts, target, [RefuseHost((reason,))]
        checks = run_checks(facts, workload_of(self.fleet, self.control, ssh.name), time.time())
        present = self.control.signer.installed_settings(ssh.name, facts.installed.settings)
        return facts, target, plan(facts, target.desired, checks, present, self.force)

    def run(self, hosts: dict[str, Ssh]) -> list[HostOutcome]:
        """Deploy the hosts that need a change, and stop after a failure; return the outcomes.

        Hosts that need no change are left alone. Devices that need a change are changed in waves.
        """
        care = self.fleet.care
        with ThreadPoolExecutor(min(care.parallel, len(hosts))) as pool:
            checked = list(pool.map(self.check, hosts.values()))
        outcomes = [outcome for outcome in checked if outcome is not None]
        waiting = [name for name, outcome in zip(hosts, checked, strict=True) if outcome is None]
        devices = [name for name in waiting if self.fleet.hosts[name].role == DEVICE.name]
        infrastructure = [name for name in waiting if name not in devices]
        # The broker and the coordinator are deployed before the devices, one after the other.
        for name in infrastructure:
            outcomes.append(self.deploy(hosts[name]))
            if outcomes[-1].problem:
                self.stopped = f"the {self.fleet.hosts[name].role} could not be deployed"
                return outcomes
        if devices:
            self.accuracy.record_baseline()
        for wave in waves(devices, care.canary, care.share):
            with ThreadPoolExecutor(min(care.parallel, len(wave))) as pool:
                done = list(pool.map(self.deploy, [hosts[name] for name in wave]))
            outcomes += done
            if any(outcome.problem for outcome in done):
                self.stopped = "a change has failed"
            else:
                self._check_accuracy(wave)
            if self.stopped:
                break
        return outcomes

    def _check_accuracy(self, wave: list[str]) -> None:
        """Stop the rollout if the accuracy has dropped after this wave.

        A change can cost accuracy even if every device runs well with it.
        """
        try:
            good, message = self.accuracy.judge()
        # If the coordinator's metrics cannot be read, the rollout stops and still reports the outcomes of the wave.
        except RunError as error:
            good, message = False, str(error)
        if message:
            self.report(wave[-1], message)
        if not good:
            self.stopped = message
            for name in wave:
                self.log.append(name, "accuracy", "stopped", reason=message)

    def check(self, ssh: Ssh) -> HostOutcome | None:
        """Return the outcome for a host if there is no step to execute; None if there are steps.

        There is no step if the host needs no change, if its plan cannot be made, or if the plan refuses the host.
        """
        try:
            _, _, steps = self.plan(ssh)
        except (RunError, SettingsError, StatementError) as error:
            self.log.append(ssh.name, "deploy", "failed", reason=str(error))
            return HostOutcome(ssh.name, problem=str(error))
        match steps:
            case []:
                self.report(ssh.name, "nothing to do")
                return HostOutcome(ssh.name)
            case [RefuseHost() as refused]:
                self.log.append(ssh.name, "deploy", "refused", reason=describe(refused))
                return HostOutcome(ssh.name, problem=describe(refused))
        return None

    def deploy(self, ssh: Ssh, before_start: Callable[[Executor], None] | None = None) -> HostOutcome:
        """Plan a host and execute its steps; return the outcome.

        If `before_start` is given, the service is always stopped and started again. `before_start` is called
        while the service is stopped.
        """
        done = 0
        try:
            facts, target, steps = self.plan(ssh)
            executor = Executor(ssh, self.control, target, lambda message: self.report(ssh.name, message))
            if before_start is not None:
                steps = _with_a_start(steps, target.desired.care)
            for step in steps:
                if isinstance(step, StartRelease) and before_start is not None:
                    executor.run_step(
                        "stop", f"{ROLLBACK_DRAIN_SECONDS:.0f}", seconds=ROLLBACK_DRAIN_SECONDS + 120
                    )
                    before_start(executor)
                self._execute(executor, step, facts, steps)
                done += 1
                if isinstance(step, Enrol) and target.desired.role == DEVICE:
                    self.tell_coordinator()
                    if self.control.enrolment.was_revoked(ssh.name):
                        self._tell_brokers()
        except (RunError, SettingsError, StatementError) as error:
            self.log.append(ssh.name, "deploy", "failed", reason=str(error))
            return HostOutcome(ssh.name, done, str(error))
        return HostOutcome(ssh.name, done)

    def tell_lists(self) -> list[HostOutcome]:
        """Send the broker and the coordinator the lists of enrolled and revoked names, and nothing else."""
        return [self._tell_list(ssh) for ssh in self._infrastructure.values()]

    def _tell_brokers(self) -> None:
        """Send the broker new rules for a name that is enrolled again.

        The broker's old rules deny all topics to this name, because the name was revoked.
        """
        for name, ssh in self._infrastructure.items():
            if self.control.desired.role(name).name == BROKER:
                with self._admitting:
                    outcome = self._tell_list(ssh)
                if outcome.problem:
                    self.report(
                        name,
                        f"the broker did not get its new rules: {outcome.problem}; deploy this host again",
                    )

    def _tell_list(self, ssh: Ssh) -> HostOutcome:
        try:
            facts, target, steps = self.plan(ssh)
            executor = Executor(ssh, self.control, target, lambda message: self.report(ssh.name, message))
            for step in steps if facts.installed.tls else []:
                if isinstance(step, RefuseHost):
                    return HostOutcome(ssh.name, problem=describe(step))
                if isinstance(step, (Enrol, Admit)):
                    self._execute(executor, step, facts, steps)
        except (RunError, SettingsError, StatementError) as error:
            return HostOutcome(ssh.name, problem=str(error))
        return HostOutcome(ssh.name)

    def tell_coordinator(self) -> None:
        """Send the coordinator all records, after a device was enrolled.

        The coordinator accepts messages of a device only if it has the record of the device.
        """
        for name, ssh in self._infrastructure.items():
            if self.control.desired.role(name).name == COORDINATOR:
                with self._admitting:
                    self._admit(ssh)

    def _admit(self, ssh: Ssh) -> None:
        try:
            facts = gather_facts(ssh, self.control.desired.place(ssh.name))
            # If the host has no user for the service yet, the coordinator's own deployment sends all records.
            if facts.installed.user:
                target = self.control.desired.target(ssh.name, facts)
                Executor(ssh, self.control, target, lambda said: self.report(ssh.name, said)).admit()
        except RunError as error:
            self.report(
                ssh.name, f"the coordinator did not get the new records: {error}; deploy this host again"
            )

    def _execute(self, executor: Executor, step: Step, facts: Facts, steps: list[Step]) -> None:
        name, desired, started_at = executor.ssh.name, executor.target.desired, time.monotonic()
        self.report(name, describe(step))
        try:
            executor.execute(step, facts)
        except RunError as error:
            self._log_step(name, step, str(error), started_at, desired.release, desired.settings)
            switched = steps.index(step) >= min(
                (steps.index(s) for s in steps if isinstance(s, (Switch, StartRelease))), default=len(steps)
            )
            if switched and not isinstance(step, (RefuseHost, RecordGood)):
                raise RunError(f"{name_of(step)}: {error}; {self._roll_back(executor)}") from None
            raise RunError(f"{name_of(step)}: {error}") from None
        self._log_step(name, step, "done", started_at, desired.release, desired.settings)

    def _log_step(
        self, name: str, step: Step, result: str, started_at: float, release: str, settings: str
    ) -> None:
        seconds = round(time.monotonic() - started_at, 2)
        self.log.append(name, name_of(step), result, seconds=seconds, release=release, settings=settings)

    def _roll_back(self, executor: Executor) -> str:
        """Roll the host back to its known good state, and return a message.

        If the host has no known good state, its service is stopped.
        """
        name, desired = executor.ssh.name, executor.target.desired
        try:
            good = gather_facts(executor.ssh, executor.place).installed.good
            if good is None or f"{good.release}-{good.settings}" == desired.blocked_key:
                executor.run_step(
                    "stop", f"{ROLLBACK_DRAIN_SECONDS:.0f}", seconds=ROLLBACK_DRAIN_SECONDS + 60
                )
                self.log.append(name, "rollback", "stopped")
                return "no earlier state of the host was good, so the service is stopped"
            executor.run_step("block", desired.blocked_key)
            self.report(name, f"rolling back to release {good.release}")
            self.restore(executor, "good", good)
        except RunError as error:
            self.log.append(name, "rollback", str(error))
            return f"the host could not be rolled back: {error}"
        self.log.append(name, "rollback", "done", release=good.release, settings=good.settings)
        return f"the host was rolled back to release {good.release}, which is healthy"

    def restore(self, executor: Executor, which: str, good: KnownGood) -> None:
        """Restore a state that the device has kept.

        The settings of this state are signed again with a new version, because a device refuses settings
        with a lower version than the version of the installed settings.
        """
        facts = gather_facts(executor.ssh, executor.place)
        here, name = facts.installed, executor.ssh.name
        kept = here.good_settings if which == "good" else here.previous_settings
        text = self.control.signer.verified_settings_text(kept)
        executor.target = replace(
            executor.target, desired=replace(executor.target.desired, release=good.release)
        )
        version = self.control.signer.installed_settings(name, here.settings).version
        executor.configure_kept(text, which, good, version)
        care = self.fleet.care
        for step in (
            Switch(good.release),
            Drain(ROLLBACK_DRAIN_SECONDS),
            StartRelease(),
            Health(care.health_seconds),
        ):
            executor.execute(step, facts)


def _with_a_start(steps: list[Step], care: RolloutSettings) -> list[Step]:
    if any(isinstance(step, (StartRelease, RefuseHost)) for step in steps):
        return steps
    return [
        *(step for step in steps if not isinstance(step, Health)),
        StartRelease(),
        Health(care.health_seconds),
    ]


def roll_back_by_hand(rollout: Rollout, ssh: Ssh) -> str:
    """Roll a device back to the known good state that preceded the present state.

    The present state is blocked: it can be deployed again only with --force.
    """
    facts, target, _ = rollout.plan(ssh)
    here = facts.installed
    if here.good is None or here.previous is None:
        raise RunError(f"{ssh.name} has no earlier good state to roll back to")
    executor = Executor(ssh, rollout.control, target, lambda message: rollout.report(ssh.name, message))
    executor.run_step("block", f"{here.good.release}-{here.good.settings}", BY_HAND)
    rollout.restore(executor, "previous", here.previous)
    executor.record(here.previous.release, here.previous.settings, here.previous.unit)
    rollout.log.append(ssh.name, "rollback", "done", release=here.previous.release)
    return f"rolled back to release {here.previous.release}"
