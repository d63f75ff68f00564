"""The operator's side of a deployment: the desired states of the hosts, and the root that signs the hosts' files."""

from __future__ import annotations

import threading
from pathlib import Path

from protofleet.deploy.fleet.broker_keys import BrokerKeys
from protofleet.deploy.fleet.certificates import Certificates
from protofleet.deploy.fleet.desired_state import DesiredState
from protofleet.deploy.fleet.enrolment import ConfirmFingerprint, HostEnrolment
from protofleet.deploy.fleet.settings import Fleet
from protofleet.deploy.fleet.signer import Signer
from protofleet.deploy.fleet.software import Releases
from protofleet.deploy.fleet.targets import TARGETS_FILE
from protofleet.federation.enrol.authority import Authority
from protofleet.federation.enrol.register import NoRootError, lost
from protofleet.protocol.security.enrolment import CURRENT


class ControlPlane:
    """The operator's side of a deployment: parts that share one root and one lock.

    The lock lets only one thread sign at a time, because the register of issued certificates is one file.
    """

    def __init__(
        self, fleet: Fleet, releases: Releases, confirm: ConfirmFingerprint, replace: bool = False
    ) -> None:
        """Open the fleet's root.

        If `replace` is true, an enrolled name may get new keys. A board that was installed again has new keys.
        """
        self.fleet, self.authority = fleet, open_root(fleet)
        lock, certificates = threading.RLock(), Certificates(fleet, self.authority)
        self.desired = DesiredState(fleet, releases, self.authority, certificates)
        self.signer = Signer(self.authority, lock)
        self.enrolment = HostEnrolment(fleet, self.authority, certificates, lock, confirm, replace)
        self.broker_keys = BrokerKeys(fleet, self.authority, certificates, lock)

    @property
    def federation(self) -> str:
        return self.authority.federation

    @property
    def root_fingerprint(self) -> str:
        return self.authority.fingerprint


def open_root(fleet: Fleet) -> Authority:
    """Open the fleet's root; raise the error of a lost root if the root existed before and is missing now.

    Files of a deployment, of a broker's enrolment or of `protofleet init` show that the root existed before.
    """
    root, left = Path(fleet.root), [Path(fleet.log), Path(fleet.file).parent / TARGETS_FILE]
    if fleet.broker:
        left.append(Path(fleet.broker) / CURRENT)
    try:
        return Authority(root)
    except NoRootError:
        if any(path.exists() for path in left):
            raise lost(root, root) from None
        raise
