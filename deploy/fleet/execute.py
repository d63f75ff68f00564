"""The steps of a plan, done on one device over SSH."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.deploy.errors import RunError
from protofleet.deploy.fleet.control_plane import ControlPlane, Target
from protofleet.deploy.fleet.deploy_log import current_user
from protofleet.deploy.fleet.device.facts import FACTS_SCRIPT, Facts, KnownGood, Service, read_facts
from protofleet.deploy.fleet.device.unit import sha256_of
from protofleet.deploy.fleet.manifest import MANIFEST
from protofleet.deploy.fleet.plan import (
    Build,
    Configure,
    Drain,
    Enrol,
    Health,
    Prepare,
    Record,
    Refuse,
    Ship,
    Soak,
    Start,
    Step,
    Switch,
)
from protofleet.deploy.fleet.ssh import Result, Ssh, UnreachableError
from protofleet.edge_client.host.status_file import Status
from protofleet.protocol.settings.reader import SettingsError

HERE: Final = Path(__file__).parent / "device"
# The program that checks what was shipped travels with the steps: nothing that lies on the device has a say in it.
REMOTE_SCRIPT: Final = (
    f"verifier() {{ cat <<'END_OF_VERIFIER'\n{(HERE / 'verify.py').read_text()}END_OF_VERIFIER\n}}\n"
    f"{(HERE / 'remote.sh').read_text()}"
)
TOP: Final = "/opt/protofleet"
BUILD_SECONDS: Final = 1800.0
SWITCH_SECONDS: Final = 900.0  # all of a release is read again, from an SD card
POLL_SECONDS: Final = 0.5
REQUEST: Final = re.compile(
    r"-----BEGIN PROTOFLEET REQUEST-----.*?-----END PROTOFLEET REQUEST-----", re.DOTALL
)


class StepError(RunError):
    """A step has failed on the device."""


@dataclass(frozen=True, slots=True)
class ServiceState:
    """A service and the status of its own process."""

    service: Service
    status: Status | None


def gather_facts(ssh: Ssh, *how: str) -> Facts:
    said = ssh.run(FACTS_SCRIPT.read_text(), *(how or ("quick",)), seconds=240.0 if how else 60.0)
    try:
        return read_facts(said.out)
    except SettingsError:
        words = said.last_line
        if "sudo" in words:
            words += "; let this user `sudo -n`, or deploy as root"
        raise UnreachableError(f"{ssh.name}: its facts cannot be gathered: {words}") from None


class Executor:
    """One device."""

    def __init__(
        self, ssh: Ssh, current_user: ControlPlane, target: Target, say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self.ssh, self.control, self.target, self.say = ssh, current_user, target, say
        self._clock, self._sleep = clock, sleep

    def execute(self, step: Step, facts: Facts) -> None:
        """Raises StepError, or UnreachableError when the device is lost in the middle."""
        desired = self.target.desired
        match step:
            case Refuse(reasons):
                raise StepError(f"{desired.name} cannot be deployed: {'; '.join(reasons)}")
            case Prepare():
                self.run_step("prepare")
                upload(self.ssh, {"roots": self.control.roots()})
                self.run_step("pin")
            case Ship(release):
                demand_success(self.ssh.send(self.control.shipped(), f"{TOP}/wheels/{release}"))
            case Build(release):
                made = self.control.release
                job = "load" if made.container else "build"
                self.run_step(job, release, *made.install_arguments, seconds=BUILD_SECONDS)
            case Enrol():
                self._enrol()
            case Configure():
                version = self.control.present(desired.name, facts.installed.settings).version
                self.configure(self.target.text, self.target.unit, version)
            case Drain(seconds):
                said = self.run_step("drain", f"{seconds:.0f}", seconds=seconds + 60)
                if said.err.strip():
                    self.say(said.err.strip())
            case Switch(release):
                self.run_step("switch", release, desired.name, seconds=SWITCH_SECONDS)
            case Start():
                self.run_step("start")
            case Health(seconds):
                self._wait_until_healthy(seconds)
            case Soak(rounds, seconds):
                self._soak(rounds, seconds)
            case Record(release, settings):
                self.record(release, settings, desired.unit)

    def configure(self, text: str, unit: str, version: int) -> None:
        """Beside those in use, and read by the new release before anything depends on it."""
        desired = self.target.desired
        files = {"settings": self.control.signed(desired.name, text, version), "unit": unit}
        self._place_signed(files, {name: sha256_of(text) for name, text in files.items()})
        self.run_step("check", desired.release, desired.name)

    def configure_kept(self, text: str, which: str, good: KnownGood, version: int) -> None:
        """The unit is the one that the device has kept, or it is refused there."""
        desired = self.target.desired
        settings = self.control.signed(desired.name, text, version)
        self._place_signed({"settings": settings}, {"settings": sha256_of(settings), "unit": good.unit})
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

    def run_step(self, step: str, *arguments: str, seconds: float = 120.0) -> Result:
        return demand_success(self.ssh.run(REMOTE_SCRIPT, step, *arguments, seconds=seconds))

    def service_state(self) -> ServiceState:
        told = dict(line.partition("=")[::2] for line in self.run_step("state").out.splitlines())
        service = Service(
            told.get("ActiveState", ""), told.get("SubState", ""),
            pid=int(told.get("agent") or 0), restarts=int(told.get("NRestarts") or 0),
        )  # fmt: skip
        try:
            status = Status(**json.loads(told.get("status", "")))
        except (ValueError, TypeError):
            status = None
        return ServiceState(service, status if status and status.pid == service.pid else None)

    def last_log_line(self) -> str:
        """Of the service, as its journal has them."""
        lines = [line for line in self.ssh.run(REMOTE_SCRIPT, "journal").out.splitlines() if line.strip()]
        told = [line.removeprefix("protofleet: ") for line in lines if line.startswith("protofleet: ")]
        return (told or lines or ["its journal says nothing"])[-1]

    def _place_signed(self, files: dict[str, str], listed: dict[str, str]) -> None:
        subject = f"device {self.target.desired.name}"
        upload(self.ssh, {**files, MANIFEST: self.control.manifest(subject, listed)})

    def _enrol(self) -> None:
        desired = self.target.desired
        said = self.run_step("request", desired.release, desired.name, self.control.federation)
        found = REQUEST.search(said.out)
        if found is None:
            raise StepError(f"the device made no request: {said.last_line}")
        upload(self.ssh, {"approval": self.control.approval(desired.name, found[0] + "\n")})
        self.run_step("enrol", desired.release, self.control.root_fingerprint)
        if words := self.control.let_back_in(desired.name):
            self.say(words)

    def _wait_until_healthy(self, seconds: float) -> None:
        """An open port is no health: this process has to have the coordinator's signed answer."""
        began, first, ends = self._clock(), self.service_state().service.restarts, 0
        while True:
            seen = self.service_state()
            ends += seen.service.sub == "auto-restart"  # once may be the process before
            if seen.status is not None and seen.status.connected and (seen.status.heard or seen.status.idle):
                return
            if ends > 1 or seen.service.restarts > first or seen.service.active in ("failed", "inactive"):
                raise StepError(f"it does not stay up: {self.last_log_line()}")
            if self._clock() - began > seconds:
                raise StepError(self._unhealthy_reason(seen, seconds))
            self._sleep(POLL_SECONDS)

    def _unhealthy_reason(self, seen: ServiceState, seconds: float) -> str:
        if seen.status is None:
            return f"after {seconds:g} s it still starts: {self.last_log_line()}"
        if not seen.status.connected:
            return f"no broker has taken it within {seconds:g} s: {self.last_log_line()}"
        return (
            f"the broker has taken it, but no coordinator has answered within {seconds:g} s; is a run on, and does "
            f"the coordinator know {self.target.desired.name}'s record?"
        )

    def _soak(self, rounds: int, seconds: float) -> None:
        began, first = self._clock(), self.service_state()
        while True:
            seen = self.service_state()
            if seen.service.pid != first.service.pid:
                raise StepError(f"it was started again while it served: {self.last_log_line()}")
            if (status := seen.status) is not None:
                if status.refused:
                    raise StepError("an answer of it was refused by the coordinator; its log says why")
                if status.accepted >= rounds:
                    return
                if status.idle and not (status.working or status.waiting):
                    self.say("the run is over, so no round was served")
                    return
            if self._clock() - began > seconds:
                if status is not None and status.working:
                    raise StepError(f"no answer was finished within {seconds:g} s")
                self.say(f"no round has asked it within {seconds:g} s; it counts as good by its health alone")
                return
            self._sleep(POLL_SECONDS)


def upload(ssh: Ssh, files: dict[str, str]) -> None:
    """Small files, for a step of `remote.sh` to take from there."""
    folder = Path(tempfile.mkdtemp(prefix="protofleet-"))
    try:
        for name, text in files.items():
            (folder / name).write_text(text)
        demand_success(ssh.send(folder, f"{TOP}/incoming"))
    finally:
        shutil.rmtree(folder)


def demand_success(said: Result) -> Result:
    if said.code:
        raise StepError(said.last_line)
    return said
