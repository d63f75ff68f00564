"""Load the keys of a process and of the parties that it knows.

The keys are part of an enrolment, or they are plain key files that a person has copied.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from protofleet.protocol.security.enrolment import CURRENT, Enrolled, KnownRecords, load_enrolled
from protofleet.protocol.security.keys import Keyring, Keys, load_keyring, load_keys, load_public
from protofleet.protocol.security.operators import KnownOperators, OperatorRecord, load_operator
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.names import COORDINATOR


def of_coordinator(enrolled: str, federation: str, key: str, devices: str) -> tuple[Keys, Keyring]:
    """Return the keys and the keyring of the coordinator.

    The folder `devices` contains <name>.record files if the coordinator is enrolled, otherwise <name>.pub
    files.
    """
    if not enrolled:
        return load_keys(Path(key)), load_keyring(Path(devices))
    own = _own(Path(enrolled), federation, COORDINATOR)
    return _keys(own), KnownRecords(Path(devices), own.trust, follow=Path(enrolled))


def operators_of(enrolled: str, federation: str, devices: str) -> Mapping[str, OperatorRecord]:
    """Return the operators of a coordinator, from the <name>.operator files in the folder `devices`.

    A coordinator that is not enrolled has no operators, because no root can state their grants.
    """
    if not enrolled:
        return {}
    own = _own(Path(enrolled), federation, COORDINATOR)
    return KnownOperators(Path(devices), own.trust, follow=Path(enrolled))


def of_operator(enrolled: str) -> tuple[OperatorRecord, Keys, Keyring]:
    """Return an operator's own statement, its keys, and the keyring with the coordinator."""
    folder = Path(enrolled)
    if not (folder / CURRENT).exists():
        raise SettingsError(f"{folder} holds no enrolment; `protofleet enrol install` creates it there")
    own, trust, keys = load_operator(folder / CURRENT, time.time())
    return own, keys, KnownRecords(folder / CURRENT, trust, role="coordinator", follow=folder)


def of_device(
    enrolled: str, federation: str, name: str, key: str, coordinator_key: str
) -> tuple[Keys, Keyring]:
    if not enrolled:
        return load_keys(Path(key)), {COORDINATOR: load_public(Path(coordinator_key))}
    own, folder = _own(Path(enrolled), federation, name), Path(enrolled)
    return _keys(own), KnownRecords(folder / CURRENT, own.trust, role="coordinator", follow=folder)


def _own(folder: Path, federation: str, name: str) -> Enrolled:
    if not (folder / CURRENT).exists():
        raise SettingsError(f"{folder} holds no enrolment; `protofleet enrol install` creates it there")
    found = load_enrolled(folder / CURRENT, time.time())
    mine = (found.record.federation, found.record.name)
    if mine != (federation, name):
        raise SettingsError(
            f"{folder} holds the enrolment of {mine[1]} in {mine[0]}, but the settings are for {name} in {federation}"
        )
    return found


def _keys(own: Enrolled) -> Keys:
    return Keys(own.identity, own.receive, own.record.serial, own.record.not_before)
