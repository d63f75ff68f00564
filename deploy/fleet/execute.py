"""Execute the steps of a plan on one host over SSH."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.deploy.fleet.control_plane import ControlPlane
from protofleet.deploy.fleet.deploy_log import current_user
from protofleet.deploy.fleet.desired_state import Target
from protofleet.deploy.fleet.device.facts import (
    Facts,
    IncompleteError,
    KnownGood,
    Service,
    read_facts,
    read_service,
)
from protofleet.deploy.fleet.device.fields import Fields, read_object
from protofleet.deploy.fleet.device.roles import BROKER, DEVICE
from protofleet.deploy.fleet.device.scripts import HostRole
from protofleet.deploy.fleet.device.unit import sha256_of
from protofleet.deploy.fleet.plan import (
    Admit,
    BuildRelease,
    Configure,
    Drain,
    Enrol,
    Health,
    Prepare,
    RecordGood,
    RefuseHost,
    Ship,
    Soak,
    StartRelease,
    Step,
    Switch,
    Targets,
)
from protofleet.deploy.fleet.ssh import CommandResult, Ssh, UnreachableError, shown
from protofleet.deploy.fleet.targets import TARGETS_FILE
from protofleet.edge_client.host.status_file import Status
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.command.errors import RunError

BUILD_SECONDS: Final = 1800.0
# Time limit of a switch, which reads all files of a release again, perhaps from an SD card.
SWITCH_SECONDS: Final = 900.0
# Time limit for the end of an earlier step. The script on the host waits up to two minutes for this end.
SETTLE_SECONDS: Final = 150.0
POLL_SECONDS: Final = 0.5
# A device must stay healthy for this number of seconds before a deployment goes on. If the coordinator refuses the
# device, the refusal arrives within this time.
STEADY_SECONDS: Final = 5.0
# During the soak, a deployment waits until a changed device has finished rounds. But if the coordinator waits for
# more devices, and this wait takes longer than this number of seconds, the soak ends without a round.
GATHERING_SECONDS: Final = 10.0
REQUEST: Final = re.compile(
    r"-----BEGIN PROTOFLEET REQUEST-----.*?-----END PROTOFLEET REQUEST-----", re.DOTALL
)


class StepError(RunError):
    """The error for a step that has failed on the host."""


class NonsenseError(RunError):
    """The error for a value of a host that is not of the expected type."""


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The state of a service, with the status of its process or the result of its health check."""

    service: Service
    status: Status | None
    answers: str = ""
    # The reason why the last process has ended, or why the present process will end soon.
    over: str = ""

    @property
    def healthy(self) -> bool:
        """Return whether the process takes part in a run or waits for a run.

        A process whose status has the field `over` set will end soon, so the process is not healthy.
        """
        if self.status is not None:
            status = self.status
            return status.connected and (status.heard or status.idle) and not status.over
        return self.answers == "ok" or (self.service.active, self.service.sub) == ("active", "exited")


def gather_facts(ssh: Ssh, place: HostRole, *how: str) -> Facts:
    result = ssh.run(place.facts, *(how or ("quick",)), seconds=240.0 if how else 60.0)
    try:
        return read_facts(result.out)
    except IncompleteError:
        problem = result.last_line
        if "sudo" in problem:
            problem += "; allow this user to run `sudo -n`, or deploy as root"
        raise UnreachableError(f"{ssh.name}: the state of the host cannot be gathered: {problem}") from None
    except SettingsError as error:
        raise NonsenseError(f"{ssh.name}: the state of the host cannot be read: {error}") from None


class Executor:
    """The executor of steps on one host."""

    def __init__(
        self, ssh: Ssh, control: ControlPlane, target: Target, report: Callable[[str], None]
    ) -> None:  # fmt: skip
        self.ssh, self.control, self.target, self.report = ssh, control, target, report
        self.place = control.desired.place(ssh.name)

    def execute(self, step: Step, facts: Facts) -> None:
        """Execute a step; raise StepError if it fails, or UnreachableError if the host cannot be reached."""
        desired = self.target.desired
        match step:
            case RefuseHost(reasons):
                raise StepError(f"{desired.name} cannot be deployed: {'; '.join(reasons)}")
            case Prepare():
                self.run_step("prepare")
                upload(self.ssh, self.place, self.control.desired.roots_files(facts.installed))
                self.run_step("pin")
            case Ship(release):
                to_ship = self.control.desired.release(desired.name)
                shipped = self.control.signer.release_folder(to_ship)
                require_success(self.ssh.send(shipped, f"{self.place.role.top}/wheels/{release}"))
            case BuildRelease(release):
                built = self.control.desired.release(desired.name)
                step_name = "load" if built.container else "build"
                self.run_step(step_name, release, *built.install_arguments, seconds=BUILD_SECONDS)
            case Enrol():
                if desired.role.name == BROKER:
                    self._install_broker_keys()
                else:
                    self._enrol()
            case Admit():
                self.admit()
            case Targets():
                upload(self.ssh, self.place, {TARGETS_FILE: self.control.desired.targets()})
                self.run_step("targets")
            case Configure():
                installed = self.control.signer.installed_settings(desired.name, facts.installed.settings)
                self.configure(self.target.text, self.target.unit, installed.version)
            case Drain(seconds):
                result = self.run_step("drain", f"{seconds:.0f}", seconds=seconds + 60)
                if result.err.strip():
                    self.report(result.last_line)
            case Switch(release):
                self.run_step("switch", release, desired.name, seconds=SWITCH_SECONDS)
            case StartRelease():
                self.run_step("start")
            case Health(seconds):
                self._wait_until_healthy(seconds)
            case Soak(rounds, seconds):
                self._soak(rounds, seconds)
            case RecordGood(release, settings):
                self.record(release, settings, desired.unit)

    def configure(self, text: str, unit: str, version: int) -> None:
        """Upload the settings and the unit, and let the new release check the settings.

        The settings and the unit in use do not change before the step `switch`.
        """
        desired = self.target.desired
        files = {"settings": self.control.signer.signed_settings(desired.name, text, version), "unit": unit}
        files |= self.control.desired.files(desired.name, text)
        self._upload_signed(files, {name: sha256_of(text) for name, text in files.items()})
        self.run_step("check", desired.release, desired.name)

    def configure_kept(self, text: str, which: str, good: KnownGood, version: int) -> None:
        """Sign the earlier settings again and upload them, and restore the unit that the device has kept.

        The manifest lists the hash of the kept unit, so the device refuses any other unit.
        """
        desired = self.target.desired
        settings = self.control.signer.signed_settings(desired.name, text, version)
        files = {"settings": settings, **self.control.desired.files(desired.name, text)}
        self._upload_signed(
            files, {**{name: sha256_of(one) for name, one in files.items()}, "unit": good.unit}
        )
        self.run_step("restore_unit", which)
        self.run_step("check", desired.release, desired.name)

    def record(self, release: str, settings: str, unit: str) -> None:
        known = {
            "release": release,
            "settings": settings,
            "unit": unit,
            "by": current_user(),
            "at": int(time.time()),
        }
        self.run_step("record", json.dumps(known))
        self.run_step("allow", f"{release}-{settings}")

    def run_step(self, step: str, *arguments: str, seconds: float = 120.0) -> CommandResult:
        return require_success(self.ssh.run(self.place.steps, step, *arguments, seconds=seconds))

    def service_state(self) -> ServiceState:
        return read_state(self.ssh.name, self.run_step("state"))

    def last_log_line(self) -> str:
        """Return the last line of the service's log, from its journal."""
        journal = self.ssh.run(self.place.steps, "journal").out
        lines = [shown(line) for line in journal.split("\n") if line.strip()]
        ours = [line.removeprefix("protofleet: ") for line in lines if line.startswith("protofleet: ")]
        empty = f"its journal is empty; look at `systemctl status {self.place.role.service}` there"
        return (ours or lines or [empty])[-1]

    def _upload_signed(self, files: dict[str, str], listed: dict[str, str]) -> None:
        subject = f"{self.place.role.name} {self.target.desired.name}"
        upload(self.ssh, self.place, {**files, **self.control.signer.manifest(subject, listed)})

    def admit(self) -> None:
        """Send all records to the folder from which the coordinator reads them.

        Each record has its own signature, so no manifest is needed.
        """
        folder = Path(tempfile.mkdtemp(prefix="protofleet-"))
        try:
            for path in self.control.desired.records():
                shutil.copy(path, folder)
            require_success(self.ssh.send(folder, f"{self.place.role.etc}/records"))
        finally:
            shutil.rmtree(folder)

    def _install_broker_keys(self) -> None:
        """Send the broker its keys, which are made on the machine with the root.

        The broker's host has no program of ours that could make the keys. The files have the mode 0600 on both
        machines.
        """
        name = self.target.desired.name
        files = self.control.broker_keys.newest(name)
        listed = {file: hashlib.sha256(data).hexdigest() for file, data in files.items()}
        manifest = self.control.signer.manifest(f"keys {name}", listed)
        upload(self.ssh, self.place, {**files, **manifest}, private=True)
        self.run_step("install_keys", name)

    def _enrol(self) -> None:
        desired = self.target.desired
        result = self.run_step("request", desired.release, desired.name, self.control.federation)
        found = REQUEST.search(result.out)
        if found is None:
            raise StepError(f"the device made no request: {result.last_line}")
        approval = self.control.enrolment.approval(desired.name, found[0] + "\n")
        upload(self.ssh, self.place, {"approval": approval})
        self.run_step("enrol", desired.release, self.control.root_fingerprint)
        if message := self.control.enrolment.readmit(desired.name):
            self.report(message)

    def _wait_until_healthy(self, seconds: float) -> None:
        """Wait until the new process is healthy and stays healthy for a while, or raise StepError.

        A device is healthy when its process has received a signed message of the coordinator. An open port is
        not enough.
        """
        started_at, restarts, failures = time.monotonic(), self.service_state().service.restarts, 0
        steady = STEADY_SECONDS if self.place.role == DEVICE else 0.0
        # The process id, and the time since which this process has been healthy.
        healthy_since = (0, 0.0)
        while True:
            seen, now = self.service_state(), time.monotonic()
            # Count the failures. One failure is allowed, because the earlier process may have failed.
            failures += seen.service.sub == "auto-restart"
            if seen.healthy:
                if healthy_since[0] != seen.service.pid or not healthy_since[1]:
                    healthy_since = (seen.service.pid, now)
                if now - healthy_since[1] >= steady:
                    return
            else:
                healthy_since = (0, 0.0)
            if (
                failures > 1
                or seen.service.restarts > restarts
                or seen.service.active in ("failed", "inactive")
            ):
                raise StepError(f"the service does not keep running: {self._why_it_ended(seen)}")
            if not seen.healthy and now - started_at > seconds:
                raise StepError(self._unhealthy_reason(seen, seconds))
            time.sleep(POLL_SECONDS)

    def _why_it_ended(self, seen: ServiceState) -> str:
        return seen.over or self.last_log_line()

    def _unhealthy_reason(self, seen: ServiceState, seconds: float) -> str:
        if self.place.role != DEVICE:
            return (
                f"after {seconds:g} s the service is not healthy (it reports {seen.answers or 'nothing'}): "
                f"{self.last_log_line()}"
            )
        if seen.status is None:
            return f"after {seconds:g} s the device is still starting: {self.last_log_line()}"
        if not seen.status.connected:
            return f"no broker has accepted the device within {seconds:g} s: {self.last_log_line()}"
        return (
            f"the broker has accepted the device, but no coordinator has answered within {seconds:g} s; is a run in "
            f"progress, and does the coordinator have {self.target.desired.name}'s record?"
        )

    def _soak(self, rounds: int, seconds: float) -> None:
        started_at, first = time.monotonic(), self.service_state()
        asked_at = started_at
        while True:
            seen = self.service_state()
            if seen.service.pid != first.service.pid or (seen.status and seen.status.over):
                raise StepError(f"the process has ended during the soak: {self._why_it_ended(seen)}")
            if (status := seen.status) is not None:
                if status.refused:
                    raise StepError(
                        "the coordinator has refused an update of this device; the coordinator's log gives the reason"
                    )
                if status.accepted >= rounds:
                    return
                if status.idle and not (status.working or status.waiting):
                    self.report("no run is in progress, so no round was served")
                    return
                asked_at = asked_at if status.gathering else time.monotonic()
                if time.monotonic() - asked_at > GATHERING_SECONDS:
                    self.report("the run waits for more devices, so no round was served")
                    return
            if time.monotonic() - started_at > seconds:
                if status is not None and status.working:
                    raise StepError(f"no update was finished within {seconds:g} s")
                self.report(
                    f"the device got no task within {seconds:g} s; it is accepted as good because it is healthy"
                )
                return
            time.sleep(POLL_SECONDS)


def read_state(name: str, result: CommandResult) -> ServiceState:
    """Read the output of the step `state`."""
    said = Fields(result.out)
    try:
        service, answers = read_service(said), said.text("answers")
    except SettingsError as error:
        raise NonsenseError(f"{name}: the state of the service cannot be read: {error}") from None
    status = read_object(Status, said.raw("status"))
    own = status if status and status.pid == service.pid else None
    return ServiceState(service, own, answers, status.over if status else "")


def upload(ssh: Ssh, place: HostRole, files: Mapping[str, str | bytes], private: bool = False) -> None:
    """Upload small files for the next step of `remote.sh`.

    If `private` is true, only root may read the files on the host.
    """
    require_success(ssh.run(place.steps, "settle", seconds=SETTLE_SECONDS))
    folder = Path(tempfile.mkdtemp(prefix="protofleet-"))
    try:
        for name, text in files.items():
            (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
        require_success(ssh.send(folder, f"{place.role.top}/incoming", private=private))
    finally:
        shutil.rmtree(folder)


def require_success(result: CommandResult) -> CommandResult:
    if result.code:
        raise StepError(result.last_line)
    return result
