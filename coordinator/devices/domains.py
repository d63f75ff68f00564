"""Whose numbers count for which domain. A device says where its data are from, and nobody can check that.

So a domain that `limits.domains` names is for the devices that it lists, and any other one for the device that said
it first. Who says a domain that is not for it is shown beside it, as "street (board-7)": it is seen, and takes
nothing from anybody. A device has one domain for a run, so there are no more domains than devices are enrolled.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

log = logging.getLogger("protofleet.coordinator")

Shared = Mapping[str, Sequence[str]]  # domain -> names or patterns of the devices that may be of it


def assign_domain(device: str, claim: str, known: dict[str, str], shared: Shared) -> None:
    """Into `known`, the domains of the devices that have been there."""
    claim, before = claim or device, known.get(device)
    known[device] = given = domain_of(device, claim, known, shared)
    if given not in (before, claim):
        log.warning(
            "%s says that its data are of the domain %r, which is not for it; it is shown as %r. If it shall share "
            "the domain, add it to limits.domains", device, claim, given,
        )  # fmt: skip


def domain_of(device: str, claim: str, known: Mapping[str, str], shared: Shared) -> str:
    held = known.get(device)
    if listed(device, claim, shared):
        return claim
    if held is not None and (held not in shared or listed(device, held, shared)):
        return held
    taken = claim in shared or any(claim == other for name, other in known.items() if name != device)
    if taken or claim.endswith(")"):  # or it could be said in advance of another
        return f"{claim} ({device})"
    return claim


def listed(device: str, domain: str, shared: Shared) -> bool:
    return any(fnmatchcase(device, pattern) for pattern in shared.get(domain, ()))
