"""The arithmetic of masked sums for one device, written from section 14 of docs/protocol.md alone.

It imports nothing of protofleet. A fault of the coordinator raises `Refused`.
"""

import base64
import hashlib
import os
import struct
from collections import namedtuple
from contextlib import suppress
from math import ceil

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

SECAGG = b"protofleet/1 secagg\0"
PRIME = (1 << 256) + 297
KEYS, SIGNATURE, SHARE, SEALED, PLACE = 160, 64, 33, 82, 2
CLOSED = b"\xff" * SHARE


class Refused(ValueError):
    """A step that this device does not answer."""


def check(condition, reason):
    if not condition:
        raise Refused(reason)


def pieces(data, size):
    return [data[at : at + size] for at in range(0, len(data), size)]


# -- hashes and keys


def digest(*parts):
    given = [part.encode() if isinstance(part, str) else part for part in parts]
    return hashlib.sha256(SECAGG + b"".join(struct.pack("<Q", len(p)) + p for p in given)).digest()


def signed(name, *parts):
    """Return the bytes that the signature `name` covers."""
    return SECAGG + digest(f"signed {name}", *parts)


def verify(identity, signature, text, reason):
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, text)
    except InvalidSignature:
        raise Refused(reason) from None


def derived(secret, info):
    return HKDF(SHA256(), 32, None, info).derive(secret)


def exchanged(private, public, info):
    given = X25519PrivateKey.from_private_bytes(private)
    return derived(given.exchange(X25519PublicKey.from_public_bytes(public)), info)


def public_of(private):
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


# -- terms

TERMS = (
    *("federation", "run", "round", "nonce", "stage", "base", "length", "devices"),
    *("limit", "fraction", "bits", "least", "apart"),
)
Terms = namedtuple("Terms", TERMS)
TEXTS = {"federation", "run", "nonce", "stage", "base", "limit"}


def read_terms(data):
    found, at = [], 0
    for name in TERMS:
        size = 8
        if name in TEXTS:
            (size,) = struct.unpack_from("<I", data, at)
            at += 4
        piece, at = data[at : at + size], at + size
        check(len(piece) == size, "the terms are too short")
        found.append(piece if name in TEXTS else int.from_bytes(piece, "little"))
    check(at == len(data), "the terms are too long")
    made = Terms._make(found)
    (limit,) = struct.unpack("<d", made.limit)
    federation, run, stage = (text.decode() for text in (made.federation, made.run, made.stage))
    return made._replace(federation=federation, run=run, stage=stage, limit=limit)


def fraction_of(devices, limit, bits):
    fits = [f for f in range(31) if devices * ceil(limit * 2**f) * 2 + 1 <= 1 << bits]
    check(fits, f"{bits} bits cannot hold a sum of {devices} devices")
    return max(fits)


# -- numbers


def weights_vector(sent, new, examples, most):
    """Return w (value - value in the broadcast) of arrays that are averaged by examples."""
    weight, found = min(examples, most) / most, []
    for name in sorted(new):
        scale = weight if new[name].dtype.startswith("float") else weight * 2**-10
        found += [scale * (b - a) for a, b in zip(sent[name].numbers, new[name].numbers, strict=True)]
    return found


def rows_vector(means, classes, width):
    """Return the rows of classes of a device; each held class counts once."""
    held = {label: [*mean, 1.0] for label, mean in means.items()}
    return [number for label in range(classes) for number in held.get(label, [0.0] * (width + 1))]


def encode(numbers, terms):
    """Return each number as a word modulo 2^bits."""
    given = np.asarray(numbers, np.float64)
    check(np.all(np.abs(given) <= terms.limit), f"a number is outside of {terms.limit}")
    return np.rint(given * 2.0**terms.fraction).astype(np.int64).astype(np.uint32) & top(terms.bits)


def top(bits):
    return np.uint32((1 << bits) - 1)


def pack(words, bits):
    each = np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")
    return np.packbits(each.reshape(-1, 32)[:, :bits].ravel(), bitorder="little").tobytes()


def unpack(data, bits, length):
    check(len(data) == -(-bits * length // 8), f"a vector has {len(data)} bytes")
    each = np.zeros((length, 32), np.uint8)
    found = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[: bits * length]
    each[:, :bits] = found.reshape(length, bits)
    return np.packbits(each.ravel(), bitorder="little").view("<u4")


def mask(key, terms):
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(4 * terms.length))
    return np.frombuffer(stream, "<u4") & top(terms.bits)


def bits_of(members, names):
    """Return the bitmap that has a bit for each name."""
    made = bytearray(-(-len(names) // 8))
    for place, name in enumerate(names):
        made[place // 8] |= (name in members) << place % 8
    return bytes(made)


def members_of(bitmap, names):
    found = [name for i, name in enumerate(names) if i // 8 < len(bitmap) and bitmap[i // 8] >> i % 8 & 1]
    check(bits_of(found, names) == bitmap, "a bitmap has another length, or bits of nobody")
    return found


# -- shares


def split(secret, points, needed):
    """Return a share of the secret for each point, by Shamir's scheme."""
    powers = [int.from_bytes(secret, "little")]
    powers += [int.from_bytes(os.urandom(64), "little") % PRIME for _ in range(needed - 1)]
    sums = (sum(c * pow(x, i, PRIME) for i, c in enumerate(powers)) % PRIME for x in points)
    return [value.to_bytes(SHARE, "little") for value in sums]


def joined(shares):
    """Return the secret of which shares are given by their points."""
    total = 0
    for x, share in shares.items():
        value = int.from_bytes(share, "little")
        for other in shares.keys() - {x}:
            value = value * other * pow(other - x, -1, PRIME) % PRIME
        total += value
    return (total % PRIME).to_bytes(SHARE, "little")


# -- records

Record = namedtuple("Record", "federation name role identity receive serial since until")


def statement(data):
    """Return kind, signers, body, signed text and signatures of a statement."""
    kind_end = 5 + data[4]
    count = data[kind_end]
    at = kind_end + 1 + 8 * count
    size = int.from_bytes(data[at : at + 4], "little")
    end = at + 4 + size
    check(data[:4] == b"PFS\x01" and len(data) == end + SIGNATURE * count, "no statement")
    signers = [data[i : i + 8] for i in range(kind_end + 1, at, 8)]
    marks = [data[i : i + SIGNATURE] for i in range(end, len(data), SIGNATURE)]
    return data[5:kind_end].decode(), signers, data[at + 4 : end], data[:end], marks


def unarmoured(text):
    return base64.b64decode("".join(text.splitlines()[1:-1]))


def fields_of(body, form):
    """Return the fields of a body: `t` is text or bytes, `n` a number."""
    found, at = [], 0
    for kind in form:
        size = 8
        if kind == "t":
            size, at = int.from_bytes(body[at : at + 4], "little"), at + 4
        piece, at = body[at : at + size], at + size
        found.append(piece if kind == "t" else int.from_bytes(piece, "little"))
    return found, body[at:]


def roots_in(data):
    """Return the keys of the statement `roots`."""
    _, rest = fields_of(statement(data)[2], "tn")
    return fields_of(rest[4:], "t" * int.from_bytes(rest[:4], "little"))[0]


def revoked_in(data):
    """Return the serials of the statement `revoked`."""
    (_, _, packed), _ = fields_of(statement(data)[2], "tnt")
    return [int.from_bytes(serial, "little") for serial in pieces(packed, 8)]


class Trust(namedtuple("Trust", "federation roots revoked now")):
    """The roots of a device, its revoked serials and its clock."""

    def record(self, data):
        kind, signers, body, text, marks = statement(data)
        known = {hashlib.sha256(root).digest()[:8]: root for root in self.roots}
        check(kind == "record" and {*signers} & known.keys(), "no record of a known root")
        for signer, mark in zip(signers, marks, strict=True):
            if signer in known:
                verify(known[signer], mark, b"protofleet/1 statement\0" + text, "a record was changed")
        fields, rest = fields_of(body, "tttttnnn")
        made = Record(*fields)
        made = made._replace(federation=made.federation.decode(), name=made.name.decode())
        check(not rest and made.federation == self.federation, "a record is of another federation")
        check(made.role == b"device", "a record is of no device")
        check(made.serial not in self.revoked, f"the record of {made.name} is revoked")
        check(made.since <= self.now <= made.until, f"the record of {made.name} is not valid now")
        return made


def read_records(data, trust):
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 2], "little")
        found.append(trust.record(data[at + 2 : at + 2 + size]))
        at += 2 + size
    names, keys = ({*parts} for parts in zip(*((one.name, one.identity) for one in found), strict=True))
    check(len(names) == len(keys) == len(found), "a name or a key is in two records")
    return sorted(found)


# -- the roster

Member = namedtuple("Member", "name identity sealing masking seed_hash keys")


class Roster:
    """The devices of an attempt, whose keys have been checked."""

    def __init__(self, terms_bytes, rows, records):
        self.terms_bytes, self.terms = terms_bytes, read_terms(terms_bytes)
        self.members, size = {}, PLACE + KEYS
        check(len(rows) % size == 0, "the roster has another length")
        places = [int.from_bytes(row[:PLACE], "little") for row in pieces(rows, size)]
        check(places == sorted({*places}), "the roster is not in the order of names")
        for place, row in zip(places, pieces(rows, size), strict=True):
            check(place < len(records), f"the roster has place {place}")
            self._add(records[place], row[PLACE:])
        self.names = [*self.members]
        check(self.terms.least <= len(self.names) <= self.terms.devices, "the roster has another size")
        public = [key for m in self.members.values() for key in (m.sealing, m.masking)]
        check(len({*public}) == len(public), "the roster has a key twice")
        self.needed = 2 * len(self.names) // 3 + 1
        self.enough = max(self.needed, self.terms.least)
        each = (part for m in self.members.values() for part in (m.name, m.identity, m.keys))
        self.hash = digest("roster", digest("terms", terms_bytes), *each)

    def _add(self, record, keys):
        parts = keys[:32], keys[32:64], keys[64:96]
        text = signed("keys", digest("terms", self.terms_bytes), record.name, *parts)
        verify(record.identity, keys[96:], text, f"the keys of {record.name} are not its own")
        self.members[record.name] = Member(record.name, record.identity, *parts, keys)


def made_keys(identity, terms_bytes, name, secrets):
    """Return the 160 bytes of `keys`; `secrets` are the keys to seal and to mask, and the seed."""
    parts = public_of(secrets[0]), public_of(secrets[1]), digest("seed", secrets[2])
    text = signed("keys", digest("terms", terms_bytes), name, *parts)
    return b"".join(parts) + identity.sign(text)


class Party:
    """One device of a roster, with its secrets."""

    def __init__(self, roster, name, secrets, identity):
        self.roster, self.name, self.secrets, self.identity = roster, name, secrets, identity
        own = made_keys(identity, roster.terms_bytes, name, secrets)
        check(name in roster.members and roster.members[name].keys == own, "the roster lacks our keys")
        self.others = [other for other in roster.names if other != name]

    def split(self):
        """Return the shares of the masking key and of the seed for each device of the roster."""
        points = range(1, len(self.roster.names) + 1)
        each = (split(secret, points, self.roster.needed) for secret in self.secrets[1:])
        return {name: a + b for name, a, b in zip(self.roster.names, *each, strict=True)}

    def seal(self, pairs):
        return b"".join(
            self._cipher(name, self.name, name).encrypt(bytes(12), pairs[name], self.roster.hash)
            for name in self.others
        )

    def open(self, first, rows, own):
        """Return the shares that open, by the device that sealed them, and our own ones."""
        senders, found = [name for name in first if name != self.name], {self.name: own}
        check(len(rows) == SEALED * len(senders), f"there are {len(rows)} bytes of shares")
        for name, row in zip(senders, pieces(rows, SEALED), strict=True):
            with suppress(InvalidTag):
                found[name] = self._cipher(name, name, self.name).decrypt(bytes(12), row, self.roster.hash)
        check(len(found) >= self.roster.needed, f"only {len(found)} of the shares open")
        return found

    def _cipher(self, other, sender, receiver):
        info = digest("share", self.roster.hash, sender, receiver)
        return ChaCha20Poly1305(exchanged(self.secrets[0], self.roster.members[other].sealing, info))

    def first(self, bitmap):
        names, enough = members_of(bitmap, self.roster.names), self.roster.enough
        check(self.name in names, "we are not among the first")
        check(len(names) >= enough, f"{len(names)} devices are first, but {enough} are needed")
        return names

    def masked(self, words, first):
        """Return the packed vector."""
        total, bits = words + self_mask(self.secrets[2], self.roster), self.roster.terms.bits
        for other in first:
            if other != self.name:
                mask = pair_mask(self.secrets[1], self.name, other, self.roster)
                total = added(total, self.name, other, mask)
        return pack(total & top(bits), bits)

    def survivors(self, bitmap, first, last):
        """Return the survivors; `last` are those of the last sum of this stage."""
        names, terms, enough = members_of(bitmap, self.roster.names), self.roster.terms, self.roster.enough
        check({*names} <= {*first}, "a survivor is not among the first")
        check(self.name in names, "we are no survivor")
        check(len(names) >= enough, f"{len(names)} devices survive, but {enough} are needed")
        differ = len({*names} ^ {*last})
        check(not last or not differ or differ >= terms.apart, f"two sums differ by {differ} devices only")
        return names

    def check_agreed(self, rows, first, survivors):
        """Check that enough survivors have signed the same bitmaps."""
        agreed, alive = set(), members_of(survivors, self.roster.names)
        for name, mark in signatures(rows, self.roster):
            check(name in alive and name not in agreed, f"{name} may not agree")
            identity, text = self.roster.members[name].identity, agreed_text(self.roster, first, survivors)
            verify(identity, mark, text, f"{name} has not agreed")
            agreed.add(name)
        check(len(agreed) >= self.roster.needed, f"only {len(agreed)} devices have agreed")


def masked_text(roster, first, vector):
    return signed("masked", roster.hash, first, hashlib.sha256(vector).digest())


def agreed_text(roster, first, survivors):
    return signed("agree", roster.hash, first, survivors)


def released(pairs, first, survivors):
    """Return one share of each device: of the seed of a survivor, of the masking key of another."""
    rows = []
    for name in first:
        pair = pairs.get(name, CLOSED * 2)
        rows.append(pair[SHARE:] if name in survivors else pair[:SHARE])
    return b"".join(rows)


def signatures(rows, roster):
    """Yield the name and the signature of each row."""
    check(len(rows) % (PLACE + SIGNATURE) == 0, "the signatures have another length")
    for row in pieces(rows, PLACE + SIGNATURE):
        place = int.from_bytes(row[:PLACE], "little")
        check(place < len(roster.names), f"a signature is of place {place}")
        yield roster.names[place], row[PLACE:]


def self_mask(seed, roster):
    return mask(derived(seed, digest("self mask", roster.hash)), roster.terms)


def pair_mask(private, mine, other, roster):
    info = digest("mask", roster.hash, *sorted((mine, other)))
    return mask(exchanged(private, roster.members[other].masking, info), roster.terms)


def added(total, mine, other, words):
    """Add the mask if our name is first, else subtract it."""
    return total + words if mine < other else total - words


# -- the sum of a stage, which a device computes itself


def sum_of(roster, first, survivors, vectors, marks, seeds, lost):
    """Return the sum of the survivors' vectors, and check all that it is computed from."""
    firsts, alive = (members_of(bitmap, roster.names) for bitmap in (first, survivors))
    gone, terms = [name for name in firsts if name not in alive], roster.terms
    size = -(-terms.bits * terms.length // 8)
    check(len(vectors) == size * len(alive), f"the vectors have {len(vectors)} bytes")
    check((len(seeds), len(lost)) == (32 * len(alive), 32 * len(gone)), "seeds or keys have another length")
    rows = dict(zip(alive, pieces(vectors, size), strict=True))
    check(len(marks) == SIGNATURE * len(alive), f"the signatures have {len(marks)} bytes")
    for name, mark in zip(alive, pieces(marks, SIGNATURE), strict=True):
        text = masked_text(roster, first, rows[name])
        verify(roster.members[name].identity, mark, text, f"the vector of {name} is not its own")
    total = sum(
        (unpack(row, terms.bits, terms.length) for row in rows.values()), np.zeros(terms.length, np.uint32)
    )
    for name, seed in zip(alive, pieces(seeds, 32), strict=True):
        check(digest("seed", seed) == roster.members[name].seed_hash, f"the seed of {name} is another one")
        total = total - self_mask(seed, roster)
    for name, key in zip(gone, pieces(lost, 32), strict=True):
        check(public_of(key) == roster.members[name].masking, f"the key of {name} is another one")
        for other in alive:  # What the other added, the lost device would have subtracted.
            total = added(total, name, other, pair_mask(key, name, other, roster))
    return total & top(terms.bits)
