"""Tests that masks come from keys of 32 bytes through HKDF and AES, and never from a small seed."""

import ast
import inspect
from dataclasses import replace

import numpy as np
import pytest

from protofleet.edge_client.secagg import instance
from protofleet.protocol.secagg import masks, shares
from protofleet.protocol.secagg.control_arrays import SumStep
from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.secagg.field import Field
from protofleet.protocol.secagg.masks import mask, pair_key, self_mask, shared_key
from protofleet.protocol.secagg.roster import roster_of
from tests.protocol.secagg import reference
from tests.support.secagg_fleet import VECTOR, Fleet, directory, numbers, terms
from tests.support.small_order import RECEIVE

KEYS = [bytes([value]) * 32 for value in range(1, 6)]


@pytest.mark.parametrize("bits", [8, 13, 24, 32])
def test_a_mask_is_the_key_stream_of_aes_256_in_counter_mode(bits):
    assert mask(KEYS[0], 100, bits).tolist() == reference.mask(KEYS[0], 100, bits)


def test_a_mask_is_uniform_over_all_words():
    for bits, key in ((8, KEYS[0]), (8, KEYS[1])):
        counts = np.bincount(mask(key, 2**16, bits), minlength=256)
        assert ((counts - 256) ** 2 / 256).sum() < 340  # chi-square with 255 degrees; the keys are fixed


def test_half_of_the_bits_of_a_masked_vector_of_zeros_are_ones():
    """The test reads the vector that a device sends, so it covers the sum of all masks of the device."""
    fleet = Fleet(terms(3, length=4096, bits=24), {name: np.zeros(4096) for name in numbers(3)})
    question = fleet.run(until=SumStep.MASKED)
    data = fleet.answers(question)
    ones = [np.unpackbits(answer[VECTOR]).mean() for answer in data.values()]
    spread = 0.5 / np.sqrt(4096 * 24)
    assert all(abs(share - 0.5) < 6 * spread for share in ones)


def test_each_pair_stage_round_and_attempt_has_its_own_key():
    entries = roster_of(terms(3), [], directory()).entries
    agreed = terms(3)
    changed = [
        agreed,
        replace(agreed, stage="presence"),
        replace(agreed, round=4),
        replace(agreed, attempt=bytes(16)),
        replace(agreed, base=bytes(32)),
        replace(agreed, run="autumn"),
        replace(agreed, federation="works"),
        replace(agreed, length=5),
        replace(agreed, field=Field(3, 30.0, 9, 24)),
    ]
    hashes = [roster_of(one, entries, directory()).hash for one in changed]
    publics = [masks.public_key(key) for key in KEYS]
    keys = [
        pair_key(KEYS[one], publics[other], roster, f"d{one}", f"d{other}")
        for roster in hashes
        for one in range(5)
        for other in range(one)
    ]
    assert len(set(keys)) == len(keys) == 90
    assert {len(key) for key in keys} == {32}
    own = {self_mask(KEYS[0], roster, 4, 32).tobytes() for roster in hashes}
    assert len(own) == len(hashes)


def test_two_devices_derive_one_mask_key_and_one_share_key_for_each_direction():
    one, other = KEYS[:2]
    publics = masks.public_key(one), masks.public_key(other)
    assert pair_key(one, publics[1], b"r", "a", "b") == pair_key(other, publics[0], b"r", "b", "a")
    there = shared_key(one, publics[1], "share", b"r", "a", "b")
    assert there == shared_key(other, publics[0], "share", b"r", "a", "b")
    assert there != shared_key(one, publics[1], "share", b"r", "b", "a")
    assert there != pair_key(one, publics[1], b"r", "a", "b")


@pytest.mark.parametrize("weak", RECEIVE)
def test_a_weak_public_key_is_refused(weak):
    with pytest.raises(SecaggError, match="small order") as error:
        pair_key(KEYS[0], weak, b"r", "a", "b")
    assert error.value.why is SecaggFault.BAD_KEYS


@pytest.mark.parametrize("module", [masks, shares, instance])
def test_no_module_of_masks_and_shares_uses_a_generator_with_a_seed(module):
    tree = ast.parse(inspect.getsource(module))
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not names & {"random", "default_rng", "RandomState", "Generator"}
    assert "random" not in imported


def test_the_secrets_of_an_attempt_are_32_bytes_and_differ_between_devices():
    fleet = Fleet(terms(5), numbers(5)).begin()
    found = [
        secret
        for device in fleet.instances.values()
        for secret in (
            device.book.secrets.sealing,
            device.book.secrets.masking,
            device.book.secrets.seed,
        )
    ]
    assert {len(secret) for secret in found} == {32}
    assert len(set(found)) == 15
