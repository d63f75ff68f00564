"""Describe the holder of a name: the serial and the signing key of a record, or a key without a record.

A renewed record has the same keys as before. So a message that was signed before the renewal still has a valid
signature after the renewal, and another party could repeat the message. Only new keys make such messages invalid.
"""

from __future__ import annotations

from typing import Final

KEYS: Final = 32  # number of hexadecimal digits of a key in a holder


def holder_of(serial: int, sign: bytes) -> str:
    keys = sign.hex()[:KEYS]
    return f"{serial}:{keys}" if serial else keys


def serial_of(holder: str) -> int:
    """Return the serial of a holder's record; 0 if the holder has no record, or is not known."""
    serial, _ = _parts(holder)
    return int(serial or 0)


def same_record(one: str, other: str) -> bool:
    """Return whether two holders describe the same record.

    Earlier versions of the software stored only the serial as the holder, without the keys.
    """
    (first, keys), (second, others) = _parts(one), _parts(other)
    return first == second and (keys == others or not keys or not others)


def other_keys(one: str, other: str) -> bool:
    """Return whether two holders have different keys.

    Return False if the keys of one holder are not known.
    """
    (_, keys), (_, others) = _parts(one), _parts(other)
    return bool(keys and others) and keys != others


def _parts(holder: str) -> tuple[str, str]:
    serial, _, keys = holder.rpartition(":")
    return (serial, keys) if serial or len(keys) == KEYS else (keys, "")
