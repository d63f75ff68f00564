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
    """The enrolment of hosts at the fleet's root. A person must confirm each new key."""

    def __init__(
        self, fleet: Fleet, authority: Authority, certificates: Certificates,
        lock: AbstractContextManager[object], confirm: ConfirmFingerprint, replace: bool,
    ) -> None:  # fmt: skip
        """Enrol with this root; `lock` ensures that only one thread signs at a time.

        If `replace` is true, an enrolled name may get new keys. A board that was installed again has new keys.
        """
        self._fleet, self._authority, self._certificates = fleet, authority, certificates
        self._lock, self._confirm, self._replace = lock, confirm, replace

    def approval(self, name: str, request: str) -> str:
        """Return the approval of a host's request.

        If the root does not know the keys in the request, a person must confirm the request's fingerprint.
        """
        with self._lock:
            asked = self._review(name, request)
            if self._approved_before(name, asked):
                if self._fleet.hosts[name].role == COORDINATOR and self._certificates.valid(name):
                    # The coordinator keeps its record, because a new record would have to be sent to all devices.
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
        """Read a host's request; raise RunError if the request is bad or has another name or role.

        A RunError ends only the deployment of this host.
        """
        try:
            data = from_armour(REQUEST, request.encode(), f"the request of {name}")
            return review_request(self._authority, data, name, self._fleet.hosts[name].role)
        except StatementError as error:
            raise RunError(f"{name} was not approved: {printable(str(error))}") from None

    def readmit(self, name: str) -> str:
        """Issue new rules for the brokers if the name was revoked before; return a message about the rules, or "".

        With the old rules, the brokers deny all topics to this name, even if the name has new keys.
        """
        with self._lock:
            if not self.was_revoked(name):
                return ""
            reissue_approvals(self._authority, "broker")
            if self._fleet.of_role(BROKER):
                return "the name was revoked before; the broker gets new rules that accept the name again"
            if not self._fleet.broker:
                where = Path(self._fleet.root) / "approvals"
                return f"the name was revoked before: install the approvals from {where} on the brokers and reload"
            disconnect.install_broker(self._authority, Path(self._fleet.broker))
            disconnect.reload(Path(self._fleet.broker))
            return "the name was revoked before; the broker accepts the name again"

    def revocation(self, name: str) -> str:
        """Return the day and the reason of this name's revocation; "" if the name is not revoked now."""
        latest = self._authority.register.latest(name)
        if latest is None or not latest.revoked_at:
            return ""
        return f"{day(latest.revoked_at)}{f', {latest.reason}' if latest.reason else ''}"

    def refusal(self, name: str) -> str:
        """Return the reason why this host must not be deployed, or ""."""
        if self._replace or not (revoked := self.revocation(name)):
            return ""
        return (
            f"the host was revoked ({revoked}); remove it from the fleet's file, or use --replace to enrol it again "
            "with new keys"
        )

    def older_root(self, facts: Mapping[str, Facts]) -> str:
        """Return the reason why this root must not sign anything, or "".

        The root is an older copy if one of these hosts has newer lists than the root. The root is also an older
        copy if the folder of the broker's keys on this machine has newer lists.
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
        """Return whether the keys of the request were approved before; raise RunError if they were revoked.

        Revoked keys are never approved again.
        """
        latest = self._authority.register.latest(name)
        if latest is None:
            return False
        same = same_keys(self._authority, asked)
        if same and latest.revoked_at:
            problem = f"{name} was revoked with the keys that it still has"
            raise RunError(
                f"{problem}; destroy these keys with `protofleet deploy revoke {name}`, and then deploy again"
            )
        return same
