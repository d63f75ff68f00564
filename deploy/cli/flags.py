"""The numbers of command lines, bounded as those of settings are; and a mistake is one line."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, Final, NoReturn, get_args

from protofleet.protocol.settings.bounds import OptionalPort, Part, Port, Rounds, Seed, Within
from protofleet.protocol.settings.reader import SettingsError

MOST_DAYS: Final = 36_500.0  # a certificate's dates end with the year 9999


class Parser(argparse.ArgumentParser):
    """Sub-commands are of the same class."""

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message} (see {self.prog} --help)")


@dataclass(frozen=True)
class Number:
    """An argument's type: `type=Number(int, Within(1, 10))`."""

    kind: type[int] | type[float]
    bound: Within

    def __call__(self, text: str) -> float:
        words = {int: "a whole number", float: "a number"}[self.kind]
        try:
            value = self.kind(text)
            if value in self.bound:
                return value
        except (ValueError, OverflowError):
            pass
        raise argparse.ArgumentTypeError(f"it is {text[:99]!r}, it must be {words}, {self.bound}")


def as_in_settings(hint: Any) -> Number:
    """Of a type of protofleet.protocol.settings.bounds, as `Annotated[int, Within(1, 10)]`."""
    return Number(*get_args(hint))


DAYS: Final = Number(float, Within(0, MOST_DAYS, above=True))
DUE: Final = Number(float, Within(0, MOST_DAYS))
YEARS: Final = Number(float, Within(0, 50, above=True))
HOURS: Final = Number(float, Within(0, 720, above=True))
SHARE: Final = as_in_settings(Part)
DEVICES: Final = Number(int, Within(0, 10_000))
ROUND: Final = as_in_settings(Rounds)
SEED: Final = as_in_settings(Seed)
PORT: Final = as_in_settings(Port)
OPTIONAL_PORT: Final = as_in_settings(OptionalPort)
