"""Conduct one attempt of secure aggregation as a generator.

The generator yields a SumQuestion for each step and receives the answers by device. It returns the SecureSum, or
raises AttemptEndedError. It draws nothing: with the same terms and answers, it asks the same questions again. So a
coordinator that restarts can repeat the attempt from stored answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from protofleet.protocol.secagg.control_arrays import ByteArrays, SumStep
from protofleet.protocol.secagg.directory import Directory
from protofleet.protocol.secagg.evidence import SumEvidence
from protofleet.protocol.secagg.faults import SecaggError
from protofleet.protocol.secagg.field import Words
from protofleet.protocol.secagg.roster import Roster
from protofleet.protocol.secagg.terms import Terms


class AttemptEndedError(Exception):
    """The error for an attempt that gives no sum. The reason is the same enum as for a refused step."""


@dataclass(frozen=True)
class SumQuestion:
    """One step of an attempt: the devices to ask, the arrays for all of them, and the arrays for each of them."""

    step: SumStep
    devices: tuple[str, ...]
    enough: int  # with fewer answers the attempt ends
    shared: Mapping[str, NDArray[np.uint8]]
    personal: Mapping[str, Mapping[str, NDArray[np.uint8]]]
    verify: Callable[[str, ByteArrays], None] = field(repr=False)

    def check(self, device: str, answer: ByteArrays) -> SecaggError | None:
        """Return the reason to refuse an answer, or None. A device whose answer is refused counts as missing."""
        try:
            self.verify(device, answer)
        except SecaggError as error:
            return error
        return None


@dataclass(frozen=True)
class SecureSum:
    """The sum of an attempt."""

    words: Words  # sum modulo 2^bits; `Field.decode` gives the numbers
    survivors: tuple[str, ...]  # devices whose vectors are in the sum, in the order of names
    roster: Roster
    evidence: SumEvidence
    wrong_shares: Mapping[str, frozenset[str]]  # holder -> devices of whose secrets it sent a wrong share


SumConduct: TypeAlias = Generator[SumQuestion, Mapping[str, ByteArrays], SecureSum]


def conduct(
    terms: Terms,
    directory: Directory,
    devices: Collection[str],
    vector: str,
    records: bytes = b"",
    previous: Collection[str] = (),
) -> SumConduct:
    """Conduct an attempt.

    `vector` is the name of the array with the masked vector. `records` are sent with the roster; they may be empty
    if the devices know the directory. `previous` are the devices of the last sum of this run and stage, for
    `terms.apart`.
    """
    raise NotImplementedError
