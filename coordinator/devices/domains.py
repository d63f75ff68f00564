"""The assignment of devices to domains. The results of devices are reported by domain.

A device claims a domain for its data, and no one can check the claim. If `limits.domains` lists devices for the
domain, the domain belongs to these devices. Any other domain belongs to the device that claimed it first. If a
device claims a domain that belongs to other devices, the results of the device are shown separately, as
"street (board-7)". A device has one domain for the whole run, so there are at most as many domains as enrolled
devices.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

log = logging.getLogger("protofleet.coordinator")

Shared = Mapping[str, Sequence[str]]  # Domain -> names or patterns of the devices that may belong to it.


def assign_domain(device: str, claim: str, known: dict[str, str], shared: Shared) -> None:
    """Assign a domain to a device, and store it in `known`, which holds the domains of all earlier devices."""
    claim, before = claim or device, known.get(device)
    known[device] = given = domain_of(device, claim, known, shared)
    if given not in (before, claim):
        log.warning(
            "%s claims the domain %r, which belongs to other devices, so its results are shown as %r. If the device "
            "may share the domain, add it to limits.domains", device, claim, given,
        )  # fmt: skip


def claim_problem(device: str, claim: str, known: Mapping[str, str], shared: Shared) -> str:
    """Return why a method that reads domains cannot accept this claim, or "" if the device may have the domain."""
    if (given := domain_of(device, claim, known, shared)) == claim:
        return ""
    return (
        f"its domain {claim!r} counts as {given!r}, because a domain belongs to its first device or to the devices "
        "that limits.domains lists; add the device to limits.domains, or give it back its first domain"
    )


def domain_of(device: str, claim: str, known: Mapping[str, str], shared: Shared) -> str:
    held = known.get(device)
    if listed(device, claim, shared):
        return claim
    if held is not None and (held not in shared or listed(device, held, shared)):
        return held
    taken = claim in shared or any(claim == other for name, other in known.items() if name != device)
    # Another device may have been given a domain such as "street (board-7)". A claim that ends with ")" could be
    # equal to this domain.
    if taken or claim.endswith(")"):
        return f"{claim} ({device})"
    return claim


def listed(device: str, domain: str, shared: Shared) -> bool:
    return any(fnmatchcase(device, pattern) for pattern in shared.get(domain, ()))
