"""Tests that the product computes the bytes of the golden vectors, which a plain reference has computed."""

import json
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.coordinator.secagg.steps import conduct
from protofleet.edge_client.secagg.book import AttemptSecrets, Book
from protofleet.edge_client.secagg.instance import Instance
from protofleet.edge_client.secagg.past_attempts import PastAttempts
from protofleet.protocol.secagg.control_arrays import as_array, pack_signatures
from protofleet.protocol.secagg.directory import Directory
from protofleet.protocol.secagg.field import Field
from protofleet.protocol.secagg.masks import mask, pair_key
from protofleet.protocol.secagg.packing import pack, unpack
from protofleet.protocol.secagg.roster import read_roster
from protofleet.protocol.secagg.sealing import open_pair
from protofleet.protocol.secagg.shares import SHARE, coefficients, secret_of, weighted
from protofleet.protocol.secagg.terms import Terms, read_terms, threshold
from tests.protocol.golden.secagg_vectors import vectors

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "secagg_1.json").read_text())
TERMS = GOLDEN["terms"]
DEVICES = {one["name"]: one for one in GOLDEN["devices"]}
NAMES = tuple(DEVICES)
LIVING = NAMES[:3]


def raw(text):
    return bytes.fromhex(text)


def agreed():
    field = Field(TERMS["devices"], TERMS["limit"], TERMS["fraction"], TERMS["bits"])
    return Terms(
        TERMS["federation"], TERMS["run"], TERMS["round"], raw(TERMS["attempt"]), TERMS["stage"], raw(TERMS["base"]),
        TERMS["length"], field, TERMS["least"], TERMS["apart"],
    )  # fmt: skip


def directory():
    return Directory({name: raw(DEVICES[name]["identity_public"]) for name in NAMES})


def roster():
    return read_roster(agreed(), raw(GOLDEN["roster"]), directory())


def identity(name):
    return Ed25519PrivateKey.from_private_bytes(raw(DEVICES[name]["identity"]))


def pairs_for(name):
    """Return the pairs of shares that a device holds, in the order of the roster."""
    found = {one["from"]: raw(one["pair"]) for one in GOLDEN["pairs"] if one["to"] == name}
    found[name] = raw(GOLDEN["own_pairs"][NAMES.index(name)])
    return tuple(found[dealer] for dealer in NAMES)


def device(name):
    """Return a device that has the secrets of the vectors and has shared its keys."""
    one = DEVICES[name]
    own = raw(GOLDEN["own_pairs"][NAMES.index(name)])
    secrets = AttemptSecrets(raw(one["sealing"]), raw(one["masking"]), raw(one["seed"]), own)
    sealed = b"".join(raw(pair["sealed"]) for pair in GOLDEN["pairs"] if pair["from"] == name)
    past = PastAttempts().with_attempt(agreed())
    book = Book(agreed(), past, raw(one["keys"]), secrets, directory(), raw(GOLDEN["roster"]), sealed)
    return Instance(name, identity(name), book)


def test_the_golden_file_is_equal_to_the_output_of_the_reference():
    assert json.loads(json.dumps(vectors())) == GOLDEN


def test_terms_have_the_bytes_and_the_hash_of_the_vectors():
    assert agreed().encode() == raw(GOLDEN["terms_bytes"])
    assert read_terms(raw(GOLDEN["terms_bytes"])) == agreed()
    assert agreed().hash == raw(GOLDEN["terms_hash"])
    assert threshold(len(NAMES)) == GOLDEN["threshold"]


def test_the_roster_has_the_hash_of_the_vectors_and_valid_signatures():
    found = roster()
    found.verify()
    assert found.hash == raw(GOLDEN["roster_hash"])
    assert found.encode(directory()) == raw(GOLDEN["roster"])


@pytest.mark.parametrize("name", LIVING)
def test_a_device_sends_the_masked_vector_and_the_signatures_of_the_vectors(name):
    expected = next(one for one in GOLDEN["masked"] if one["of"] == name)
    words = agreed().field.encode(np.array(expected["numbers"]))
    assert words.tolist() == expected["words"]
    sealed = {one["from"]: raw(one["sealed"]) for one in GOLDEN["pairs"] if one["to"] == name}
    found = device(name)
    answer = found.masked(raw(GOLDEN["first"]), b"".join(sealed[other] for other in sorted(sealed)), words)
    assert answer.vector == raw(expected["vector"])
    assert answer.signature == raw(expected["signature"])
    assert answer.opened == raw(GOLDEN["first"])
    assert found.book.secrets.opened == pairs_for(name)
    assert found.agree(raw(GOLDEN["survivors"])) == raw(expected["agree"])
    signatures = {one["of"]: raw(one["agree"]) for one in GOLDEN["masked"]}
    released = next(raw(one["released"]) for one in GOLDEN["released"] if one["of"] == name)
    assert found.unmask(pack_signatures(roster(), signatures)) == released


def test_masks_of_pairs_are_equal_to_the_vectors():
    for one in GOLDEN["pair_masks"]:
        private, public = (raw(DEVICES[one[side]]["masking"]) for side in ("of", "with"))
        peer = roster().entry(one["with"]).masking
        key = pair_key(private, peer, roster().hash, one["of"], one["with"])
        assert mask(key, TERMS["length"], TERMS["bits"]).tolist() == one["words"]
        assert key == pair_key(
            public, roster().entry(one["of"]).masking, roster().hash, one["with"], one["of"]
        )


def test_three_shares_give_each_secret_of_the_vectors():
    for place, name in enumerate(NAMES):
        pairs, factors = [pairs_for(NAMES[holder])[place] for holder in (0, 2, 3)], coefficients([1, 3, 4], 0)
        assert secret_of(weighted([pair[:SHARE] for pair in pairs], factors)) == raw(DEVICES[name]["masking"])
        assert secret_of(weighted([pair[SHARE:] for pair in pairs], factors)) == raw(DEVICES[name]["seed"])


def test_the_coordinator_gets_the_sum_of_the_vectors():
    steps = conduct(agreed(), directory(), NAMES, "weights.masked")
    next(steps)
    answers = {
        "keys": {name: {"control.values.keys": raw(DEVICES[name]["keys"])} for name in NAMES},
        "shares": {name: {"control.values.shares": device(name).book.shares} for name in NAMES},
        "masked": {
            one["of"]: {
                "weights.masked": raw(one["vector"]),
                "control.values.signature": raw(one["signature"]),
                "control.values.opened": raw(GOLDEN["first"]),
            }
            for one in GOLDEN["masked"]
        },
        "agree": {one["of"]: {"control.values.signature": raw(one["agree"])} for one in GOLDEN["masked"]},
        "unmask": {
            one["of"]: {"control.values.released": raw(one["released"])} for one in GOLDEN["released"]
        },
    }
    with pytest.raises(StopIteration) as end:
        for step in answers.values():
            steps.send(
                {name: {key: as_array(data) for key, data in one.items()} for name, one in step.items()}
            )
    assert end.value.value.words.tolist() == GOLDEN["sum"]
    assert end.value.value.survivors == LIVING


def test_packed_words_and_the_key_stream_are_equal_to_the_vectors():
    for one in GOLDEN["packed"]:
        words = np.array(one["words"], np.uint32)
        assert pack(words, one["bits"]) == raw(one["bytes"])
        assert np.array_equal(unpack(raw(one["bytes"]), len(words), one["bits"]), words)
    stream = GOLDEN["key_stream"]
    assert mask(raw(stream["key"]), 10, 32).astype("<u4").tobytes() == raw(stream["bytes"])


def test_a_sealed_pair_of_the_vectors_opens_only_for_its_roster():
    one, found = GOLDEN["pairs"][0], roster()
    with pytest.raises(ValueError, match="does not open"):
        open_pair(bytes(32), raw(one["sealed"]), found.hash)
