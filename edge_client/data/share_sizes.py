"""How many images each client would have, from labels alone: what cannot work is seen before anything starts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.settings import MIN_TRAINING_SAMPLES, DataSettings
from protofleet.edge_client.data.shard import Shards


@dataclass(frozen=True, slots=True)
class ShareSize:
    """Of one client."""

    train: int
    validation: int
    test: int

    @property
    def problem(self) -> str:
        if self.train < MIN_TRAINING_SAMPLES:
            samples = "sample" if self.train == 1 else "samples"
            return f"{self.train} training {samples}, and it takes {MIN_TRAINING_SAMPLES}"
        return "" if self.test else "no test sample"


def share_sizes(settings: DataSettings, shards: Shards) -> list[ShareSize]:
    """Of all clients that divide this domain, as `Shards.load` makes them; DataError where it cannot be divided."""
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
    """What is wrong with so many parts, or "". DataError where there is nothing to divide."""
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
    """The largest number of parts that was found to work, below that of the settings; 0: none."""
    works, fails = 0, settings.parts
    while fails - works > 1:
        middle = (works + fails) // 2
        fewer = replace(settings, part=0, parts=middle)
        works, fails = (middle, fails) if not problem_of_division(fewer, shards) else (works, middle)
    return works
