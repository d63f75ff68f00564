"""Conduct one attempt of secure aggregation as a generator.

The generator yields a SumQuestion for each step and receives the answers by device. The answers are read one after
another, so they may read their arrays from the disk. It returns the SecureSum, or
raises AttemptEndedError. It draws nothing: with the same terms and answers, it asks the same questions again. So a
coordinator that restarts can repeat the attempt from stored answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from protofleet.coordinator.secagg.sum import SecretRecovery
from protofleet.protocol.secagg.cohorts import may_follow
from protofleet.protocol.secagg.control_arrays import (
    ByteArrays,
    Part,
    SumStep,
    array_name,
    as_array,
    bytes_in,
    in_order,
    pack_names,
    pack_signatures,
    rows_in,
    unpack_names,
)
from protofleet.protocol.secagg.directory import Directory
from protofleet.protocol.secagg.evidence import SumEvidence
from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.secagg.field import Words
from protofleet.protocol.secagg.packing import check_packed
from protofleet.protocol.secagg.roster import Roster, names_with_repeated_keys, read_keys, roster_of
from protofleet.protocol.secagg.sealing import SEALED_PAIR
from protofleet.protocol.secagg.shares import NO_SHARE, SHARE, share_value
from protofleet.protocol.secagg.signing import verify
from protofleet.protocol.secagg.terms import Terms
from protofleet.protocol.secagg.total import unmasked_sum


class AttemptEndedError(Exception):
    """The error for an attempt that gives no sum; `suspects` are devices that may have caused it.

    If `spent` is true, only a later round can have a sum. For example, devices that have helped to unmask a sum join
    no other attempt of this round and stage.
    """

    def __init__(self, step: SumStep, why: SecaggFault, detail: str, suspects: Collection[str] = ()) -> None:
        super().__init__(detail)
        self.step, self.why, self.detail, self.suspects = step, why, detail, tuple(sorted(suspects))
        self.spent = step is SumStep.UNMASK


@dataclass(frozen=True)
class SumQuestion:
    """One step of an attempt: the devices to ask, the arrays for all of them, and the arrays for each of them."""

    step: SumStep
    devices: tuple[str, ...]
    enough: int  # with fewer answers the attempt ends
    verify: Callable[[str, ByteArrays], None] = field(repr=False)
    shared: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)
    personal: Mapping[str, Mapping[str, NDArray[np.uint8]]] = field(default_factory=dict)

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


class StoredVectors(Mapping[str, bytes]):
    """The masked vectors of a sum, each read from the answers when it is used.

    If the answers read their arrays from the disk, only one vector is in memory.
    """

    def __init__(self, names: Sequence[str], answers: Answers, vector: str) -> None:
        self._names, self._answers, self._vector = tuple(names), answers, vector

    def __getitem__(self, name: str) -> bytes:
        if name not in self._names:
            raise KeyError(name)
        return bytes_in(self._answers[name], self._vector)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


Answers: TypeAlias = Mapping[str, ByteArrays]
SumConduct: TypeAlias = Generator[SumQuestion, Answers, SecureSum]


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
    keys = yield from _answers(_ask_keys(terms, directory, devices))
    roster = _roster(terms, directory, keys)
    sealed = yield from _answers(_ask_shares(roster, directory, records))
    first = tuple(in_order(roster, sealed))
    masked = yield from _answers(_ask_masked(roster, first, sealed, vector))
    survivors = tuple(in_order(roster, masked))
    _check_masked(roster, first, masked, previous)
    agreed = yield from _answers(_ask_agree(roster, first, survivors))
    released = yield from _answers(_ask_unmask(roster, first, agreed))
    return _sum(roster, first, masked, released, vector)


def _answers(question: SumQuestion) -> Generator[SumQuestion, Answers, Answers]:
    """Return the answers that can be used, or raise AttemptEndedError if there are too few."""
    answers = yield question
    found = {
        name: answers[name]
        for name in question.devices
        if name in answers and question.check(name, answers[name]) is None
    }
    if len(found) < question.enough:
        missing = set(question.devices) - set(found)
        raise AttemptEndedError(
            question.step,
            SecaggFault.TOO_FEW,
            f"{len(found)} of {len(question.devices)} devices gave a valid answer to the step "
            f"{question.step.value!r}, but {question.enough} are needed; {', '.join(sorted(missing))} did not",
        )
    return found


def _ask_keys(terms: Terms, directory: Directory, devices: Collection[str]) -> SumQuestion:
    name = array_name(terms.stage, "keys")

    def check(device: str, answer: ByteArrays) -> None:
        read_keys(device, bytes_in(answer, name)).verify(terms, directory.key(device))

    return SumQuestion(SumStep.KEYS, tuple(sorted(devices)), terms.least, check)


def _roster(terms: Terms, directory: Directory, keys: Answers) -> Roster:
    """Return the roster without the devices that sent the same key as another device."""
    name = array_name(terms.stage, "keys")
    entries = [read_keys(device, bytes_in(answer, name)) for device, answer in keys.items()]
    repeated = names_with_repeated_keys(entries)
    roster = roster_of(terms, (entry for entry in entries if entry.name not in repeated), directory)
    try:
        roster.verify()
    except SecaggError as error:
        raise AttemptEndedError(SumStep.KEYS, error.why, error.detail, repeated) from None
    return roster


def _ask_shares(roster: Roster, directory: Directory, records: bytes) -> SumQuestion:
    shared: dict[Part, bytes] = {"roster": roster.encode(directory)}
    if records:
        shared["records"] = records

    def check(device: str, answer: ByteArrays) -> None:
        _sealed_rows(roster, device, answer)

    return SumQuestion(SumStep.SHARES, roster.names, roster.enough, check, _arrays(roster, shared))


def _sealed_rows(roster: Roster, device: str, answer: ByteArrays) -> dict[str, bytes]:
    """Return the sealed shares from a device for each other device."""
    others = [name for name in roster.names if name != device]
    data = _part(roster, answer, "shares")
    return dict(zip(others, rows_in(data, len(others), SEALED_PAIR, "shares"), strict=True))


def _ask_masked(roster: Roster, first: Sequence[str], sealed: Answers, vector: str) -> SumQuestion:
    rows = {name: _sealed_rows(roster, name, sealed[name]) for name in first}
    personal = {
        name: _arrays(roster, {"shares": b"".join(rows[other][name] for other in first if other != name)})
        for name in first
    }
    bitmap, terms = pack_names(roster, first), roster.terms

    def check(device: str, answer: ByteArrays) -> None:
        data = bytes_in(answer, vector)
        check_packed(data, terms.length, terms.field.bits)
        signature, digest = _part(roster, answer, "signature"), hashlib.sha256(data).digest()
        verify(roster.identity(device), device, signature, "masked", roster.hash, bitmap, digest)
        opened = unpack_names(roster, _part(roster, answer, "opened"))
        if not {device} <= set(opened) <= set(first):
            raise SecaggError(SecaggFault.WRONG_SET, "shares of devices that did not send any")

    shared = _arrays(roster, {"first": bitmap})
    return SumQuestion(SumStep.MASKED, tuple(first), roster.enough, check, shared, personal)


def _check_masked(roster: Roster, first: Sequence[str], masked: Answers, previous: Collection[str]) -> None:
    """End the attempt before anything is unmasked, if its sum could not be unmasked or must not be."""
    opened = [set(unpack_names(roster, _part(roster, answer, "opened"))) for answer in masked.values()]
    holders = {name: sum(name in names for names in opened) for name in first}
    if dealers := [name for name in first if holders[name] < roster.threshold]:
        raise AttemptEndedError(
            SumStep.MASKED,
            SecaggFault.BAD_SHARES,
            f"the shares of {', '.join(dealers)} could be opened by fewer than {roster.threshold} devices",
            dealers,
        )
    if not may_follow(previous, masked, roster.terms.apart):
        different = ", ".join(sorted(set(previous) ^ set(masked)))
        raise AttemptEndedError(
            SumStep.MASKED,
            SecaggFault.CLOSE_COHORT,
            f"the devices of this sum and of the last sum differ only by {different}; they must be the same or "
            f"differ by at least {roster.terms.apart}",
        )


def _ask_agree(roster: Roster, first: Sequence[str], survivors: Sequence[str]) -> SumQuestion:
    parts = roster.hash, pack_names(roster, first), pack_names(roster, survivors)

    def check(device: str, answer: ByteArrays) -> None:
        signature = _part(roster, answer, "signature")
        verify(roster.identity(device), device, signature, "agree", *parts)

    shared = _arrays(roster, {"survivors": parts[2]})
    return SumQuestion(SumStep.AGREE, tuple(survivors), roster.threshold, check, shared)


def _ask_unmask(roster: Roster, first: Sequence[str], agreed: Answers) -> SumQuestion:
    signatures = {name: _part(roster, answer, "signature") for name, answer in agreed.items()}

    def check(device: str, answer: ByteArrays) -> None:
        for share in rows_in(_part(roster, answer, "released"), len(first), SHARE, "released"):
            if share != NO_SHARE:
                share_value(share)

    shared = _arrays(roster, {"signatures": pack_signatures(roster, signatures)})
    return SumQuestion(SumStep.UNMASK, tuple(in_order(roster, agreed)), roster.threshold, check, shared)


def _sum(roster: Roster, first: Sequence[str], masked: Answers, released: Answers, vector: str) -> SecureSum:
    recovery, survivors = SecretRecovery(roster), tuple(in_order(roster, masked))
    shares = {name: _part(roster, answer, "released") for name, answer in released.items()}
    try:
        secrets = recovery.secrets(first, survivors, shares)
        vectors = StoredVectors(survivors, masked, vector)
        words = unmasked_sum(roster, first, vectors, secrets)
        _check_range(roster, survivors, words)
    except SecaggError as error:
        raise AttemptEndedError(SumStep.UNMASK, error.why, error.detail, recovery.suspects) from None
    signatures = {name: _part(roster, masked[name], "signature") for name in survivors}
    evidence = SumEvidence(vectors, signatures, secrets)
    return SecureSum(words, survivors, roster, evidence, recovery.wrong)


def _check_range(roster: Roster, survivors: Sequence[str], words: Words) -> None:
    """Raise SecaggError if the sum has a number that honest devices cannot cause."""
    field = roster.terms.field
    most = len(survivors) * field.steps
    if outside := int((np.abs(field.signed(words)) > most).sum()):
        raise SecaggError(
            SecaggFault.OUT_OF_RANGE,
            f"{outside} of {len(words)} numbers of the sum are larger than {len(survivors)} times the limit "
            f"{field.limit:g}; a device has sent wrong bytes, and the masks hide which one",
        )


def _part(roster: Roster, arrays: ByteArrays, part: Part) -> bytes:
    return bytes_in(arrays, array_name(roster.terms.stage, part))


def _arrays(roster: Roster, parts: Mapping[Part, bytes]) -> dict[str, NDArray[np.uint8]]:
    stage = roster.terms.stage
    return {array_name(stage, part): as_array(data) for part, data in parts.items()}
