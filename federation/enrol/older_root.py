"""Find out whether this root is an older copy.

Hosts hold statements that the root has signed, and refuse older statements. An
operator may restore a copy of the root from a time before a revocation. Each plan that uses this copy would enrol
the revoked party again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from protofleet.federation.enrol.authority import Authority
from protofleet.federation.enrol.certificates import SKEW
from protofleet.federation.enrol.register import CHECK, STANDBY_PART
from protofleet.protocol.security.records import Revocations, day, read_revocations
from protofleet.protocol.security.statements import StatementError
from protofleet.protocol.security.trust import read_roots

CRL: Final = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Held:
    """The revocation lists and the version of the root keys on a host. Lists of another root are ignored."""

    # The version of the revocation lists. For a broker, it is computed from the date of an X.509 list, and the true
    # version may be higher.
    version: int = 0
    serials: frozenset[int] = frozenset()  # The serial numbers in the host's revocation lists.
    roots_version: int = 0


def read_held(authority: Authority, revoked: bytes = b"", roots: bytes = b"", crl: bytes = b"") -> Held:
    """Read two statements of a host, and the X.509 lists of a broker.

    Statements and lists that are damaged or belong to another federation are left out.
    """
    known, listed, roots_version = [root.public for root in authority.roots], Revocations(""), 0
    try:
        listed = read_revocations(revoked, known) if revoked else listed
        roots_version = read_roots(roots, known).version if roots else 0
    except StatementError:
        pass
    at_broker = [_read_crl(authority, text) for text in CRL.findall(crl)]
    return Held(
        max([listed.version, *(version for version, _ in at_broker)]),
        listed.serials.union(*(serials for _, serials in at_broker)),
        roots_version,
    )


def _read_crl(authority: Authority, text: bytes) -> tuple[int, frozenset[int]]:
    """Return the version and the serial numbers of an X.509 list.

    The version is computed from the list's date (see `certificates.revocation_list`).
    """
    try:
        crl = x509.load_pem_x509_crl(text)
        if not any(crl.is_signature_valid(root.tls_ca.key.public_key()) for root in authority.roots):
            return 0, frozenset()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return 0, frozenset()
    return int((crl.last_update_utc + SKEW).timestamp()), frozenset(entry.serial_number for entry in crl)


def problem(authority: Authority, held: Mapping[str, Held], devices: Collection[str]) -> str:
    """Return the reason in one line why this root must not sign anything, or "".

    `held` maps the name of each host to the lists on this host. `devices` are the names that `deploy revoke` can
    revoke.
    """
    register, lost = authority.register, _lost(authority, held)
    by_version = {who: one.version for who, one in held.items() if one.version > register.version}
    by_roots = {
        who: one.roots_version for who, one in held.items() if one.roots_version > register.roots_version
    }
    if by_version:
        who = max(by_version, key=lambda name: by_version[name])
        what = f"its list of revoked names is {_list(register.version)}, {who} holds {_list(by_version[who])}"
    elif by_roots:
        who = max(by_roots, key=lambda name: by_roots[name])
        what = f"its roots are of version {register.roots_version}, {who} holds version {by_roots[who]}"
    elif lost:
        what = (
            f"it lacks revocations that {' and '.join(sorted({w for ws in lost.values() for w in ws}))} holds"
        )
    else:
        return ""
    revoked = f"; revoked on hosts but valid here: {', '.join(lost)}" if lost else ""
    way_out = _way_out(authority, lost, devices)
    return f"{authority.folder} is older than what the hosts hold: {what}{revoked}; {way_out}"


def _lost(authority: Authority, held: Mapping[str, Held]) -> dict[str, list[str]]:
    """Return for each valid name of this register the hosts that have revoked its certificate."""
    now = authority.now()
    # The coordinator's second certificate is always revoked together with the first.
    good = [e for e in authority.register.entries if e.part not in (CHECK, STANDBY_PART) and e.is_valid(now)]
    return {
        e.name: [who for who, one in held.items() if e.serial in one.serials]
        for e in sorted(good, key=lambda e: (e.name, -e.serial))
        if any(e.serial in one.serials for one in held.values())
    }


def _way_out(authority: Authority, lost: Collection[str], devices: Collection[str]) -> str:
    here = [name for name in lost if name in devices]
    commands = [f"`protofleet deploy revoke {' '.join(here)}`"] if here else []
    commands += [
        f"`protofleet enrol revoke {name} --root {authority.folder}`" for name in lost if name not in here
    ]
    again = f"revoke again: {' and '.join(commands)}" if commands else "replace it: `protofleet enrol rotate`"
    return f"restore a newer copy of the root, or {again} (docs/day-2.md, Lose the root)"


def _list(version: int) -> str:
    return f"{version} ({day(version)})"
