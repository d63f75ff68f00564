"""Check the names of parties, which are used in topics, envelopes, file names and certificates.

The name of the phase of an evaluation, which both sides know, is here too.
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

Role: TypeAlias = Literal["device", "coordinator"]
# The parties that write and read topics. An operator and a standby have no record of a device, so they have no role.
TopicParty: TypeAlias = Literal["device", "coordinator", "operator", "standby"]

EVALUATE: Final = "evaluate"  # the phase in which all present devices only measure, and do not train
EVERYBODY: Final = "*"
COORDINATOR: Final = "coordinator"
# The name under which a coordinator's process connects before it leads. Under the name of the coordinator, it would
# end the connection of the process that leads.
STANDBY: Final = "coordinator.standby"
RESERVED: Final = f"{COORDINATOR}."  # beginning of the names of the coordinator's further certificates
RESERVED_RULE: Final = (
    f"names that begin with {RESERVED!r} are reserved for the coordinator; choose another name"
)
NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
RULE: Final = "1 to 64 of the characters A-Z a-z 0-9 _ . -, and the first must be a letter or a digit"


def valid_name(name: str) -> str:
    """Return the name itself, or raise ValueError.

    A valid name can be used in topics, file names and certificates.
    """
    if re.fullmatch(NAME, name):
        return name
    raise ValueError(f"{name!r} is no name; a name has {RULE}")


def is_reserved(name: str) -> bool:
    """Return whether no new device, operator or broker may have this name."""
    return name.startswith(RESERVED)


def valid_device(name: str) -> str:
    if name == COORDINATOR:
        raise ValueError(f"a device cannot be called {name!r}; that name is the coordinator's")
    return valid_name(name)
