"""Records that one root has signed for all parties of a federation in one process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.protocol.security.enrolment import KnownRecords
from protofleet.protocol.security.keys import Keys
from protofleet.protocol.security.records import RECORD, Record, Revocations, issue_record
from protofleet.protocol.security.statements import armoured
from protofleet.protocol.security.trust import Roots, Trust
from protofleet.protocol.wire.names import COORDINATOR

LAST_DAY = 4_000_000_000  # The records are valid at every time of a test.


class SmallEnrolment:
    """The records of a federation in a folder, and the keyrings that read them."""

    def __init__(self, folder: Path, federation: str, keys: Mapping[str, Keys]) -> None:
        self.folder, self.federation = folder, federation
        self.root = Ed25519PrivateKey.generate()
        roots = Roots(federation, 1, (self.root.public_key().public_bytes_raw(),), (b"authority",))
        self.trust = Trust(roots, Revocations(federation))
        folder.mkdir(parents=True, exist_ok=True)
        for serial, name in enumerate(sorted(keys), 1):
            self.write(name, self.record(name, keys[name], serial))

    def record(self, name: str, keys: Keys, serial: int) -> bytes:
        role, public = "coordinator" if name == COORDINATOR else "device", keys.public
        made = Record(self.federation, name, role, public.sign, public.receive, serial, 0, LAST_DAY)
        return issue_record(made, self.root)

    def write(self, name: str, record: bytes) -> None:
        (self.folder / f"{name}.{RECORD}").write_text(armoured(RECORD, record))

    def keyring_of(self, name: str) -> KnownRecords:
        """Return the keys that a party knows: a device knows the coordinator only."""
        return KnownRecords(self.folder, self.trust, role="device" if name == COORDINATOR else "coordinator")
