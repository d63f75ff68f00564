"""The functions that read the columns of devices in the spool's index.

They refuse damaged rows, because a damaged row must not produce a device that does not exist.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from protofleet.methods.contract.base import Member
from protofleet.protocol.storage.store import DamagedError


@dataclass(frozen=True, slots=True)
class SavedDevice:
    """The data about a device in a checkpoint."""

    member: Member
    domain: str
    present: bool


def names_in(text: object) -> list[str]:
    """Read a column that holds a list of names, or raise DamagedError."""
    found = _json(text)
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise DamagedError("a column that must hold a list of device names has another content")
    return found


def members_in(text: object) -> dict[str, Member]:
    """Read the members of a checkpoint, or raise DamagedError."""
    return {device: saved.member for device, saved in saved_devices(text).items()}


def saved_devices(text: object) -> dict[str, SavedDevice]:
    """Read the devices of a checkpoint, or raise DamagedError.

    In format 0 a row lacks two values: the domain of the device, and whether the device was present.
    """
    found = {}
    for row in _list(_json(text)):
        match row:
            case [str(device), int(examples), [*counts], *rest] if all(isinstance(n, int) for n in counts):
                domain, present = rest if len(rest) == 2 else ("", False)
                numbers = tuple(int(n) for n in counts)  # type: ignore[call-overload]
                member = Member(device, examples, numbers, str(domain))
                found[device] = SavedDevice(member, str(domain), bool(present))
            case _:
                raise DamagedError("a row of the roster does not describe a device")
    return found


def _list(found: object) -> list[object]:
    if not isinstance(found, list):
        raise DamagedError("the roster is not a list")
    return found


def _json(text: object) -> object:
    try:
        return json.loads(text)  # type: ignore[arg-type]  # a column may hold anything
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedError(f"{type(error).__name__}: {str(error)[:80]}") from None
