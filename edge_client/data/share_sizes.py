"""The number of samples of each client, computed from labels alone.

With these numbers, an impossible division is refused before the run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.settings import MIN_TRAINING_SAMPLES, DataSettings
from protofleet.edge_client.data.shard import Shards


@dataclass(frozen=True, slots=True)
class ShareSize:
    """The number of training, validation and test samples of one client."""

    train: int
    validation: int
    test: int

    @property
    def problem(self) -> str:
        if self.train < MIN_TRAINING_SAMPLES:
            samples = "sample" if self.train == 1 else "samples"
            return (
                f"{self.train} training {samples}, but the smallest allowed number is {MIN_TRAINING_SAMPLES}"
            )
        return "" if self.test else "no test sample"


def share_sizes(settings: DataSettings, shards: Shards) -> list[ShareSize]:
    """Return the sizes of the shares that `Shards.load` makes for all clients of this domain.

    Raise DataError if the domain cannot be divided.
    """
    return [_size(settings, train, test) for train, test in shards.share_lengths(settings)]


def _size(s: DataSettings, train: int, test: int) -> ShareSize:
    if s.own_test is not None:
        test = round(s.own_test * train)
        train -= test
    if s.fraction is not None:
        train = min(train, round(s.fraction * s.parts * train))
    train = train if s.samples is None else min(train, s.samples)
    validation = round(s.validation * train)
    return ShareSize(
        train - validation, validation, test if s.test_samples is None else min(test, s.test_samples)
    )


def problem_of_division(settings: DataSettings, shards: Shards) -> str:
    """Return the reason why the domain cannot be divided into as many parts as the settings ask for, or "".

    Raise DataError if the domain cannot be read.
    """
    shards.domain(settings)
    try:
        sizes = share_sizes(settings, shards)
    except DataError as error:
        return str(error)
    for part, size in enumerate(sizes):
        if size.problem:
            return f"client {part + 1} of {settings.parts} would have {size.problem}"
    return ""


def most_parts(settings: DataSettings, shards: Shards) -> int:
    """Search for the largest possible number of parts below the setting `parts`; return 0 if there is none."""
    works, fails = 0, settings.parts
    while fails - works > 1:
        middle = (works + fails) // 2
        fewer = replace(settings, part=0, parts=middle)
        works, fails = (middle, fails) if not problem_of_division(fewer, shards) else (works, middle)
    return works
