"""Define the types of command-line arguments: numbers with the same bounds as in settings."""

from __future__ import annotations

import argparse
import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, get_args

from protofleet.protocol.settings.bounds import (
    Block,
    Channels,
    OptionalPort,
    Pixels,
    Port,
    PositiveShare,
    PublicBatch,
    PublicSamples,
    Rounds,
    Seed,
    Within,
)
from protofleet.protocol.settings.size import FORM, bytes_in

Subparsers = Any  # argparse keeps the type of its sub-parsers private.

EXPERIMENTS: Final = "experiments"
# A bound of this size is not shown in error messages, because no real argument exceeds it.
VAST: Final = 1 << 53
MAX_DAYS: Final = 36_500.0  # A limit in days, because a certificate cannot have a date after the year 9999.


@dataclass(frozen=True)
class BoundedNumber:
    """The type of an argument, for example `type=BoundedNumber(int, Within(1, 10))`."""

    kind: type[int] | type[float]
    bound: Within
    hint: str = ""

    def __call__(self, text: str) -> float:
        expected = {int: "a whole number", float: "a number"}[self.kind]
        bound = f", {self.bound}"
        try:
            value = self.kind(text)
            if value in self.bound:
                return value
        except (ValueError, OverflowError):
            # The text is not a number. The message leaves out bounds as large as VAST, which would not help the user.
            if self.bound.least <= -VAST and self.bound.most >= VAST:
                bound = ""
        raise argparse.ArgumentTypeError(f"it is {text[:99]!r}, it must be {expected}{bound}{self.hint}")


def size_in_bytes(text: str) -> float:
    """Return a size such as `200 MB` in bytes."""
    if (size := bytes_in(text)) is None:
        raise argparse.ArgumentTypeError(f"it is {text[:99]!r}, it must be {FORM}")
    return size


def as_in_settings(hint: Any) -> BoundedNumber:
    """Return the argument type for a type of protofleet.protocol.settings.bounds, such as Seed."""
    return BoundedNumber(*get_args(hint))


DAYS: Final = BoundedNumber(float, Within(0, MAX_DAYS, above=True))
DUE: Final = BoundedNumber(float, Within(0, MAX_DAYS))
YEARS: Final = BoundedNumber(float, Within(0, 50, above=True))
HOURS: Final = BoundedNumber(float, Within(0, 720, above=True))
SIDE: Final = as_in_settings(Pixels)
LAYER: Final = as_in_settings(Block)
CHANNELS: Final = as_in_settings(Channels)
SHARE: Final = as_in_settings(PositiveShare)
MOST_DEVICES: Final = 10_000
DEVICES: Final = BoundedNumber(int, Within(0, MOST_DEVICES))
TASKS: Final = BoundedNumber(int, Within(1, MOST_DEVICES))
PRIORITY: Final = BoundedNumber(int, Within(-1000, 1000))
EPOCH: Final = BoundedNumber(int, Within(1, VAST))  # An epoch is a Unix time in seconds.
ROUND: Final = as_in_settings(Rounds)
REVISION: Final = BoundedNumber(int, Within(0, VAST))
SEED: Final = as_in_settings(Seed)
# The option --seeds takes all following arguments, so a file name after it would be read as a seed.
SEEDS: Final = replace(SEED, hint="; name the file before --seeds")
PUBLIC_SAMPLES: Final = as_in_settings(PublicSamples)
PUBLIC_BATCH: Final = as_in_settings(PublicBatch)
PACK: Final = BoundedNumber(int, Within(1, 10_000))  # Trials of a task of an engine.
WORKERS: Final = BoundedNumber(int, Within(1, 1024))  # Processes of a virtual run.
AT_ONCE: Final = BoundedNumber(int, Within(0, 100_000))
TASK_INDEX: Final = BoundedNumber(int, Within(0, 100_000))
PORT: Final = as_in_settings(Port)
OPTIONAL_PORT: Final = as_in_settings(OptionalPort)


def experiment_file(text: str) -> Path:
    """Return the path of an experiment's file.

    If `experiments/demo.toml` does not exist in the working directory, return the file of this name in
    protofleet.
    """
    path = Path(text)
    ours = Path(*path.parts[1:])
    if path.parts[:1] == (EXPERIMENTS,) and not path.exists():
        spec = importlib.util.find_spec(f"protofleet.{EXPERIMENTS}")
        for folder in (spec and spec.submodule_search_locations) or ():
            if (found := Path(folder) / ours).is_file():
                return found
    return path


def broker_changes(text: str) -> tuple[str, ...]:
    """Convert HOST or HOST:PORT to assignments of settings; an IPv6 address is in brackets."""
    host, separator, port = text.rpartition(":")
    if not separator or text.endswith("]"):
        return (f"broker.host={text.strip('[]')}",)
    return (f"broker.host={host.strip('[]')}", f"broker.port={PORT(port)}")


def share_of_devices(text: str) -> tuple[int, int]:
    """Convert I/N to two numbers; I is the number of a part, from 0, of N parts."""
    index, _, count = text.partition("/")
    if index.isdecimal() and count.isdecimal() and 0 <= int(index) < int(count) <= MOST_DEVICES:
        return int(index), int(count)
    raise argparse.ArgumentTypeError(
        f"it is {text[:99]!r}, it must be I/N, such as 0/4: part I, from 0, of N parts, from 1 to {MOST_DEVICES}"
    )
