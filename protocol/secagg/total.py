"""Compute the sum of masked vectors when the secrets of their masks are known."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.secagg.field import Words
from protofleet.protocol.secagg.masks import add_pair_mask, digest, pair_key, public_key, self_mask
from protofleet.protocol.secagg.packing import unpack
from protofleet.protocol.secagg.roster import Roster


@dataclass(frozen=True)
class SumSecrets:
    """The secrets that remove the masks from a sum."""

    seeds: Mapping[str, bytes]  # of each device whose vector is in the sum
    lost: Mapping[str, bytes]  # private masking key of each device that shared keys but sent no vector


def commitment_of(seed: bytes) -> bytes:
    """Return the hash that a device sends in its keys, before it uses the seed."""
    return digest("seed", seed)


def is_seed_of(roster: Roster, name: str, secret: bytes) -> bool:
    return commitment_of(secret) == roster.entry(name).commitment


def is_masking_key_of(roster: Roster, name: str, secret: bytes) -> bool:
    return public_key(secret) == roster.entry(name).masking


def unmasked_sum(
    roster: Roster, first: Collection[str], vectors: Mapping[str, bytes], secrets: SumSecrets
) -> Words:
    """Return the sum of the vectors modulo 2^bits.

    `first` are the devices that shared keys; the devices of `vectors` are some of them. Raise SecaggError if a
    secret is missing or does not match the roster, or if a vector has a wrong length.
    """
    _check_secrets(roster, first, vectors, secrets)
    terms, field = roster.terms, roster.terms.field
    total: Words = np.zeros(terms.length, np.uint32)
    for name in sorted(vectors):
        total = field.add(total, unpack(vectors[name], terms.length, field.bits))
        own = self_mask(secrets.seeds[name], roster.hash, terms.length, field.bits)
        total = field.subtract(total, own)
        for lost in sorted(secrets.lost):
            key = pair_key(secrets.lost[lost], roster.entry(name).masking, roster.hash, name, lost)
            total = add_pair_mask(field, total, key, adds=name > lost)  # the opposite of what `name` did
    return total


def _check_secrets(
    roster: Roster, first: Collection[str], vectors: Collection[str], secrets: SumSecrets
) -> None:
    if set(secrets.seeds) != set(vectors) or set(secrets.lost) != set(first) - set(vectors):
        raise SecaggError(SecaggFault.WRONG_SET, "the secrets are not those of the devices of this sum")
    if not set(vectors) <= set(first):
        raise SecaggError(SecaggFault.WRONG_SET, "a vector of a device that did not share its keys")
    for name, seed in secrets.seeds.items():
        if not is_seed_of(roster, name, seed):
            raise SecaggError(
                SecaggFault.BAD_SHARES, f"the seed of {name} is not the one that it committed to"
            )
    for name, key in secrets.lost.items():
        if not is_masking_key_of(roster, name, key):
            raise SecaggError(SecaggFault.BAD_SHARES, f"the key of {name} is not the one in the roster")
