"""Tests of a foreign client, which was written only from docs/protocol.md: its bytes, and data that it refuses."""

import ast
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.methods.contract.averages import Averaged
from protofleet.methods.contract.contribution import arrays_of_payload, layout_of
from protofleet.protocol.security.keys import Keys
from protofleet.protocol.security.records import Record, Revocations, issue_record, issue_revocations
from protofleet.protocol.security.trust import Roots, issue_roots
from tests.over_broker import smallest_sums as sums

VECTORS = json.loads((Path(__file__).parents[1] / "golden" / "secagg_1.json").read_text())
TERMS = bytes.fromhex(VECTORS["terms_bytes"])
ROWS = bytes.fromhex(VECTORS["roster"])
ROW = len(ROWS) // 4
FIRST, SURVIVORS = (bytes.fromhex(VECTORS[kind]) for kind in ("first", "survivors"))
MASKED = VECTORS["masked"]
VECTORS_OF_SURVIVORS = b"".join(bytes.fromhex(one["vector"]) for one in MASKED)
MARKS = b"".join(bytes.fromhex(one["signature"]) for one in MASKED)
AGREED = [place.to_bytes(2, "little") + bytes.fromhex(one["agree"]) for place, one in enumerate(MASKED)]
SEEDS = b"".join(bytes.fromhex(one["seed"]) for one in VECTORS["devices"][:3])
LOST = bytes.fromhex(VECTORS["devices"][3]["masking"])
RECORDS = [
    sums.Record("lab", one["name"], b"device", bytes.fromhex(one["identity_public"]), b"", 1, 0, 1)
    for one in VECTORS["devices"]
]


def roster(rows=ROWS, records=RECORDS, terms=TERMS):
    return sums.Roster(terms, rows, records)


def party(place):
    one = VECTORS["devices"][place]
    secrets = [bytes.fromhex(one[kind]) for kind in ("sealing", "masking", "seed")]
    identity = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(one["identity"]))
    return sums.Party(roster(), one["name"], secrets, identity)


def pairs(kind, sender):
    return {one["to"]: bytes.fromhex(one[kind]) for one in VECTORS["pairs"] if one["from"] == sender}


def sum_of(vectors=VECTORS_OF_SURVIVORS, marks=MARKS, seeds=SEEDS, lost=LOST):
    return sums.sum_of(roster(), FIRST, SURVIVORS, vectors, marks, seeds, lost)


@pytest.mark.parametrize("place", range(4))
def test_a_foreign_client_makes_and_opens_the_bytes_of_the_golden_vectors(place):
    one, own = party(place), bytes.fromhex(VECTORS["own_pairs"][place])
    assert one.roster.hash.hex() == VECTORS["roster_hash"] and one.roster.needed == VECTORS["threshold"]
    assert one.seal(pairs("pair", one.name)) == b"".join(pairs("sealed", one.name).values())
    rows = b"".join(pairs("sealed", name)[one.name] for name in one.others)
    opened = one.open(one.roster.names, rows, own)
    assert opened == {name: pairs("pair", name)[one.name] for name in one.others} | {one.name: own}
    if place < 3:
        check_steps(one, MASKED[place], opened)


def check_steps(one, given, opened):
    first = one.first(FIRST)
    alive = one.survivors(SURVIVORS, first, [])
    vector = one.masked(sums.encode(given["numbers"], one.roster.terms), first)
    assert vector.hex() == given["vector"]
    signed = sums.masked_text(one.roster, FIRST, vector), sums.agreed_text(one.roster, FIRST, SURVIVORS)
    assert [one.identity.sign(text).hex() for text in signed] == [given["signature"], given["agree"]]
    one.check_agreed(b"".join(AGREED), FIRST, SURVIVORS)
    shares = {entry["of"]: entry["released"] for entry in VECTORS["released"]}
    assert sums.released(opened, first, alive).hex() == shares[one.name]


def test_a_foreign_client_computes_the_golden_sum_from_the_evidence():
    assert sum_of().tolist() == VECTORS["sum"]


def test_a_foreign_client_imports_no_module_of_protofleet():
    named = set()
    for name in ("smallest_sums.py", "smallest_sums_device.py"):
        for node in ast.walk(ast.parse(Path(sums.__file__).with_name(name).read_text())):
            named |= {one.name for one in node.names} if isinstance(node, ast.Import) else set()
            named |= {node.module} if isinstance(node, ast.ImportFrom) else set()
    others = {name.partition(".")[0] for name in named} - sys.stdlib_module_names
    assert others == {"cryptography", "msgpack", "numpy"}


def test_shares_of_a_foreign_client_give_its_secrets():
    one = party(0)
    made = one.split()
    points = {place + 1: made[name] for place, name in enumerate(one.roster.names) if place != 1}
    for part, secret in zip((slice(33), slice(33, 66)), one.secrets[1:], strict=True):
        assert sums.joined({point: pair[part] for point, pair in points.items()})[:32] == secret


SWAPPED = ROWS[:ROW] + ROWS[ROW : ROW + 2] + ROWS[2:ROW] + ROWS[2 * ROW :]
FORGED = ROWS[:2] + party(1).roster.members["board-7"].keys + ROWS[ROW:]


LIES = [
    (lambda: roster(FORGED), "the keys of alice are not its own"),
    (lambda: roster(SWAPPED), "the keys of board-7 are not its own"),
    (lambda: roster(ROWS[:ROW] * 4), "not in the order of names"),
    (lambda: roster(ROWS[: 2 * ROW]), "the roster has another size"),
    (lambda: roster(terms=TERMS.replace(b"spring", b"summer")), "the keys of alice are not its own"),
    (lambda: party(0).first(b"\x0e"), "we are not among the first"),
    (lambda: party(0).first(b"\x03"), "2 devices are first, but 3 are needed"),
    (lambda: party(0).open(roster().names, bytes(3 * 82), bytes(66)), "only 1 of the shares open"),
    (lambda: party(3).survivors(SURVIVORS, roster().names, []), "we are no survivor"),
    (lambda: party(0).survivors(b"\x03", roster().names, []), "2 devices survive, but 3 are needed"),
    (lambda: party(0).survivors(b"\x0b", roster().names[:3], []), "a survivor is not among the first"),
    (lambda: party(0).survivors(b"\x17", roster().names, []), "bits of nobody"),
    (lambda: party(0).check_agreed(AGREED[0] * 3, FIRST, SURVIVORS), "alice may not agree"),
    (lambda: party(0).check_agreed(b"".join(AGREED[:2]), FIRST, SURVIVORS), "only 2 devices have agreed"),
    (lambda: party(0).check_agreed(b"".join(AGREED), FIRST, FIRST), "alice has not agreed"),
    (lambda: sum_of(vectors=bytes(len(VECTORS_OF_SURVIVORS))), "the vector of alice is not its own"),
    (lambda: sum_of(seeds=SEEDS[::-1]), "the seed of alice is another one"),
    (lambda: sum_of(lost=LOST[::-1]), "the key of dora is another one"),
]


@pytest.mark.parametrize(("lie", "reason"), LIES, ids=[reason for _, reason in LIES])
def test_a_foreign_client_refuses_false_data_of_the_coordinator(lie, reason):
    with pytest.raises(sums.Refused, match=reason):
        lie()


@pytest.fixture(scope="module")
def enrolment():
    """Return a root, its statements as the product writes them, and the record of a device with serial 7."""
    root = Ed25519PrivateKey.generate()
    roots = issue_roots(Roots("lab", 1, (root.public_key().public_bytes_raw(),), (b"DER",)), [root])
    revoked = issue_revocations(Revocations("lab", 2, frozenset({9, 8})), [root])
    keys = Keys.new().public
    record = Record("lab", "board-7", "device", keys.sign, keys.receive, 7, 100, 200)
    return sums.roots_in(roots), sums.revoked_in(revoked), issue_record(record, root)


def test_a_foreign_client_reads_a_record_that_its_root_has_signed(enrolment):
    roots, revoked, record = enrolment
    assert revoked == [8, 9]
    (found,) = sums.read_records(framed(record), sums.Trust("lab", roots, revoked, 150))
    assert (found.name, found.serial) == ("board-7", 7)


def framed(record):
    return len(record).to_bytes(2, "little") + record


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"roots": [bytes(32)]}, "no record of a known root"),
        ({"revoked": [7]}, "the record of board-7 is revoked"),
        ({"now": 99}, "the record of board-7 is not valid now"),
        ({"now": 201}, "the record of board-7 is not valid now"),
        ({"federation": "other"}, "a record is of another federation"),
    ],
)
def test_a_foreign_client_refuses_a_record_that_is_not_valid(enrolment, changes, reason):
    roots, revoked, record = enrolment
    trust = sums.Trust("lab", roots, revoked, 150)._replace(**changes)
    with pytest.raises(sums.Refused, match=reason):
        sums.read_records(framed(record), trust)


def test_a_foreign_client_refuses_a_changed_record_and_a_repeated_record(enrolment):
    roots, revoked, record = enrolment
    trust = sums.Trust("lab", roots, revoked, 150)
    with pytest.raises(sums.Refused, match="a record was changed"):
        sums.read_records(framed(record.replace(b"board-7", b"board-8")), trust)
    with pytest.raises(sums.Refused, match="a name or a key is in two records"):
        sums.read_records(framed(record) * 2, trust)


def test_a_foreign_client_refuses_survivors_that_differ_by_one_from_the_last_sum():
    apart = TERMS[:-8] + (3).to_bytes(8, "little")
    one = party(0)
    one.roster.terms = sums.read_terms(apart)
    assert one.survivors(SURVIVORS, one.roster.names, one.roster.names[:3])
    with pytest.raises(sums.Refused, match="two sums differ by 1 devices only"):
        one.survivors(SURVIVORS, one.roster.names, one.roster.names)


@pytest.mark.parametrize("examples", [7, 60])
def test_a_foreign_client_computes_the_same_vector_of_weights_as_the_product(examples):
    dice = np.random.default_rng(1)
    sent = {"weights.b": dice.normal(size=(2, 3)), "weights.a.count": np.array([4])}
    new = {"weights.b": dice.normal(size=(2, 3)), "weights.a.count": np.array([9])}
    layout = layout_of(Averaged(("weights",)), arrays_of_payload(new), classes=3)
    arrays = [{name: as_theirs(value) for name, value in some.items()} for some in (sent, new)]
    found = sums.weights_vector(*arrays, examples, 40)
    assert np.allclose(found, layout.vector(new, sent, examples, 40), rtol=1e-15, atol=0)


def as_theirs(value):
    return SimpleNamespace(dtype=value.dtype.name, numbers=value.ravel().tolist())


def test_a_foreign_client_computes_the_same_vector_of_rows_as_the_product():
    rows = np.random.default_rng(2).normal(size=(2, 4))
    payload = {"prototypes": rows, "labels": np.array([3, 1]), "counts": np.array([5, 2])}
    layout = layout_of(Averaged(rows="devices"), arrays_of_payload(payload), classes=5)
    found = sums.rows_vector({3: rows[0], 1: rows[1]}, classes=5, width=4)
    assert np.array_equal(found, layout.vector(payload, {}, 7, 40))
