"""List the devices whose signatures count in an attempt.

A device does not know the keys of the other devices. So the coordinator sends their records, which the root has
signed. The device checks each record against the root, its own clock and its list of revocations. The coordinator
cannot add a device of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.secagg.field import MOST_DEVICES
from protofleet.protocol.secagg.masks import KEY
from protofleet.protocol.security.records import MAX_RECORD
from protofleet.protocol.security.statements import StatementError
from protofleet.protocol.security.trust import Trust
from protofleet.protocol.wire.names import valid_device

LENGTH: Final = 2  # bytes of the length of a record


@dataclass(frozen=True)
class Directory:
    """The Ed25519 keys of the devices that may be in a roster, by name.

    Raise SecaggError if two names have one key, because the key would count twice.
    """

    keys: Mapping[str, bytes]

    def __post_init__(self) -> None:
        if len(self.keys) > MOST_DEVICES:
            raise SecaggError(
                SecaggFault.TOO_MANY, f"{len(self.keys)} devices, but the limit is {MOST_DEVICES}"
            )
        for name, key in self.keys.items():
            try:
                valid_device(name)
            except ValueError as error:
                raise SecaggError(SecaggFault.NOT_ENROLLED, str(error)) from None
            if len(key) != KEY:
                raise SecaggError(
                    SecaggFault.BAD_KEYS, f"{name}'s key has {len(key)} bytes, it must have {KEY}"
                )
        if len(set(self.keys.values())) < len(self.keys):
            raise SecaggError(SecaggFault.BAD_KEYS, "two names have the same key to sign with")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names in their order; a number in a roster is a place in this order."""
        return tuple(sorted(self.keys))

    def number(self, name: str) -> int:
        self.key(name)
        return self.names.index(name)

    def key(self, name: str) -> bytes:
        if name not in self.keys:
            raise SecaggError(SecaggFault.NOT_ENROLLED, f"there is no record for {name}")
        return self.keys[name]


def admitted(records: Sequence[bytes], trust: Trust, now: float) -> Directory:
    """Return the directory of records that the root has signed and that are valid now.

    Raise SecaggError with the reason if one record is not valid.
    """
    keys: dict[str, bytes] = {}
    for data in records:
        try:
            record = trust.admit(data, now, role="device")
        except StatementError as error:
            raise SecaggError(SecaggFault.NOT_ENROLLED, error.detail) from None
        if record.name in keys:
            raise SecaggError(SecaggFault.NOT_ENROLLED, f"there are two records for {record.name}")
        keys[record.name] = record.sign
    return Directory(keys)


def pack_records(records: Sequence[bytes]) -> bytes:
    """Return the records, each preceded by its length as a u16."""
    return b"".join(struct.pack("<H", len(record)) + record for record in records)


def unpack_records(data: bytes) -> list[bytes]:
    """Return the records in these bytes, or raise SecaggError; the records themselves are not checked."""
    found: list[bytes] = []
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + LENGTH], "little")
        record = data[at + LENGTH : at + LENGTH + length]
        if not 0 < length <= MAX_RECORD or len(record) < length or len(found) == MOST_DEVICES:
            raise SecaggError(
                SecaggFault.MALFORMED,
                f"record {len(found)} has {length} bytes; there may be {MOST_DEVICES} records of 1 to {MAX_RECORD} "
                "bytes",
            )
        found.append(record)
        at += LENGTH + length
    return found
