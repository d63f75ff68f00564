"""Read the values that our scripts print on a host, each as `key=value` and a NUL byte.

A value cannot contain a NUL byte, so a user of the host cannot add another key inside a value. A value of the wrong
type is an error for this host only.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import fields
from typing import Any, Final, TypeVar

from protofleet.protocol.settings.reader import SettingsError, decode
from protofleet.protocol.wire.printable import printable

T = TypeVar("T")
NUMBER: Final = re.compile(r"[0-9]{1,15}")
# Unix time of the end of the year 9999, the last year of Python's dates.
LATEST: Final = 253_402_300_799
LONGEST_TEXT: Final = 4096  # Largest number of characters in a text.
# If a value is refused, the error message shows at most this number of its characters.
LONGEST_SHOWN: Final = 80


class Fields:
    """The output of one script. Control characters are escaped, so that it is safe to print a text."""

    def __init__(self, output: str) -> None:
        self._values: dict[str, list[str]] = defaultdict(list)
        *records, self.rest = output.split("\0")
        for record in records:
            key, equals, value = record.partition("=")
            if equals:
                self._values[key].append(value)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def raw(self, key: str) -> str:
        """Return the last value of the key unchanged, for a parser that checks the whole value."""
        return self._values[key][-1] if key in self else ""

    def text(self, key: str) -> str:
        return self._text(key, self.raw(key))

    def texts(self, key: str) -> list[str]:
        return [self._text(key, value) for value in (self._values[key] if key in self else ())]

    def number(self, key: str, most: int = 10**15) -> int:
        """Return a whole number; 0 if the value is empty or missing."""
        return self._number(key, most) if self.raw(key).strip() else 0

    def required_number(self, key: str, most: int = 10**15) -> int:
        if key not in self:
            raise SettingsError(f"the output has no value of {key}")
        return self._number(key, most)

    def yes_or_no(self, key: str) -> bool | None:
        return {"yes": True, "no": False}.get(self.raw(key).strip())

    def _text(self, key: str, value: str) -> str:
        if len(value) > LONGEST_TEXT:
            raise SettingsError(
                f"the value of {key} has {len(value)} characters, but at most {LONGEST_TEXT} are allowed"
            )
        return printable(value.strip())

    def _number(self, key: str, most: int) -> int:
        text = self.raw(key).strip()
        if not NUMBER.fullmatch(text) or int(text) > most:
            shown = printable(text)[:LONGEST_SHOWN]
            raise SettingsError(
                f"the value of {key} is '{shown}', which is not a whole number from 0 to {most}"
            )
        return int(text)


def read_object(cls: type[T], text: str) -> T | None:
    """Read a dataclass from a JSON object; return None if the text is wrong. Unknown keys are ignored."""
    known = {field.name for field in fields(cls)}  # type: ignore[arg-type]  # only dataclasses are given
    try:
        table = json.loads(text, parse_int=_bounded)
        return decode(cls, {key: _safe(table[key]) for key in table.keys() & known})
    # An AttributeError means that the text is not a JSON object.
    except (ValueError, AttributeError, RecursionError):
        return None


def _bounded(digits: str) -> int:
    if not NUMBER.fullmatch(digits) or int(digits) > LATEST:
        raise ValueError(f"{digits[:LONGEST_SHOWN]} is not a whole number from 0 to {LATEST}")
    return int(digits)


def _safe(value: Any) -> Any:
    return printable(value)[:LONGEST_TEXT] if isinstance(value, str) else value
