"""Fuzz secure aggregation: terms, control arrays, the checks of answers, and the book of a device."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from protofleet.coordinator.secagg.steps import SumQuestion, conduct
from protofleet.edge_client.secagg.book import AttemptSecrets, Book, read_book
from protofleet.edge_client.secagg.past_attempts import PastAttempts
from protofleet.protocol.secagg.control_arrays import (
    ByteArrays,
    as_array,
    unpack_names,
    unpack_signatures,
)
from protofleet.protocol.secagg.directory import Directory, pack_records, unpack_records
from protofleet.protocol.secagg.packing import unpack
from protofleet.protocol.secagg.roster import Roster, read_roster
from protofleet.protocol.secagg.shares import share_value
from protofleet.protocol.secagg.terms import Terms, read_terms

VECTOR = "weights.masked"
GOLDEN = json.loads((Path(__file__).parents[1] / "protocol" / "golden" / "secagg_1.json").read_text())


def raw(name: str) -> bytes:
    return bytes.fromhex(GOLDEN[name])


@cache
def agreed() -> Terms:
    return read_terms(raw("terms_bytes"))


@cache
def directory() -> Directory:
    return Directory({one["name"]: bytes.fromhex(one["identity_public"]) for one in GOLDEN["devices"]})


@cache
def roster() -> Roster:
    return read_roster(agreed(), raw("roster"), directory())


def terms(data: bytes) -> str:
    return f"{read_terms(data).stage} {read_terms(data).field.bits}"


def book(data: bytes) -> str:
    found = read_book(data)
    assert read_book(found.encode()) == found
    return f"{bool(found.secrets)} {bool(found.roster)} {bool(found.first)}"


READERS: tuple[Callable[[bytes], object], ...] = (
    lambda data: len(read_roster(agreed(), data, directory()).names),
    lambda data: len(unpack_names(roster(), data)),
    lambda data: len(unpack_signatures(roster(), data)),
    lambda data: len(unpack_records(data)),
    lambda data: unpack(data, 5, 20).max() > 9,
    lambda data: share_value(data) % 2,
)


def layout(data: bytes) -> str:
    """Read a control array; the first byte chooses which one."""
    place = data[0] % len(READERS) if data else 0
    return f"{place} {READERS[place](data[1:])}"


@cache
def answered() -> tuple[tuple[SumQuestion, dict[str, dict[str, bytes]]], ...]:
    """Return each question of the attempt of the golden vectors, with the answers to it."""
    names = [one["name"] for one in GOLDEN["devices"]]
    sealed = {name: [one["sealed"] for one in GOLDEN["pairs"] if one["from"] == name] for name in names}
    masked = {one["of"]: one for one in GOLDEN["masked"]}
    said = "control.values."
    replies: list[dict[str, dict[str, str]]] = [
        {one["name"]: {f"{said}keys": one["keys"]} for one in GOLDEN["devices"]},
        {name: {f"{said}shares": "".join(sealed[name])} for name in names},
        {
            name: {
                VECTOR: one["vector"],
                f"{said}signature": one["signature"],
                f"{said}opened": GOLDEN["first"],
            }
            for name, one in masked.items()
        },
        {name: {f"{said}signature": one["agree"]} for name, one in masked.items()},
        {one["of"]: {f"{said}released": one["released"]} for one in GOLDEN["released"]},
    ]
    steps, found = conduct(agreed(), directory(), names, VECTOR), []
    question = next(steps)
    for reply in replies:
        plain = {
            name: {key: bytes.fromhex(text) for key, text in answer.items()} for name, answer in reply.items()
        }
        found.append((question, plain))
        if len(found) < len(replies):
            question = steps.send({name: arrays(answer) for name, answer in plain.items()})
    return tuple(found)


def arrays(answer: dict[str, bytes]) -> ByteArrays:
    return {name: as_array(data) for name, data in answer.items()}


def answer(data: bytes) -> str:
    """Check an answer as the coordinator does; the first byte chooses the step and the changed array."""
    first = data[0] if data else 0
    question, replies = answered()[first % 5]
    good = replies["alice"]
    name = sorted(good)[first // 5 % len(good)]
    problem = question.check("alice", {**arrays(good), name: np.frombuffer(data[1:], np.uint8)})
    return f"{question.step.value} {problem.why.value if problem else ''}"


def term_bytes() -> list[bytes]:
    return [raw("terms_bytes")]


def layouts() -> list[bytes]:
    signature = (0).to_bytes(2, "little") + bytes.fromhex(GOLDEN["masked"][0]["agree"])
    good = [raw("roster"), raw("first"), signature, pack_records([b"ab", b"c"]),
            bytes.fromhex(GOLDEN["masked"][0]["vector"]), bytes.fromhex(GOLDEN["own_pairs"][0])[:33]]  # fmt: skip
    return [bytes([place]) + data for place, data in enumerate(good)]


def answers() -> list[bytes]:
    found = []
    for place, (_, replies) in enumerate(answered()):
        good = replies["alice"]
        found += [bytes([place + 5 * at]) + good[name] for at, name in enumerate(sorted(good))]
    return found


def books() -> list[bytes]:
    """Return the books of a device after the step `keys`, after `shares`, after `masked`, and at the end."""
    one, own = GOLDEN["devices"][0], bytes.fromhex(GOLDEN["own_pairs"][0])
    secret = AttemptSecrets(*(bytes.fromhex(one[use]) for use in ("sealing", "masking", "seed")))
    past = PastAttempts().with_attempt(agreed())
    keys = Book(agreed(), past, bytes.fromhex(one["keys"]), secret)
    sealed = b"".join(
        bytes.fromhex(pair["sealed"]) for pair in GOLDEN["pairs"] if pair["from"] == one["name"]
    )
    dealt = AttemptSecrets(secret.sealing, secret.masking, secret.seed, own)
    shares = Book(agreed(), past, keys.keys, dealt, directory(), raw("roster"), sealed)
    opened = AttemptSecrets(secret.sealing, secret.masking, secret.seed, own, (own,) * 4)
    masked = Book(
        agreed(), past, keys.keys, opened, directory(), raw("roster"), sealed, raw("first"), bytes(32)
    )
    return [one.encode() for one in (keys, shares, masked, masked.ended())]


# The reader and the good inputs of each target, and its share of all inputs.
SUMS: dict[str, tuple[Callable[[bytes], str], Callable[[], list[bytes]], float]] = {
    "secagg_terms": (terms, term_bytes, 0.01),
    "secagg_layout": (layout, layouts, 0.02),
    "secagg_answer": (answer, answers, 0.02),
    "secagg_book": (book, books, 0.02),
}
