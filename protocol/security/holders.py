"""Describe who holds a name: a record, by its serial and its keys, or bare keys.

A renewed record is made out to the same keys. So messages that these keys have signed before can be repeated
under the new record. This ends only when the keys change.
"""

from __future__ import annotations

from typing import Final

KEYS: Final = 32  # hexadecimal digits of a key in a holder


def holder_of(serial: int, sign: bytes) -> str:
    keys = sign.hex()[:KEYS]
    return f"{serial}:{keys}" if serial else keys


def same_record(one: str, other: str) -> bool:
    """Return whether two holders are of the same record.

    Earlier versions have noted a record without its keys.
    """
    (first, keys), (second, others) = _parts(one), _parts(other)
    return first == second and (keys == others or not keys or not others)


def other_keys(one: str, other: str) -> bool:
    """Return whether two holders have different keys.

    If the keys of one holder were not noted, they may be the same, and the result is False.
    """
    (_, keys), (_, others) = _parts(one), _parts(other)
    return bool(keys and others) and keys != others


def _parts(holder: str) -> tuple[str, str]:
    serial, _, keys = holder.rpartition(":")
    return (serial, keys) if serial or len(keys) == KEYS else (keys, "")
