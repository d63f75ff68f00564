"""Enrol the hosts of a fleet, and refuse the hosts that were revoked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from protofleet.deploy.fleet.certificates import Certificates
from protofleet.deploy.fleet.device.facts import Facts
from protofleet.deploy.fleet.device.roles import BROKER, DEVICE
from protofleet.deploy.fleet.settings import Fleet
from protofleet.federation.enrol import disconnect, older_root
from protofleet.federation.enrol.authority import Authority
from protofleet.federation.enrol.lifecycle import (
    ReviewedRequest,
    approve,
    reissue_approvals,
    renew,
    review_request,
    same_keys,
)
from protofleet.federation.enrol.older_root import read_held
from protofleet.federation.enrol.request import REQUEST
from protofleet.protocol.security.enrolment import CURRENT, REVOKED_FILE
from protofleet.protocol.security.records import REVOCATIONS, day
from protofleet.protocol.security.statements import StatementError, from_armour, read_armoured
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.printable import printable
from protofleet.runtime.command.errors import RunError

# The function is called with a device's name and the fingerprint of the device's request.
ConfirmFingerprint = Callable[[str, str], bool]


class HostEnrolment:
    """The enrolment of hosts at the fleet's root, which asks a person about keys that are new."""

    def __init__(
        self, fleet: Fleet, authority: Authority, certificates: Certificates,
        lock: AbstractContextManager[object], confirm: ConfirmFingerprint, replace: bool,
    ) -> None:  # fmt: skip
        """Enrol with this root; `lock` lets one thread at a time sign.

        If `replace` is true, an enrolled name may come with new keys, as a board does after it was installed
        again.
        """
        self._fleet, self._authority, self._certificates = fleet, authority, certificates
        self._lock, self._confirm, self._replace = lock, confirm, replace

    def approval(self, name: str, request: str) -> str:
        """Return the approval of a host's request.

        If the keys in the request are new to us, a person compares the request's fingerprint.
        """
        with self._lock:
            asked = self._review(name, request)
            if self._approved_before(name, asked):
                if self._fleet.hosts[name].role == COORDINATOR and self._certificates.valid(name):
                    # A new record of the coordinator would have to be sent to all devices.
                    reissue_approvals(self._authority, COORDINATOR)
                else:
                    renew(self._authority, name)
            elif not self._confirm(name, asked.fingerprint):
                raise RunError(
                    f"{name} was not approved: nobody has confirmed the fingerprint {asked.fingerprint}"
                )
            else:
                approve(self._authority, asked, replace=self._replace)
            return (Path(self._fleet.root) / "approvals" / f"{name}.approval").read_text()

    def _review(self, name: str, request: str) -> ReviewedRequest:
        """Read a host's request; raise RunError if it is bad or asks for another name or role.

        After a bad request, only the deployment of this host fails.
        """
        try:
            data = from_armour(REQUEST, request.encode(), f"the request of {name}")
            return review_request(self._authority, data, name, self._fleet.hosts[name].role)
        except StatementError as error:
            raise RunError(f"{name} was not approved: {printable(str(error))}") from None

    def readmit(self, name: str) -> str:
        """Issue new rules for the brokers if the name was revoked before; return what was done, or "".

        With the old rules, brokers deny all topics to the name, even if it has new keys.
        """
        with self._lock:
            if not self.was_revoked(name):
                return ""
            reissue_approvals(self._authority, "broker")
            if self._fleet.of_role(BROKER):
                return "it was revoked before; the broker is told that it is back"
            if not self._fleet.broker:
                where = Path(self._fleet.root) / "approvals"
                return (
                    f"it was revoked before: install the brokers' approvals from {where} and let them reload"
                )
            disconnect.install_broker(self._authority, Path(self._fleet.broker))
            disconnect.reload(Path(self._fleet.broker))
            return "it was revoked before; the broker accepts the name again"

    def revocation(self, name: str) -> str:
        """Return when and why this name was revoked; "" if it is not revoked, or is enrolled again."""
        latest = self._authority.register.latest(name)
        if latest is None or not latest.revoked_at:
            return ""
        return f"{day(latest.revoked_at)}{f', {latest.reason}' if latest.reason else ''}"

    def refusal(self, name: str) -> str:
        """Return the reason why nothing in the fleet's file is deployed to this host, or ""."""
        if self._replace or not (revoked := self.revocation(name)):
            return ""
        return (
            f"it was revoked ({revoked}); take it out of the fleet's file, or say --replace to bring it back with "
            "new keys"
        )

    def older_root(self, facts: Mapping[str, Facts]) -> str:
        """Return the reason why this root must not sign anything, or "".

        The root is an older copy if one of these hosts, or the folder of our own broker, holds later lists
        than the root.
        """
        held = {
            name: read_held(self._authority, here.held_revoked, here.held_roots, here.held_crl)
            for name, here in ((name, one.installed) for name, one in facts.items())
        }
        if self._fleet.broker and (path := Path(self._fleet.broker) / CURRENT / REVOKED_FILE).exists():
            held[self._fleet.broker] = read_held(self._authority, read_armoured(REVOCATIONS, path))
        return older_root.problem(self._authority, held, self._fleet.of_role(DEVICE.name))

    def was_revoked(self, name: str) -> bool:
        return any(e.name == name and e.revoked_at for e in self._authority.register.entries)

    def _approved_before(self, name: str, asked: ReviewedRequest) -> bool:
        """Return whether these keys were approved before; raise RunError if they were revoked.

        Revoked keys are never approved again.
        """
        latest = self._authority.register.latest(name)
        if latest is None:
            return False
        same = same_keys(self._authority, asked)
        if same and latest.revoked_at:
            problem = f"{name} was revoked with the keys that it still has"
            raise RunError(f"{problem}; `protofleet deploy revoke {name}` destroys them, then deploy again")
        return same
