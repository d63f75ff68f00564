"""Who holds a name: a record by its serial and the keys that it is made out to, or bare keys.

A record that is renewed is made out to the same keys, so what they have signed before can be said again under
it. Only other keys end that.
"""

from __future__ import annotations

from typing import Final

KEYS: Final = 32  # hexadecimal digits


def holder_of(serial: int, sign: bytes) -> str:
    keys = sign.hex()[:KEYS]
    return f"{serial}:{keys}" if serial else keys


def same_record(one: str, other: str) -> bool:
    """Versions before this one have noted a record without its keys."""
    (first, keys), (second, others) = _parts(one), _parts(other)
    return first == second and (keys == others or not keys or not others)


def other_keys(one: str, other: str) -> bool:
    """Where the keys of one of them were not noted, they may be the same."""
    (_, keys), (_, others) = _parts(one), _parts(other)
    return bool(keys and others) and keys != others


def _parts(holder: str) -> tuple[str, str]:
    serial, _, keys = holder.rpartition(":")
    return (serial, keys) if serial or len(keys) == KEYS else (keys, "")
